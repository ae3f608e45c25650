"""One HTTP/1.1 connection: parsed by httptools, limited, and answered with one write.

What is between a socket and a route is here and no server's of ASGI, because those make a scope, an
event and a task of every request, which cost more than most requests do themselves.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools

from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import HttpResponse, Streamed
from tidelog.base.settings.limits import Limits
from tidelog.web.addresses import Addresses
from tidelog.web.app import HttpApp
from tidelog.web.cycle import Cycle
from tidelog.web.event_stream import EventStream
from tidelog.web.fanout import Fanout
from tidelog.web.handshake import TOO_MANY_CONNECTIONS, UNAVAILABLE, encode, refuse
from tidelog.web.sockets import Sockets
from tidelog.web.unauthenticated import Unauthenticated

if TYPE_CHECKING:
    from tidelog.base.serving.address_quota import AddressQuota
    from tidelog.web.server import PortServer

_log = logging.getLogger(__name__)

MAX_PIPELINED = 16
"""Requests waiting after the one being answered. A read of a quarter megabyte can hold thousands;
each would be an object before the first is answered."""

HIGH_WATER_BYTES = 65_536
"""Of a body that nobody has asked for yet; then reading pauses."""

TRAILER_SLACK_BYTES = 262_144
"""What one read of a socket can bring of a body together with the beginning of what follows it."""

LINGER_SECONDS = 1.0
"""How long the rest of a body that nobody wants is read and dropped."""

_CLOSE = (b"connection", b"close")

_ENDING = refuse(
    503,
    "the server is shutting down; retry against another one",
    (b"retry-after", b"1"),
    code=UNAVAILABLE,
)


class LimitedHttp(asyncio.Protocol):
    """One HTTP connection, watched while it is not known who sends its requests."""

    limits: Limits
    metrics: Metrics
    app: HttpApp
    unauthenticated: Unauthenticated
    addresses: Addresses
    fanout: Fanout
    sockets: Sockets

    transport: asyncio.Transport

    def __init__(self, server: "PortServer") -> None:
        self.loop = asyncio.get_running_loop()
        self._server = server
        self.connections = server.connections
        """All of the server's, HTTP and WebSocket."""
        self._parser = self._new_parser()
        self.peer = ""
        self.local: tuple[str, int] | None = None
        # The head that is coming.
        self._awaiting_head = True
        self._has_begun = False
        """Whether part of a head is there."""
        self._heads = 0
        """Heads that have begun."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        """Bytes received since the head began; what the parser holds cannot be more."""
        self._header_bytes = 0
        """Bytes of the headers parsed so far."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_head_timed = False
        """Whether that timer is the head's; before the first byte it is the connection's."""
        self._began_at = 0.0
        """Event-loop time of the first byte of the head."""
        # Requests.
        self._arriving: Cycle | None = None
        """The request whose body is coming."""
        self.cycle: Cycle | None = None
        """The last one that came."""
        self._served: Cycle | None = None
        """The one that is being answered."""
        self._is_begun = False
        """Whether somebody is at it."""
        self._pipeline: deque[Cycle] = deque()
        """Those that came after it."""
        self._ending = False
        """Whether what comes is ignored, because the connection ends with the pending answer."""
        self._is_after_chunks = False
        """Whether a chunk has begun and nothing of it has come: what comes may be trailers."""
        self._trailer_bytes = 0
        """Received since then; the parser holds a trailer until it is whole."""
        self._is_held = False
        """Whether something is noted as held of requests that may be anybody's."""
        # The connection.
        self._quota: AddressQuota | None = None
        """Who is counted for this connection, while it is."""
        self._is_read_paused = False
        self.is_write_paused = False
        """Whether the peer has not taken everything that was written."""
        self._late: HttpResponse | None = None
        """The answer that waits until it has."""
        self._unread_timer: asyncio.TimerHandle | None = None
        """Set while it has not."""
        self._linger_timer: asyncio.TimerHandle | None = None
        """Set while the rest of a body that nobody wants is dropped."""
        self._idle_since = 0.0
        """Event-loop time of the last answer."""
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's are no subclass
        """Refuse at once what would be one connection too many."""
        self.transport = transport
        if self._server.is_leaving:  # accepted in the last moment: all others were told to end
            transport.close()
            return
        if len(self.connections) >= self.limits.max_connections:
            self._refuse("connections", 503, "too many connections", (b"retry-after", b"5"))
            return
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self.local = (str(local[0]), int(local[1])) if isinstance(local, tuple) else None
        if not self.count_in(self.peer):
            wait = (b"retry-after", b"5")
            self._refuse("address_connections", 429, TOO_MANY_CONNECTIONS, wait)
            return
        self.connections.add(self)
        transport.set_write_buffer_limits(high=1)  # whatever is left unsent is watched
        self._start_head_timer(self.limits.header_timeout_ms / 1000)

    def count_in(self, peer: str) -> bool:
        """Count the connection for its address, unless it is; False if it is one too many."""
        if self._quota is None:
            quota = self.addresses.quota(peer)
            if not quota.enter():
                return False
            self._quota = quota
        return True

    def count_out(self) -> None:
        """Count it no more."""
        if self._quota is not None:
            self._quota.leave()
            self._quota = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching, and let go of everything that leads back here.

        A connection and its request know each other. Left to the search for garbage in cycles, a
        thousand refused bodies are held until it comes, and given back while everybody waits.
        """
        del exc
        self._stop_timers()
        self.count_out()
        self.connections.discard(self)
        self._head_bytes = self._trailer_bytes = 0
        self._pipeline.clear()
        if self._served is not None:
            self._served.cut()
        self._parser = self._late = self._arriving = self.cycle = self._served = None
        self.note_held()

    def shutdown(self) -> None:
        """The server ends: so does this, after what is being answered.

        A request that is not whole is answered at once. Nobody has begun with it, and everybody
        else would wait for the rest of it.
        """
        cycle = self.cycle
        if cycle is None or cycle.is_answered:
            self.transport.close()
        elif cycle is self._served and cycle.more_body and self._late is None:
            self.transport.write(encode(_ENDING))
            self.transport.close()
        else:
            cycle.keep_alive = False

    # What comes.

    def data_received(self, data: bytes) -> None:
        """Parse it, count what comes before a head is complete, and begin with what is there."""
        if self.transport.is_closing() or self._ending:
            return
        was_awaiting, had_begun, heads = self._awaiting_head, self._has_begun, self._heads
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse("malformed", 400, "Invalid HTTP request received.")
            if self._arriving is not None:
                self._arriving.cut()
        if self._is_after_chunks or self._trailer_bytes:
            self._count_trailers(data)
        new_heads = self._heads - heads
        if self._has_begun:  # part of a head is there
            if was_awaiting and new_heads == (not had_begun):
                self._head_bytes += len(data)
            else:  # other requests came with it; it is no more than this
                self._head_bytes = min(len(data), self.limits.max_header_bytes)
        elif was_awaiting and not had_begun and not new_heads:
            self._head_bytes += len(data)  # empty lines, which may stand before a head
        if self._head_bytes and self._awaiting_head and not self._ending:
            self._watch_head()
        if self.transport.is_closing():
            return
        if self._served is not None and not self._is_begun:
            self._begin(self._served)
        if self._pipeline:
            self._pause_reading()
        self.note_held()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # What follows a request that ends the connection is ignored, but that one is answered.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _parse(self, data: bytes) -> None:
        """Parse it; a request to become what we are not is read again without that wish.

        The parser takes whatever follows it for the other protocol, its body too. But a client that
        offers HTTP/2 (`Upgrade: h2c`) sends a body, and a proxy that hands on both would take what
        is in that body for no request, where the parser would find one.

        Raises:
            httptools.HttpParserError: it is no HTTP.
        """
        while not (self._ending or self.transport.is_closing()):
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self._wants_websocket():
                    self._switch_protocols()
                    return
                if self._parser.get_method() == b"CONNECT":  # nothing else is asked for
                    raise httptools.HttpParserInvalidMethodError("we are no proxy") from None
                data = self._head(without=b"upgrade") + data[upgrade.args[0] :]
                self._parser = self._new_parser()

    def _head(self, *, without: bytes = b"") -> bytes:
        """The head that was parsed last, but one of its headers."""
        fields = [b"%s: %s\r\n" % header for header in self._headers if header[0] != without]
        version = self._parser.get_http_version().encode()
        line = b"%s %s HTTP/%s\r\n" % (self._parser.get_method(), self._url, version)
        return b"".join((line, *fields, b"\r\n"))

    def _watch_head(self) -> None:
        """Only part of a head has come."""
        limits = self.limits
        if self._head_bytes > limits.max_header_bytes:
            self._refuse("header_size", 431, "the request's headers are too large")
        elif not self._is_head_timed and not self.transport.is_closing():
            self._is_head_timed = True
            wait_ms = min(limits.header_timeout_ms, limits.unauthenticated_timeout_ms)
            self._start_head_timer(wait_ms / 1000)

    def _count_trailers(self, data: bytes) -> None:
        self._trailer_bytes = self._trailer_bytes + len(data) if self._is_after_chunks else 0
        if self._trailer_bytes > self.limits.max_header_bytes + TRAILER_SLACK_BYTES:
            self._refuse("header_size", 431, "what follows the request's body is too large")

    # The parser calls these.

    def on_chunk_header(self) -> None:
        """A chunk begins; the last one has no body, but trailers."""
        self._is_after_chunks = True

    def on_message_begin(self) -> None:
        """A new head begins; none is read once the connection is to end."""
        if self._ending:
            raise ConnectionAbortedError("the connection ends after the responses that are pending")
        self._url = b""
        self._headers = []
        self._header_bytes = 0
        self._has_begun = True
        self._heads += 1
        self._began_at = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """Part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header while there is room for it; what follows a body is none."""
        if not self._awaiting_head:
            return
        self._header_bytes += len(name) + len(value) + 4
        if (
            self._header_bytes <= self.limits.max_header_bytes
            and len(self._headers) <= self.limits.max_headers
        ):
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete: stop the watch, refuse what was too much."""
        self._awaiting_head = self._has_begun = False
        self._head_bytes = 0
        self._stop_head_timer()
        head_bytes = self._header_bytes + len(self._url)
        if (
            head_bytes > self.limits.max_header_bytes
            or len(self._headers) > self.limits.max_headers
        ):
            self._refuse("header_size", 431, "the request's headers are too large")
            return
        parser = self._parser
        if parser.should_upgrade():
            return  # see `_parse`
        raw_path, query_string = split_target(self._url)
        cycle = Cycle(
            self,
            parser.get_method().decode("ascii"),
            raw_path,
            query_string,
            self._headers,
            head_bytes,
            self._began_at,
            keep_alive=parser.should_keep_alive() and parser.get_http_version() != "1.0",
        )
        self.cycle = self._arriving = cycle
        if self._served is None:
            self._served = cycle
            self._is_begun = False
        else:
            self._pipeline.append(cycle)

    def on_body(self, body: bytes) -> None:
        """Ignore the body of a refused request; let a stranger send no more than may be held."""
        self._is_after_chunks = False
        cycle = self._arriving
        if cycle is None or cycle.is_answered or self._ending or self.transport.is_closing():
            return
        cycle.add(body)
        held = len(cycle.body)
        if held > HIGH_WATER_BYTES or (
            not cycle.is_admitted and held > self.limits.unauthenticated_body_bytes
        ):
            self._pause_reading()

    def on_message_complete(self) -> None:
        """The next bytes belong to the next head."""
        self._awaiting_head = True
        self._is_after_chunks = False
        cycle, self._arriving = self._arriving, None
        if cycle is None or cycle.is_answered or self._ending or self.transport.is_closing():
            return
        cycle.more_body = False
        cycle.wake()
        if len(self._pipeline) >= MAX_PIPELINED:
            self._end_after_pending()

    def _wants_websocket(self) -> bool:
        """Whether that is the upgrade which the parser has found."""
        return any(n == b"upgrade" and v.lower() == b"websocket" for n, v in self._headers)

    def _switch_protocols(self) -> None:
        """Become a WebSocket; not while an earlier request is unanswered."""
        if self._end_after_pending():
            return
        self._stop_timers()
        self.count_out()  # from here on it counts as a socket, perhaps for whom a proxy speaks
        self.connections.discard(self)
        request = self._head()
        self.unauthenticated.note(self, 0)
        socket = self._server.websocket(self.connections)
        socket.connection_made(self.transport)
        socket.data_received(request)
        self.transport.set_protocol(socket)
        self._parser = None

    # What is answered.

    def _begin(self, cycle: Cycle) -> None:
        """Let the request be answered whose turn it is."""
        self._is_begun = True
        work = self.app.begin(cycle, partial(self._reply, cycle))
        if work is not None:
            task = self.loop.create_task(work)
            tasks = self._server.tasks
            task.add_done_callback(tasks.discard)
            tasks.add(task)

    def _reply(self, cycle: Cycle, response: HttpResponse) -> None:
        """Send the answer of a request, unless nobody is there for it any more."""
        if cycle is not self._served or self.transport.is_closing():
            return
        if self.is_write_paused:
            self._late = response
            return
        if cycle.more_body:
            cycle.keep_alive = False  # nobody reads the rest of a body that was not wanted
        is_head = cycle.method == "HEAD"
        if isinstance(response, Streamed) and not is_head:
            self._stream(response)
            return
        if response.headers and _CLOSE in response.headers:
            cycle.keep_alive = False
        answer = encode(response, keep_alive=cycle.keep_alive, common=self._server.common_headers)
        if is_head:
            answer = answer[: len(answer) - len(response.body)]
        cycle.is_answered = True
        self.transport.write(answer)
        if cycle.more_body:
            self._linger()
        elif not cycle.keep_alive:
            self.transport.close()
        else:
            self._go_on()
        self.note_held()

    def _go_on(self) -> None:
        """An answer is sent: the next request has its turn, or is waited for."""
        self._served = None
        self.resume_reading()
        if self._pipeline:
            self._served = cycle = self._pipeline.popleft()
            cycle.began_at = self.loop.time()  # so far nobody has waited for it
            self._begin(cycle)
        else:
            self._idle_since = self.loop.time()
            if self._idle_timer is None:
                self._watch_idle(self._server.keep_alive_seconds)

    def _watch_idle(self, seconds: float) -> None:
        """One timer for many requests: to set one for each costs 1 µs."""
        self._idle_timer = self.loop.call_later(seconds, self._on_idle)

    def _on_idle(self) -> None:
        self._idle_timer = None
        if self._served is not None or self._has_begun or self._head_bytes:
            return  # begins again with the next answer
        left = self._idle_since + self._server.keep_alive_seconds - self.loop.time()
        if left > 0:
            self._watch_idle(left)
        else:
            self.transport.close()

    def _stream(self, response: Streamed) -> None:
        """Become a connection that is sent events; nothing more is read from it."""
        common = self._server.common_headers
        self.count_out()  # from here on it counts for whoever a proxy speaks for
        if not response.quota.enter():
            self.metrics.refusals.labels("address_connections").inc()
            refusal = refuse(429, TOO_MANY_CONNECTIONS, (b"retry-after", b"5"))
            self.transport.write(encode(refusal, common=common))
            self.transport.close()
            return
        self._stop_timers()
        self.unauthenticated.note(self, 0)
        self._pipeline.clear()
        self.resume_reading()  # an end of the connection is noticed by reading
        self.connections.discard(self)
        self._parser = self._arriving = self.cycle = self._served = None
        stream = EventStream(response, self.fanout, self.sockets, self.connections)
        stream.begin(self.transport, encode(response, common=common))

    def _linger(self) -> None:
        """Drop for a moment what is still being sent of a body that nobody wants.

        A connection that is closed on a peer which is still sending is reset, and the reset can
        overtake the answer.
        """
        self._ending = True
        self._head_bytes = self._trailer_bytes = 0
        self.resume_reading()
        if self.transport.can_write_eof():  # TLS has no half-close
            self.transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # Reading and writing.

    def _pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if reading was paused."""
        if self._is_read_paused:
            self._is_read_paused = False
            self.transport.resume_reading()

    # Peers that do not read.

    def pause_writing(self) -> None:
        """The socket did not take everything."""
        self.is_write_paused = True
        self._watch_unread()

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        self.is_write_paused = False
        self._stop_unread_timer()
        late, self._late = self._late, None
        if late is not None and self._served is not None:
            self._reply(self._served, late)

    def _watch_unread(self) -> None:
        seconds, unread = self.limits.idle_timeout_ms / 1000, self._unread_bytes()
        self._stop_unread_timer()
        self._unread_timer = self.loop.call_later(seconds, self._on_unread, unread)

    def _on_unread(self, before: int) -> None:
        """Even a close waits until everything is read, and so would the connection for ever."""
        if self._unread_bytes() < before:
            self._watch_unread()
        else:
            self.metrics.refusals.labels("unread").inc()
            self.transport.abort()

    def _unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    # What is held of requests that may be anybody's.

    def note_held(self) -> None:
        """Tell how much that is; mostly nothing, as it was before."""
        held = self._head_bytes + self._trailer_bytes
        if self._served is not None:
            held += self._served.unproven_bytes
        for cycle in self._pipeline:
            held += cycle.unproven_bytes
        if held or self._is_held:
            self._is_held = held > 0
            self.unauthenticated.note(self, held)

    def give_way(self) -> None:
        """End, because all connections together hold too much that may be anybody's."""
        self.metrics.refusals.labels("unauthenticated_bytes").inc()
        served = self._served
        self._is_held = False
        self._ending = True
        self._stop_head_timer()
        if served is None or served.is_answered or served.more_body:
            error = (
                "too much is waiting of requests that nobody has proved to have sent (setting "
                "limits.unauthenticated_total_bytes)"
            )
            self.transport.write(encode(refuse(503, error, (b"retry-after", b"1"))))
            self.transport.close()
        else:
            served.keep_alive = False  # it is whole, and will be answered; nothing after it is
        self._pipeline.clear()

    def _start_head_timer(self, seconds: float) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(seconds, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        self._is_head_timed = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_unread_timer()
        for timer in (self._linger_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._linger_timer = self._idle_timer = None

    def _on_head_timeout(self) -> None:
        if self.transport.is_closing():
            return
        if self._has_begun and any(name == b"upgrade" for name, _ in self._headers):
            left = self._began_at + self.limits.header_timeout_ms / 1000 - self.loop.time()
            if left > 0:  # handshakes of sockets have more time
                self._start_head_timer(left)
                return
        self._refuse("header_timeout", 408, "the request's headers did not arrive in time")

    def _refuse(self, reason: str, status: int, error: str, *headers: tuple[bytes, bytes]) -> None:
        self.metrics.refusals.labels(reason).inc()
        if not self._end_after_pending():
            self.transport.write(encode(refuse(status, error, *headers)))
            self.transport.close()

    def _end_after_pending(self) -> bool:
        """Whether an earlier request of this connection is still unanswered.

        Then nothing may be written now: the peer would take it for that request's answer. The
        connection ends after it instead.
        """
        self._stop_head_timer()
        last = self.cycle
        if last is None or last.is_answered:
            return False
        last.keep_alive = False  # those before it are answered first, in their order
        self._ending = True
        return True


def split_target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target, both as they came.

    Raises:
        httptools.HttpParserInvalidURLError: it is no URL.
    """
    if url.startswith(b"/") and b"#" not in url:  # nearly always; the parser checked its bytes
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""


def http_protocol(
    app: HttpApp,
    limits: Limits,
    metrics: Metrics,
    addresses: Addresses,
    unauthenticated: Unauthenticated,
    fanout: Fanout,
    sockets: Sockets,
) -> type[LimitedHttp]:
    """The class of a server's connections."""
    bound = {
        "app": app,
        "limits": limits,
        "metrics": metrics,
        "addresses": addresses,
        "unauthenticated": unauthenticated,
        "fanout": fanout,
        "sockets": sockets,
    }
    return type("BoundHttp", (LimitedHttp,), bound)
