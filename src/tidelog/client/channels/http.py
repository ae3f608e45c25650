"""Signed requests over connections that are kept, on an event loop (channels 4.1).

HTTP/1.1 on asyncio's streams with the parser the server uses as well: a few requests to one host
need no more, and the package no further dependency. What a request says, and what a response means,
is in `exchange`.
"""

import asyncio
import contextlib
import time
from typing import Self, TypeVar

from tidelog.base.net.tls import context_for
from tidelog.client.channels.exchange import Answer, AnswerReader, Call, Exchange, Retry, Server

T = TypeVar("T")

MAX_CONNECTIONS = 16
"""Requests at the same time; further ones wait."""

READ_BYTES = 65_536


class _Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exchange(self, request: bytes) -> Answer:
        self._writer.write(request)
        await self._writer.drain()
        reader = AnswerReader()
        while (answer := reader.feed(await self._reader.read(READ_BYTES))) is None:
            pass
        return answer

    @property
    def is_usable(self) -> bool:
        """Whether the server has not closed it meanwhile."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class ChannelApi:
    """The signed API of one app; use it as `async with`."""

    def __init__(self, server: Server, retry: Retry) -> None:
        self._server = server
        self._retry = retry
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
            await connection.wait_closed()

    async def ask(self, call: Call[T]) -> T:
        """Send a call until there is a response.

        Raises:
            PublishRefused: it was refused, and would be again.
            PublishFailed: there was no response, or only errors of the server.
        """
        exchange = Exchange(self._server, call, self._retry)
        while True:
            try:
                async with self._slots, asyncio.timeout(self._retry.timeout_s):
                    answer = await self._send(exchange.request(time.time()))
            except (OSError, TimeoutError) as error:
                wait: float | None = exchange.failed(error)
            else:
                wait = exchange.answered(answer)
            if wait is None:
                return exchange.result
            await asyncio.sleep(wait)

    async def _send(self, request: bytes) -> Answer:
        connection = self._take_idle() or await self._connect()
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if answer.is_reusable and len(self._idle) < MAX_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        context = await context_for(self._server.url)
        return _Connection(
            *await asyncio.open_connection(
                self._server.host,
                self._server.port,
                ssl=context,
                server_hostname=self._server.host if context else None,
            )
        )
