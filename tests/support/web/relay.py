"""A TCP relay between a client and a server: a fixed address, and a network to cut at will."""

import asyncio
import contextlib
from typing import Self


class Relay:
    """Forwards connections to a port that may change; `cut` ends them without a word."""

    def __init__(self, port: int = 0) -> None:
        self.target = port
        """Where new connections lead."""
        self.lost_answers = 0
        """So many requests still reach the server without their answer reaching the client."""
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Host and port of this side."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End every connection as a vanished network does."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self._forget(writer, task)
            return
        self._writers.add(onward)
        back = asyncio.create_task(self._pump(onward_reader, writer, is_answer=True))
        try:
            await self._pump(reader, onward, is_answer=False)
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            self._forget(onward, task)
            self._forget(writer, task)

    def _forget(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        writer.transport.abort()
        self._writers.discard(writer)
        self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65_536):
                if is_answer and self.lost_answers:
                    self.lost_answers -= 1
                    break
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()
