"""npm's insieme, unmodified, in Node: its command session, offline transport and views."""

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from support.node import INSIEME, insieme_home, programs
from support.sync.peer import WAIT_SECONDS, connected, note, sync_server, token

Json = dict[str, Any]


class Session:
    """A process with one command session; begins offline and has gone online."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, folder: Path, url: str, client_id: str) -> "Session":
        """Start it; the package is found beside its driver."""
        node, _ = programs()
        await asyncio.to_thread(cls._install, folder)
        arguments = [str(folder / "driver.mjs"), url, token(client_id), client_id]
        return cls(await asyncio.create_subprocess_exec(node, *arguments, stdin=PIPE, stdout=PIPE))

    @staticmethod
    def _install(folder: Path) -> None:
        folder.mkdir()
        (folder / "node_modules").symlink_to(insieme_home() / "node_modules")
        shutil.copy(INSIEME / "driver.mjs", folder)

    async def read(self) -> Any:
        """The next line it prints."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            return json.loads(await self._process.stdout.readline())

    async def tell(self, **line: Any) -> Any:
        """Write a line; returns what it prints then."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        return await self.read()

    async def stop(self) -> int:
        """Let it close and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(WAIT_SECONDS):
            return await self._process.wait()


async def test_commands_written_offline_arrive_once_and_are_seen_by_all(tmp_path: Path) -> None:
    """With their authors; what a client of ours writes is a command too."""
    async with sync_server(tmp_path / "server") as node, connected(node.ws_url, "ours") as ours:
        first = await Session.start(tmp_path / "first", node.ws_url, "first")
        assert await first.read() == [{"type": "committed", "id": "first-offline"}]
        second = await Session.start(tmp_path / "second", node.ws_url, "second")
        assert await second.read() == [{"type": "committed", "id": "second-offline"}]
        given = [
            {"id": "a", "type": "any", "payload": {"title": "a"}},
            {"id": "b", "type": "nope", "payload": {"title": "b"}},
            {"id": "c", "type": "any", "payload": {"title": "c"}},
        ]
        assert await first.tell(submit=given) == [
            {"type": "committed", "id": "a"},
            {"type": "rejected", "id": "b"},
            {"type": "committed", "id": "c"},
        ]
        await ours.submit(note("ours", "p/tasks", data={"title": "ours"}))
        titles = ["first-offline", "second-offline", "a", "c", "ours"]
        seen = await second.tell(wait=4)
        assert seen["titles"] == titles
        assert [command["payload"]["title"] for command in seen["commands"]] == [
            title for title in titles if title != "second-offline"
        ]
        authors = [command["actor"].get("clientId") for command in seen["commands"]]
        assert authors == ["first", "first", "first", "ours"]
        assert seen["commands"][0]["actor"]["userId"] == "user of first"
        assert (await first.tell(wait=2))["titles"] == titles
        assert await node.counts() == (5, 5)
        assert [await first.stop(), await second.stop()] == [0, 0]
