"""PostgreSQL: the connection is cut while a statement that commits is in flight."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.log.storm import HttpClient, Storm
from support.probe.service import UNLISTED
from tidelog.testing.process import ServerProcess

_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""The frame of a simple query `COMMIT` in PostgreSQL's protocol."""
_PREPARED = re.compile(rb"P....(\w+)\0WITH taken AS ", re.DOTALL)
"""The frame that prepares a statement that writes a batch; the statement's name is found."""
_EXECUTED = re.compile(rb"B....\0(\w+)\0", re.DOTALL)
"""The frame that executes a statement of this name."""
_READY = b"Z\x00\x00\x00\x05I"


class CuttingProxy:
    """Between server and database: cuts every third batch, in each of these ways in turn.

    Before it happened, after it happened, or so that it happens when nobody waits for it any more.
    """

    def __init__(self, url: str, ways: Sequence[str]) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._url = parts
        self._ways = ways
        self.cuts: Counter[str] = Counter(dict.fromkeys(ways, 0))
        self.cutting = True
        self._commits = 0
        self._late: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; returns the URL to use instead of the database's."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return self._url._replace(netloc=f"{self._url.username}@127.0.0.1:{port}").geturl()

    def stop(self) -> None:
        """Take no more connections."""
        for _, database_writer, _ in self._late:
            database_writer.transport.abort()
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        database_reader, database_writer = await asyncio.open_connection(*self._target)
        answers = asyncio.create_task(self._relay(database_reader, writer))
        commits: set[bytes] = set()
        is_late = False
        try:
            while data := await reader.read(65536):
                commits.update(_PREPARED.findall(data))
                is_commit = data.endswith(_COMMIT)
                if "late" in self._ways:
                    is_commit = not commits.isdisjoint(_EXECUTED.findall(data))
                if is_commit:
                    await self._send_late()
                if is_commit and self.cutting and self._is_next_to_cut():
                    how = self._ways[self._commits // 3 % len(self._ways)]
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    if how == "after":
                        database_writer.write(data)
                        await database_reader.readuntil(_READY)
                    elif how == "late":
                        is_late = True
                        self._late.append((database_reader, database_writer, data))
                    self.cuts[how] += 1
                    break
                database_writer.write(data)
        except OSError:
            pass
        finally:
            answers.cancel()
            writer.transport.abort()
            if not is_late:
                database_writer.transport.abort()

    async def _send_late(self) -> None:
        """The server has found out what became of its last batch, or would not write another."""
        while self._late:
            database_reader, database_writer, data = self._late.pop()
            database_writer.write(data)
            await database_reader.readuntil(_READY)
            database_writer.transport.abort()

    def _is_next_to_cut(self) -> bool:
        self._commits += 1
        return self._commits % 3 == 0

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("is_listed", [True, False], ids=["one statement", "a transaction"])
async def test_a_cut_commit_is_neither_lost_nor_doubled(
    postgresql_url: str, tmp_path: Path, is_listed: bool
) -> None:
    """Whenever it happens, every batch is there once or not at all, and known as such.

    The server process stays up throughout: it finds out by itself what became of each batch. A
    COMMIT cannot come late: its transaction holds the lock under which the server asks.
    """
    proxy = CuttingProxy(postgresql_url, ("before", "after", "late")[: 3 if is_listed else 2])
    url = await proxy.start()
    environment = {} if is_listed else {UNLISTED: "1"}
    with ServerProcess(data_dir=tmp_path, store=url, environment=environment) as server:
        await asyncio.to_thread(server.start)
        storm = Storm([server.port], writers=16)
        storm.start()
        async with asyncio.timeout(30):
            while min(proxy.cuts.values()) < 5:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        proxy.cutting = False
        await storm.finish()
        client = HttpClient(server.port)
        await storm.check(postgresql_url, client.post)
        client.close()
        assert storm.statuses["failed"] > 0, "a COMMIT that never arrived must be refused"
        assert storm.statuses["duplicate"] == 0, "one that did arrive must not need a retry"
        assert await asyncio.to_thread(server.terminate) == 0
    proxy.stop()
