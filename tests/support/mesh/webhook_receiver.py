"""A receiver of webhooks that keeps its connections, as web servers do."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CLOSE = b""
"""An answer that is none: the connection is closed instead."""


class Receiver:
    """What came, and on how many connections."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[bytes] = []
        """To the next requests; after them `OK`."""
        self.closes_after_answer = False
        self.bodies: list[bytes] = []
        self.opened = 0
        self.writers: set[asyncio.StreamWriter] = set()
        """Of the connections that are open."""
        self._closed = asyncio.Condition()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.opened += 1
        self.writers.add(writer)
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                self.bodies.append(await reader.readexactly(size))
                answer = self.answers.pop(0) if self.answers else OK
                writer.write(answer)
                await writer.drain()
                if answer == CLOSE or self.closes_after_answer:
                    break
        writer.transport.abort()
        self.writers.discard(writer)
        async with self._closed:
            self._closed.notify_all()

    async def has_open(self, count: int) -> None:
        """Return when only so many connections are open."""
        async with asyncio.timeout(30), self._closed:
            await self._closed.wait_for(lambda: len(self.writers) <= count)


@asynccontextmanager
async def receiving(certificate: Path | None = None) -> AsyncIterator[Receiver]:
    """A receiver on this machine, behind TLS with a certificate."""
    receiver, context = Receiver(), None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"http{'s' if context else ''}://127.0.0.1:{port}/hook"
    try:
        yield receiver
    finally:
        server.close()
        for writer in tuple(receiver.writers):
            writer.transport.abort()
        await receiver.has_open(0)
