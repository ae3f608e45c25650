"""Connections to somebody else's HTTP server: one request at a time, and kept between two.

A TLS handshake costs more than the rest of a post. A kept connection stays with the address that
was checked when it was opened; one whose answer did not end cleanly is not kept.
"""

import asyncio
import ssl
from typing import NamedTuple, cast

import httptools

from tidelog.base.errors import TidelogError

MAX_HEAD_BYTES = 65_536
"""Of an answer only the status counts; a peer that sends more in front of its body has failed."""

MAX_ANSWER_BYTES = 131_072
REST_SECONDS = 0.25
"""What a body may take so that its connection is kept; the status counts whatever comes of it."""

IDLE_SECONDS = 4.0
"""Common servers close after 5 s and more: closing before them, we seldom post to a closed one."""
MAX_AGE_SECONDS = 60.0
"""A host that moves to another address is followed, however busy its connections are."""
MAX_IDLE_OF_ORIGIN = 16
MAX_IDLE = 64


class AnswerInvalid(TidelogError):  # noqa: N818 - the failure is the noun
    """What came is not an HTTP response, or the peer closed without one."""


class ClosedBefore(TidelogError):  # noqa: N818 - the failure is the noun
    """A kept connection was closed by the peer before anything of this answer came."""


class Origin(NamedTuple):
    """What a connection is for."""

    scheme: str
    host: str
    port: int


class _Answer:
    """What the parser calls while an answer comes in."""

    def __init__(self) -> None:
        self.status = 0
        self.received = 0
        self._is_whole = False
        self._is_last = False
        """Whether the peer closes after it."""
        self._is_spoilt = False
        """Whether something came that is not of this answer."""
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take in what came; after the status a mistake costs only the connection."""
        room = len(data) if self.status else MAX_HEAD_BYTES - self.received
        self.received += len(data)
        try:
            self._parser.feed_data(data[:room])
            if self.status and data[room:]:
                self._parser.feed_data(data[room:])
        except httptools.HttpParserError:
            self._is_spoilt = True
            if not self.status:
                raise AnswerInvalid from None
        if not self.status and self.received > MAX_HEAD_BYTES:
            raise AnswerInvalid

    @property
    def is_clean(self) -> bool:
        """Whether another request may follow on its connection."""
        return self._is_whole and not self._is_useless

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.status != 0 and (self._is_whole or self._is_useless)

    @property
    def _is_useless(self) -> bool:
        return self._is_last or self._is_spoilt or self.received > MAX_ANSWER_BYTES

    def on_message_begin(self) -> None:
        """Another one would be taken for the answer to the next request."""
        self._is_spoilt = self.status != 0

    def on_headers_complete(self) -> None:
        """The status of the first that is not below 200: those announce another one."""
        status = self._parser.get_status_code()
        if not self.status and status >= 200:
            self.status = status
            self._is_last = not self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """Its end."""
        self._is_whole = self.status != 0


class WebhookConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, origin: Origin) -> None:
        self._loop = asyncio.get_running_loop()
        self.origin = origin
        self.too_old_at = self._loop.time() + MAX_AGE_SECONDS
        self._transport: asyncio.Transport | None = None
        self._was_kept = False
        self._answer: _Answer | None = None
        """None between two posts."""
        self._status: asyncio.Future[int] = self._loop.create_future()
        self._is_over: asyncio.Future[None] = self._loop.create_future()
        """Of this answer: nothing is left to wait for."""
        self._kept_by: KeptConnections | None = None

    @classmethod
    async def open(
        cls, origin: Origin, address: str, context: ssl.SSLContext | None
    ) -> "WebhookConnection":
        """Connect to the address; the host is what the peer's certificate must name."""
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: cls(origin),
            address,
            origin.port,
            ssl=context,
            server_hostname=origin.host if context else None,
        )
        return connection

    async def post(self, request: bytes) -> int:
        """Write the request; returns the status.

        Raises:
            ClosedBefore: it may be posted again, on another connection.
            AnswerInvalid: what came is not an HTTP response.
            OSError: the connection broke.
        """
        self._was_kept = self._kept_by is not None
        self._kept_by = None
        self._answer = _Answer()
        self._status = self._loop.create_future()
        self._is_over = self._loop.create_future()
        if self._transport is None:
            raise ClosedBefore if self._was_kept else AnswerInvalid
        self._transport.write(request)
        return await self._status

    async def rest(self) -> None:
        """Wait a little for the end of the answer."""
        if not self._is_over.done():
            await asyncio.wait([self._is_over], timeout=REST_SECONDS)

    def keep(self, kept_by: "KeptConnections") -> bool:
        """Whether it can be used again; if so, `kept_by` is told when it ends before that."""
        answer, self._answer = self._answer, None
        self._kept_by = kept_by
        return (
            self._transport is not None
            and answer is not None
            and answer.is_clean
            and self._loop.time() < self.too_old_at
        )

    def abort(self) -> None:
        """End it at once: nothing else is wanted of the peer, least of all a slow farewell."""
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open, with TLS if there is any."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Part of an answer, or something that nobody asked for."""
        answer = self._answer
        if answer is None:  # nobody asked
            self.abort()
            return
        try:
            answer.feed(data)
        except AnswerInvalid as invalid:
            self._fail(invalid)
            self.abort()
            return
        if answer.status and not self._status.done():
            self._status.set_result(answer.status)
        if answer.is_over and not self._is_over.done():
            self._is_over.set_result(None)

    def eof_received(self) -> None:
        """The peer has nothing more to say."""
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """It is over, for whatever reason."""
        self._transport = None
        if self._kept_by is not None:
            self._kept_by.forget(self)
        if self._was_kept and self._answer is not None and not self._answer.received:
            self._fail(ClosedBefore())
        else:
            self._fail(error or AnswerInvalid())
        if not self._is_over.done():
            self._is_over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._status.done():
            self._status.set_exception(error)


class KeptConnections:
    """Those that nobody uses now, the one that has waited longest first."""

    def __init__(self) -> None:
        self._idle: dict[WebhookConnection, asyncio.TimerHandle] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, origin: Origin) -> WebhookConnection | None:
        """The one that was used last; it is the caller's now."""
        for connection in reversed(self._idle):
            if connection.origin == origin:
                self.forget(connection)
                return connection
        return None

    def put(self, connection: WebhookConnection) -> None:
        """Keep it, or end it if it cannot be used again."""
        if not connection.keep(self) or self._is_closed:
            connection.abort()
            return
        alike = [each for each in self._idle if each.origin == connection.origin]
        if len(alike) >= MAX_IDLE_OF_ORIGIN:
            self._end(alike[0])
        elif len(self._idle) >= MAX_IDLE:
            self._end(next(iter(self._idle)))
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.call_later(IDLE_SECONDS, self._end, connection)

    def forget(self, connection: WebhookConnection) -> None:
        """It is not kept any more."""
        timer = self._idle.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """End all of them, and keep none from now on."""
        self._is_closed = True
        for connection in tuple(self._idle):
            self._end(connection)

    def _end(self, connection: WebhookConnection) -> None:
        self.forget(connection)
        connection.abort()
