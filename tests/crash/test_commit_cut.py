"""PostgreSQL: the connection is cut while COMMIT is in flight."""

import asyncio
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from support.log.storm import HttpClient, Storm
from tidelog.testing.process import ServerProcess

_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""The frame of a simple query `COMMIT` in PostgreSQL's protocol."""


class CuttingProxy:
    """Between server and database: cuts every third COMMIT, before and after it happened."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._url = parts
        self.cuts: Counter[str] = Counter()
        self.cutting = True
        self._commits = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; returns the URL to use instead of the database's."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return self._url._replace(netloc=f"{self._url.username}@127.0.0.1:{port}").geturl()

    def stop(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        database_reader, database_writer = await asyncio.open_connection(*self._target)
        answers = asyncio.create_task(self._relay(database_reader, writer))
        try:
            while data := await reader.read(65536):
                if data.endswith(_COMMIT) and self.cutting and self._is_next_to_cut():
                    if self._commits % 2:
                        self.cuts["before"] += 1
                    else:
                        answers.cancel()
                        await asyncio.gather(answers, return_exceptions=True)
                        database_writer.write(data)
                        await database_reader.readuntil(b"Z\x00\x00\x00\x05I")
                        self.cuts["after"] += 1
                    break
                database_writer.write(data)
        except OSError:
            pass
        finally:
            answers.cancel()
            writer.transport.abort()
            database_writer.transport.abort()

    def _is_next_to_cut(self) -> bool:
        self._commits += 1
        return self._commits % 3 == 0

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def test_a_cut_commit_is_neither_lost_nor_doubled(
    postgresql_url: str, tmp_path: Path
) -> None:
    """Cut before or after it happened, every batch is there once or not at all, and known as such.

    The server process stays up throughout: it finds out by itself what became of each batch.
    """
    proxy = CuttingProxy(postgresql_url)
    url = await proxy.start()
    with ServerProcess(data_dir=tmp_path, store=url) as server:
        await asyncio.to_thread(server.start)
        storm = Storm([server.port], writers=16)
        storm.start()
        async with asyncio.timeout(30):
            while min(proxy.cuts["before"], proxy.cuts["after"]) < 5:  # noqa: ASYNC110 - no event
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
