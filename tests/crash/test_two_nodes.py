"""Several processes on one PostgreSQL are one log."""

import asyncio
import json
import sys
from pathlib import Path

from support.log.storm import HttpClient, Storm
from tidelog.testing.process import ServerProcess


class Follower:
    """`tidelog log tail --follow` in a process of its own."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.ids: list[int] = []
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin at the first entry."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidelog", "log", "tail", "--follow", "--from", "1", "--json"),
            *("--store", self._store),
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.ids.append(json.loads(line)["committed_id"])

    async def reach(self, count: int) -> None:
        """Wait until it has seen so many entries."""
        async with asyncio.timeout(30):
            while len(self.ids) < count:  # noqa: ASYNC110 - another process has no event
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End the process."""
        assert self._process is not None
        assert self._task is not None
        self._process.kill()
        await self._process.wait()
        await self._task


async def test_two_writing_processes_give_one_gapless_log(
    postgresql_url: str, tmp_path: Path
) -> None:
    """A third process sees 1..N in order, no gap, while two write and one of them is killed."""
    with (
        ServerProcess(data_dir=tmp_path / "a", store=postgresql_url) as first,
        ServerProcess(data_dir=tmp_path / "b", store=postgresql_url) as second,
    ):
        await asyncio.to_thread(first.start)
        await asyncio.to_thread(second.start)
        follower = Follower(postgresql_url)
        await follower.start()
        storm = Storm([first.port, second.port], writers=32)
        storm.start(subscriber_port=first.port)
        await asyncio.sleep(2)
        await follower.reach(1)  # it may still be starting
        seen_while_writing = len(follower.ids)
        await asyncio.to_thread(second.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(second.start)
        await asyncio.sleep(1)
        await storm.finish()
        client = HttpClient(second.port)
        head = await storm.check(postgresql_url, client.post)
        client.close()
        await follower.reach(head)
        assert follower.ids == list(range(1, head + 1))
        assert 0 < seen_while_writing < head, "the reader followed while they wrote"
        await follower.stop()
        for node in (first, second):
            assert await asyncio.to_thread(node.terminate) == 0
