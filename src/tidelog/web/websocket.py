"""One WebSocket connection: handshake, messages, heartbeat, close.

`tidelog.web.http` reads the request and, when it asks for a WebSocket, hands the transport to what
is here. Everything about bytes is in `reader` and `handshake`, everything outbound in `fanout`;
this module is the connection's life.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, cast

from tidelog.base.metrics import Metrics
from tidelog.base.net.frame import CLOSE, PING, PONG, TEXT, close_frame, frame
from tidelog.base.serving.address_quota import NO_QUOTA, AddressQuota
from tidelog.base.serving.surface import Conversation, Endpoint, HttpResponse, Upgrade
from tidelog.base.settings.limits import Limits
from tidelog.web import handshake
from tidelog.web.addresses import Addresses
from tidelog.web.app import UNAUTHORIZED
from tidelog.web.deflate import agree, inflated
from tidelog.web.failures import log_failure
from tidelog.web.fanout import Fanout, FrameWriter
from tidelog.web.reader import (
    ABNORMAL,
    GOING_AWAY,
    INTERNAL_ERROR,
    NO_CODE,
    TRY_AGAIN_LATER,
    FrameReader,
    Violation,
    close_code,
)
from tidelog.web.routing import Paths
from tidelog.web.sockets import Sockets
from tidelog.web.unauthenticated import Unauthenticated

_PONGS_PER_CHUNK = 16
"""Pings answered one by one in what one read of the socket gave; of any more only the last is
answered, as RFC 6455, 5.5.3 allows. A flood of small pings would otherwise cost us more memory in
answers than it costs the peer to send."""
_TURN_BYTES: Final = 262_144
"""Of messages, restored if they were compressed, after which others have their turn. A socket that
is full is read 32 times in one turn, 8 MiB: eight peers that sent nothing but small messages, or
compressed ones of 64 KiB, held everybody up for 14 s."""
_FRAME_BYTES: Final = 1024
"""What a frame counts beside its payload: 256 of the smallest are a turn, 3 ms."""
_RETRY_AFTER_SECONDS: Final = b"5"
"""When a client that found the server full should come again."""
_Ending: TypeAlias = Callable[[asyncio.Transport], None]
_PING: Final = frame(PING, b"")
_NO_CODE_CLOSE: Final = frame(CLOSE, b"")


class WebSocket(FrameWriter, asyncio.Protocol):
    """The connection. It is the `Outlet` that its `Conversation` gets.

    It is `writable` until the first close frame, ours or the peer's. What the peer sends after ours
    is read only to find its answer.
    """

    __slots__ = (
        "_answered",
        "_close_at",
        "_close_code",
        "_conversation",
        "_ending",
        "_endpoint",
        "_held",
        "_is_unauthenticated",
        "_late_ping",
        "_local",
        "_neighbours",
        "_pinged_at",
        "_pings",
        "_quota",
        "_reader",
        "_service",
        "heard_at",
        "peer",
    )

    def __init__(self, service: "WebSocketService", neighbours: set[Any]) -> None:
        super().__init__(service.fanout)
        self._service = service
        self._neighbours = neighbours
        """The server's set of connections: it calls `shutdown` on each when it ends, and waits."""
        self.peer = ""
        self._local: tuple[str, int] | None = None
        """Address and port of this machine that the connection came in at."""
        self.heard_at = 0.0
        """Event-loop time at which the peer's last bytes came; part of a frame counts, because a
        peer cannot answer a ping in the middle of sending a large frame."""
        self._reader: FrameReader | None = None
        """None before the handshake and as soon as nothing the peer sends matters."""
        self._conversation: Conversation | None = None
        self._endpoint: Endpoint | None = None
        self._quota: AddressQuota | None = None
        """Who is counted for this connection, while it is."""
        self._is_unauthenticated = False
        """Whether it has yet to prove who it is."""
        self._close_code = ABNORMAL
        """Code of the first close frame, sent or received."""
        self._close_at = 0.0
        """When the connection is dropped because our close frame was not answered; 0 while open."""
        self._ending: _Ending | None = None
        """What to do with the transport once the close frame is written."""
        self._held = False
        """Whether the conversation has paused reading."""
        self._pinged_at = 0.0
        """When the peer was last pinged for its silence."""
        self._pings = 0
        """Pings in the current chunk."""
        self._late_ping: bytes | None = None
        """The last ping in the current chunk that has no answer yet."""

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport of an HTTP connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._neighbours.add(self)
        peername = transport.get_extra_info("peername")
        self.peer = str(peername[0]) if isinstance(peername, tuple) else ""
        sockname = transport.get_extra_info("sockname")
        if isinstance(sockname, tuple):
            self._local = (str(sockname[0]), int(sockname[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: tell the conversation, once."""
        del exc  # a reset and a FIN are the same to a conversation
        self.detach()
        self._neighbours.discard(self)
        self._reader = None
        self._service.unauthenticated.note(self, 0)
        if self._quota is not None:
            self._quota.leave()
            self._quota = None
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            self._service.sockets.remove(self)
            try:
                conversation.closed(self._close_code)
            except Exception as error:  # noqa: BLE001 - a surface's failure is not its neighbours'
                self._report(error, "closed")

    def data_received(self, data: bytes) -> None:
        """The upgrade request first, frames afterwards."""
        if self._reader is not None:
            self.heard_at = self._service.loop.time()
            self._service.sockets.received_bytes += len(data)
            self._reader.feed(data)
            self._read()
            if self._is_unauthenticated:
                self._note_held()
        elif self._endpoint is None:
            self._open(data)

    def eof_received(self) -> None:
        """The peer will send nothing more; returning None closes the transport."""

    # The surface calls these, and `push`.

    def close(self, code: int, reason: str = "") -> None:
        """Send what was pushed, then a close frame; later pushes are dropped."""
        if self.writable:
            failed = self._endpoint.unauthenticated_codes if self._endpoint is not None else ()
            if code in failed and self._quota is not None:
                self._quota.failed()
            self._send_close(code, close_frame(code, reason))
            if self._held:
                self.resume_reading()

    def admit(self) -> None:
        """Take messages as large as the endpoint takes them."""
        self._is_unauthenticated = False
        self._service.unauthenticated.note(self, 0)
        if self._reader is not None and self._endpoint is not None:
            self._reader.max_message_bytes = self._endpoint.max_message_bytes

    def _note_held(self) -> None:
        held = 0 if self._reader is None else self._reader.held_bytes
        self._service.unauthenticated.note(self, held)

    def give_way(self) -> None:
        """End, because all connections together hold too much that may be anybody's."""
        self._service.metrics.refusals.labels("unauthenticated_bytes").inc()
        self._fail(TRY_AGAIN_LATER, "too much is waiting of peers that nobody knows")

    def pause_reading(self) -> None:
        """Deliver nothing more until `resume_reading`, not even what was already read."""
        if not self._held and self.writable and self._transport is not None:
            self._held = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver what was held back, then read again."""
        if self._held:
            self._held = False
            self._service.loop.call_soon(self._resume)

    # HTTP, the loop, the server and the registry call these.

    @property
    def surface(self) -> str:
        """Name of the surface it belongs to; empty before the handshake."""
        return self._endpoint.surface if self._endpoint is not None else ""

    def shutdown(self) -> None:
        """Close because the server stops."""
        self.close(self._endpoint.shutdown_code if self._endpoint else GOING_AWAY)

    def sweep(self, now: float) -> None:
        """Drop a peer that did not answer a close or a ping; ping one that is silent."""
        if self._close_at:
            if now >= self._close_at:
                self.abort()
            return
        limits = self._service.limits
        if self._held or now - self.heard_at < limits.idle_timeout_ms / 1000:
            return
        if self._endpoint is None or not self._endpoint.heartbeat:
            return
        if self._pinged_at <= self.heard_at:
            self._pinged_at = now
            self.push(_PING)
        elif now - self._pinged_at >= limits.pong_timeout_ms / 1000:
            self.abort()

    # The connection's life.

    def _open(self, request: bytes) -> None:
        assert self._transport is not None  # noqa: S101 - connection_made was called
        answer = self._service.admit(request, self.peer, self._local)
        if isinstance(answer, HttpResponse):
            self._transport.write(handshake.encode(answer))
            self._transport.close()
            return
        self._endpoint, self._conversation, self._quota, response, self.deflates = answer
        limit = self._endpoint.max_message_bytes
        if self._endpoint.unauthenticated_codes:
            self._is_unauthenticated = True
            limit = min(limit, self._service.limits.unauthenticated_body_bytes)
        self._reader = FrameReader(limit, inflated if self.deflates else None)
        self.heard_at = self._service.loop.time()
        self._service.sockets.add(self)
        self.attach(self._transport)
        self._transport.write(response)
        try:
            self._conversation.opened(self)
        except Exception as error:  # noqa: BLE001 - a surface's failure is not its neighbours'
            self._report(error, "opened")
            self.close(INTERNAL_ERROR)

    def _read(self) -> None:
        """Deliver what was fed, until it is used up, held back or meaningless, or others' turn."""
        spent = 0
        try:
            while self._reader is not None and not self._held:
                if spent >= _TURN_BYTES and self._transport is not None:
                    self._transport.pause_reading()
                    self._service.loop.call_soon(self._resume)
                    return
                taken = self._reader.take()
                if taken is None:
                    break
                opcode, payload = taken
                spent += len(payload) + _FRAME_BYTES
                if opcode < CLOSE:
                    if self.writable and self._conversation is not None:
                        try:
                            self._conversation.received(payload, is_text=opcode == TEXT)
                        except Exception as error:  # noqa: BLE001 - as for `opened`
                            self._report(error, "received")
                            self.close(INTERNAL_ERROR)
                elif opcode == PING:
                    self._ping(payload)
                elif opcode == CLOSE:
                    self._closed_by_peer(close_code(payload))
        except Violation as violation:
            self._fail(violation.code, violation.reason)
        if self._pings:
            if self._late_ping is not None:
                self.push(frame(PONG, self._late_ping))
                self._late_ping = None
            self._pings = 0

    def _resume(self) -> None:
        if not self._held and self._transport is not None:
            self.heard_at = self._service.loop.time()  # whoever does not listen hears no silence
            self._transport.resume_reading()
            self._read()
            if self._is_unauthenticated:
                self._note_held()

    def _ping(self, payload: bytes) -> None:
        self._pings += 1
        if self._pings <= _PONGS_PER_CHUNK:
            self.push(frame(PONG, payload))
        else:
            self._late_ping = payload

    def _closed_by_peer(self, code: int) -> None:
        """The peer's close frame: echo it if it is the first, then end the connection."""
        self._reader = None
        if self.writable:
            echo = _NO_CODE_CLOSE if code == NO_CODE else close_frame(code)
            self._send_close(code, echo, _close)
        else:
            self._end(_close)

    def _fail(self, code: int, reason: str) -> None:
        """Fail the connection (RFC 6455, 7.1.7).

        Our side ends after the close frame; the peer's bytes are read and dropped until it ends its
        side too. Closing at once would answer them with a reset that can overtake the close frame.
        """
        self._reader = None
        if self.writable:
            self._send_close(code, close_frame(code, reason), _end_our_side)
        else:
            self._end(_end_our_side)

    def _send_close(self, code: int, encoded: bytes, ending: _Ending | None = None) -> None:
        self.push(encoded)
        self.writable = False
        self.attention = True
        self._ending = ending
        self._close_code = code
        self._close_at = self._service.loop.time() + self._service.limits.close_timeout_ms / 1000

    def _end(self, ending: _Ending) -> None:
        """End the connection, but not before our close frame is written."""
        if self.frames:
            self._ending = ending
        elif self._transport is not None:
            ending(self._transport)

    def wrote(self, size: int, messages: int) -> None:
        """Judge the peer's speed; after the close frame, end as the close asks."""
        super().wrote(size, messages)
        if self._ending is not None and self._transport is not None:
            ending, self._ending = self._ending, None
            ending(self._transport)

    def too_slow(self) -> None:
        """Drop the peer; its conversation is told the endpoint's own code."""
        if self._endpoint is not None and self._close_code == ABNORMAL:
            self._close_code = self._endpoint.slow_consumer_code
        super().too_slow()

    def _report(self, error: Exception, call: str) -> None:
        path = self._endpoint.path if self._endpoint is not None else ""
        log_failure(error, call, path, self.peer)


def _close(transport: asyncio.Transport) -> None:
    transport.close()


def _end_our_side(transport: asyncio.Transport) -> None:
    if transport.can_write_eof():
        transport.write_eof()
    else:  # TLS has no half-close
        transport.close()


class WebSocketService:
    """What all connections of one server share.

    Create it on the running event loop.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        fanout: Fanout,
        metrics: Metrics,
        limits: Limits,
        addresses: Addresses | None = None,
        unauthenticated: Unauthenticated | None = None,
        *,
        deflates: bool = False,
    ) -> None:
        """`deflates`: whether messages are compressed for clients that ask for it."""
        self.loop = asyncio.get_running_loop()
        self.fanout = fanout
        self.limits = limits
        self._addresses = addresses
        self._deflates = deflates
        self.unauthenticated = unauthenticated or Unauthenticated(
            limits.unauthenticated_total_bytes, metrics
        )
        self.sockets = Sockets(self.loop, metrics, limits)
        self.metrics = metrics
        self._paths: Paths[Endpoint] = Paths()
        for endpoint in endpoints:
            self._paths.add(endpoint.path, endpoint)

    def admit(
        self, request: bytes, peer: str, local: tuple[str, int] | None
    ) -> tuple[Endpoint, Conversation, AddressQuota, bytes, bool] | HttpResponse:
        """Judge an upgrade request: a conversation and the answer to send, or a refusal.

        With the answer: whether it says that messages are compressed.
        """
        opening = handshake.parse(request)
        if opening is None:
            return self._refused("upgrade", handshake.refuse(400, "malformed request target"))
        found = self._paths.find(opening.raw_path)
        if found is None:
            return self._refused("path", handshake.refuse(404, "no such WebSocket endpoint"))
        endpoint, params = found
        extension = None
        if self._deflates:
            extension = agree(opening.values(b"sec-websocket-extensions"))
        response = handshake.accept(opening, extension)
        if isinstance(response, HttpResponse):
            return self._refused("upgrade", response)
        if self.sockets.full:
            retry_after = (b"retry-after", _RETRY_AFTER_SECONDS)
            return self._refused(
                "connections", handshake.refuse(503, "too many connections", retry_after)
            )
        quota = NO_QUOTA
        if self._addresses is not None:
            quota = self._addresses.quota(peer, opening.headers)
        if endpoint.unauthenticated_codes and (wait := quota.wait_seconds()):
            retry_after = (b"retry-after", b"%d" % wait)
            refusal = handshake.refuse(429, handshake.TOO_MANY_FAILURES, retry_after)
            return self._refused("address_failures", refusal)
        upgrade = Upgrade(
            raw_path=opening.raw_path,
            query_string=opening.query_string,
            headers=opening.headers,
            peer=peer,
            params=params,
            local=local,
            quota=quota,
        )
        try:
            conversation = endpoint.accept(upgrade)
        except Exception as error:  # noqa: BLE001 - a surface's failure is not its neighbours'
            log_failure(error, "accept", endpoint.path, peer)
            return self._refused("failure", handshake.refuse(500, "Internal server error"))
        if isinstance(conversation, HttpResponse):
            if conversation.status == UNAUTHORIZED:
                quota.failed()
            return self._refused("endpoint", conversation)
        if not quota.enter():
            retry_after = (b"retry-after", _RETRY_AFTER_SECONDS)
            refusal = handshake.refuse(429, handshake.TOO_MANY_CONNECTIONS, retry_after)
            return self._refused("address_connections", refusal)
        return endpoint, conversation, quota, response, extension is not None

    def _refused(self, reason: str, response: HttpResponse) -> HttpResponse:
        self.metrics.refusals.labels(reason).inc()
        return response

    def connection(self, connections: set[Any]) -> WebSocket:
        """The protocol of one more connection, which is among `connections` while it lives."""
        return WebSocket(self, connections)

    async def close_all(self, patience_seconds: float | None = None) -> None:
        """See `Sockets.close_all`."""
        await self.sockets.close_all(patience_seconds)
