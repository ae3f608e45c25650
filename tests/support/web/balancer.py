"""A TCP balancer before servers: it stays reachable while one is away."""

import asyncio
import contextlib
import random
from types import TracebackType
from typing import Self

RETRY_SECONDS = 0.02
LINGER_SECONDS = 2.0
"""For a client to read what a server said before it closed, while it still writes itself."""


class Balancer:
    """Passes bytes on, lets connections wait while the server is away, and can cut them.

    Both client libraries need that to be tested in seconds: after one refused attempt
    `sockudo-python` gives up for good, and `pusher-js` tries again 15 s later.
    """

    def __init__(self, port: int, *others: int) -> None:
        """Prepare to pass on to that port of the loopback, or to any of several, at random."""
        self.upstream = port
        """The port behind it; whoever connects from now on reaches this one."""
        self._others = others
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.accepted = 0
        """Connections so far."""

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Reset every connection, both ways and without a word."""
        for task in self._open:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.accepted += 1
        writers = [writer]
        try:
            up_reader, up_writer = await self._reach(await reader.read(65536), writer)
            writers.append(up_writer)
            ways = [
                asyncio.create_task(_copy(reader, up_writer)),
                asyncio.create_task(_copy(up_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if ways[1].done():
                    await _linger(ways[0], reader, writer)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # cut: the streams' own callback would report it as an error
        finally:
            self._open.discard(task)
            for end in writers:
                end.transport.abort()

    async def _reach(
        self, request: bytes, client: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Pass the upgrade request on until its answer begins.

        A dying server's port still takes connections for a moment, which then end unanswered.
        """
        while True:
            with contextlib.suppress(OSError):
                port = random.choice((self.upstream, *self._others))
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(request)
                    if answer := await reader.read(65536):
                        client.write(answer)
                        return reader, writer
                    writer.transport.abort()
                except BaseException:
                    writer.transport.abort()
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._open:
            await asyncio.wait(set(self._open))
        await self._server.wait_closed()


async def _linger(
    asked: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Let a client have the end of an answer; it is lost if what it sends finds nobody."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            writer.write_eof()
            await asked
            while await reader.read(65536):
                pass


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
