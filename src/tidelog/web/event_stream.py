"""One HTTP response that does not end: server-sent events instead of WebSocket frames.

A connection whose request was answered with a `Streamed` leaves `LimitedHttp` and becomes
one of these. Its conversation pushes the frames that it would push to a WebSocket, through the same
fan-out and under the same limits; what they look like as events is for the surface to say.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.base.serving.surface import Conversation, Streamed
from tidelog.web.failures import log_failure
from tidelog.web.fanout import Fanout, FrameWriter
from tidelog.web.reader import ABNORMAL, INTERNAL_ERROR
from tidelog.web.sockets import Sockets

if TYPE_CHECKING:
    from tidelog.base.serving.address_quota import AddressQuota

COMMENT_SECONDS = 15.0
"""After so long without an event a comment is sent, so that nobody in between takes the connection
for dead; many proxies do so after 30 or 60 seconds."""

RETRY_MS = 1000
"""How long an `EventSource` waits before it connects again."""

_COMMENT = b":\n\n"
_BEGINNING = b"retry: %d\n\n" % RETRY_MS


class EventStream(FrameWriter, asyncio.Protocol):
    """The connection. It is the `Outlet` that its `Conversation` gets."""

    __slots__ = (
        "_close_at",
        "_close_code",
        "_conversation",
        "_neighbours",
        "_quota",
        "_response",
        "_sockets",
        "_wrote_at",
        "heard_at",
        "peer",
    )

    def __init__(
        self, response: Streamed, fanout: Fanout, sockets: Sockets, neighbours: set[Any]
    ) -> None:
        super().__init__(fanout)
        self._response = response
        self._sockets = sockets
        self._neighbours = neighbours
        """The server's set of connections: it calls `shutdown` on each when it ends, and waits."""
        self._conversation: Conversation | None = response.conversation
        self._quota: AddressQuota | None = response.quota
        self.peer = ""
        self.heard_at = 0.0
        """The peer has nothing to say: it is heard as long as it is there."""
        self._close_code = ABNORMAL
        self._close_at = 0.0
        """When the connection is dropped because the peer does not take its end; 0 while open."""
        self._wrote_at = 0.0

    # Its life.

    def begin(self, transport: asyncio.Transport, head: bytes) -> None:
        """Take over the transport of an HTTP connection whose request was read."""
        peername = transport.get_extra_info("peername")
        self.peer = str(peername[0]) if isinstance(peername, tuple) else ""
        self._neighbours.add(self)
        transport.set_protocol(self)
        self._expect_acknowledgements(transport)
        self.heard_at = self._wrote_at = self.fanout.now()
        self._sockets.add(self)
        self.attach(transport)
        transport.write(head + _BEGINNING)
        try:
            self._response.conversation.opened(self)
        except Exception as error:  # noqa: BLE001 - a surface's failure is not its neighbours'
            log_failure(error, "opened", self._response.path, self.peer)
            self.close(INTERNAL_ERROR)

    def _expect_acknowledgements(self, transport: asyncio.Transport) -> None:
        """Let the kernel end a connection whose peer has vanished: nobody asks it anything."""
        connection, option = transport.get_extra_info("socket"), "TCP_USER_TIMEOUT"
        if connection is not None and hasattr(socket, option):
            wait_ms = int(2000 * COMMENT_SECONDS) + self.fanout.limits.pong_timeout_ms
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), wait_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: tell the conversation, once."""
        del exc
        self.detach()
        self._neighbours.discard(self)
        if self._quota is not None:
            self._quota.leave()
            self._quota = None
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            self._sockets.remove(self)
            try:
                conversation.closed(self._close_code)
            except Exception as error:  # noqa: BLE001 - as for `opened`
                log_failure(error, "closed", self._response.path, self.peer)

    def data_received(self, data: bytes) -> None:
        """Whatever the peer says after its request is not for anybody."""

    def eof_received(self) -> None:
        """The peer is gone; returning None closes the transport."""

    # The surface calls these.

    def push(self, frame: bytes) -> None:
        """Queue a frame as an event; it leaves with the next flush, in order."""
        if self.writable and (event := self._response.encode(frame)):
            super().push(event)

    def push_all(self, frames: Sequence[bytes]) -> None:
        """As `push` of each."""
        for frame in frames:
            self.push(frame)

    def close(self, code: int, reason: str = "") -> None:
        """Send what was pushed, then end the response; later pushes are dropped."""
        del reason  # an event before it has said why
        if self.writable:
            self.writable = False
            self._close_code = code
            limits = self.fanout.limits
            self._close_at = self.fanout.now() + limits.close_timeout_ms / 1000
            if self.frames:
                self.attention = True
            elif self._transport is not None:
                self._transport.close()

    def admit(self) -> None:
        """It was known who is there before it began."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    # The fan-out, the registry, the server and the loop call these.

    def write(self, data: bytes, messages: int) -> None:
        """Give events to the socket."""
        self._wrote_at = self.fanout.now()
        super().write(data, messages)

    def wrote(self, size: int, messages: int) -> None:
        """Judge the peer's speed; after the last event, end."""
        super().wrote(size, messages)
        if self._close_at and self._transport is not None:
            self._transport.close()

    def too_slow(self) -> None:
        """Drop the peer; its conversation is told the surface's own code."""
        if self._close_code == ABNORMAL:
            self._close_code = self._response.slow_consumer_code
        super().too_slow()

    @property
    def surface(self) -> str:
        """Name of the surface it belongs to."""
        return self._response.surface

    def shutdown(self) -> None:
        """End because the server stops."""
        self.close(self._response.shutdown_code)

    def sweep(self, now: float) -> None:
        """Show that the connection lives; drop a peer that does not take its end."""
        if self._close_at:
            if now >= self._close_at:
                self.abort()
            return
        self.heard_at = now
        if now - self._wrote_at >= COMMENT_SECONDS:
            super().push(_COMMENT)
