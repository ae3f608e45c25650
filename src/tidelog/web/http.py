"""uvicorn's HTTP protocol with the limits it does not have: header size, header time, connections.

Given to uvicorn's public `http=` option. It counts and times, and answers without ASGI in between:
one call, one write. Parsing, keep-alive and pipelining stay uvicorn's.
"""

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import Streamed
from tidelog.base.settings.limits import Limits
from tidelog.web.addresses import Addresses
from tidelog.web.app import HttpApp
from tidelog.web.cycle import Cycle
from tidelog.web.event_stream import EventStream
from tidelog.web.fanout import Fanout
from tidelog.web.handshake import TOO_MANY_CONNECTIONS, encode, refuse
from tidelog.web.sockets import Sockets
from tidelog.web.unauthenticated import Unauthenticated

if TYPE_CHECKING:
    from tidelog.base.serving.address_quota import AddressQuota

_log = logging.getLogger(__name__)

_strangers = logging.getLogger("tidelog.web.strangers")
"""Takes what uvicorn would log of malformed requests, and writes nothing: anybody could fill the
disk with such lines. They are counted instead."""
_strangers.setLevel(logging.CRITICAL)

MAX_PIPELINED = 16
"""Requests waiting after the one being answered. A read of a quarter megabyte can hold thousands;
each would be an object before the first is answered."""


TRAILER_SLACK_BYTES = 262_144
"""What one read of a socket can bring of a body together with the beginning of what follows it."""

LINGER_SECONDS = 1.0
"""How long the rest of a body that nobody wants is read and dropped."""


class LimitedHttp(HttpToolsProtocol):
    """One HTTP connection, watched while it is not known who sends its requests."""

    limits: Limits
    metrics: Metrics
    app_: HttpApp
    unauthenticated: Unauthenticated
    addresses: Addresses
    fanout: Fanout
    sockets: Sockets
    cycle: Cycle
    pipeline: deque[tuple[Cycle, Any]]  # type: ignore[assignment]  # `cycle` is ours

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _strangers
        self._awaiting_head = True
        self._has_begun = False
        """Whether part of a head is there."""
        self._heads = 0
        """Heads that have begun."""
        self._head_bytes = 0
        """Bytes received since the head began; what the parser holds cannot be more."""
        self._header_bytes = 0
        """Bytes of the headers parsed so far."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_head_timed = False
        """Whether that timer is the head's; before the first byte it is the connection's."""
        self._began_at = 0.0
        """Event-loop time of the first byte of the head."""
        self._quota: AddressQuota | None = None
        """Who is counted for this connection, while it is."""
        self._served: Cycle | None = None
        """The request that is being answered; `cycle` is the last one that came."""
        self._ending = False
        """Whether what comes is ignored, because the connection ends with the pending answer."""
        self._is_after_chunks = False
        """Whether a chunk has begun and nothing of it has come: what comes may be trailers."""
        self._trailer_bytes = 0
        """Received since then; the parser holds a trailer until it is whole."""
        self._unread_timer: asyncio.TimerHandle | None = None
        """Set while the peer has not taken everything that was written."""
        self._linger_timer: asyncio.TimerHandle | None = None
        """Set while the rest of a body that nobody wants is dropped."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Refuse at once what would be one connection too many."""
        if len(self.connections) >= self.limits.max_connections:
            self.transport = transport
            self._refuse("connections", 503, "too many connections", (b"retry-after", b"5"))
            return
        peername = transport.get_extra_info("peername")
        if not self.count_in(str(peername[0]) if isinstance(peername, tuple) else ""):
            self.transport = transport
            wait = (b"retry-after", b"5")
            self._refuse("address_connections", 429, TOO_MANY_CONNECTIONS, wait)
            return
        super().connection_made(transport)
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
        self._stop_head_timer()
        self._stop_unread_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        self.count_out()
        self.unauthenticated.note(self, 0)
        if self in self.connections:
            super().connection_lost(exc)
            self._unset_keepalive_if_required()  # which uvicorn does after an orderly end only
            self.pipeline.clear()
            self._head_bytes = self._trailer_bytes = 0
            self.cycle = self._served = None  # type: ignore[assignment]  # as before the first

    def data_received(self, data: bytes) -> None:
        """Count what comes before a head is complete."""
        if self.transport.is_closing() or self._ending:
            return
        was_awaiting, had_begun, heads = self._awaiting_head, self._has_begun, self._heads
        super().data_received(data)
        self._count_trailers(data)
        new_heads = self._heads - heads
        if self._has_begun:  # part of a head is there
            if was_awaiting and new_heads == (not had_begun):
                self._head_bytes += len(data)
            else:  # other requests came with it; it is no more than this
                self._head_bytes = min(len(data), self.limits.max_header_bytes)
        elif was_awaiting and not had_begun and not new_heads:
            self._head_bytes += len(data)  # empty lines, which may stand before a head
        if self._awaiting_head and self._head_bytes and not self._ending:
            if self._head_bytes > self.limits.max_header_bytes:
                self._refuse("header_size", 431, "the request's headers are too large")
            elif not self._is_head_timed and not self.transport.is_closing():
                self._is_head_timed = True  # only part of a head has come
                limits = self.limits
                wait_ms = min(limits.header_timeout_ms, limits.unauthenticated_timeout_ms)
                self._start_head_timer(wait_ms / 1000)
        if not self.transport.is_closing():
            self._note_held()

    def _count_trailers(self, data: bytes) -> None:
        self._trailer_bytes = self._trailer_bytes + len(data) if self._is_after_chunks else 0
        if self._trailer_bytes > self.limits.max_header_bytes + TRAILER_SLACK_BYTES:
            self._refuse("header_size", 431, "what follows the request's body is too large")

    def on_chunk_header(self) -> None:
        """A chunk begins; the last one has no body, but trailers."""
        self._is_after_chunks = True

    def on_message_begin(self) -> None:
        """A new head begins; none is read once the connection is to end."""
        if self._ending:
            raise ConnectionAbortedError("the connection ends after the responses that are pending")
        self._header_bytes = 0
        self._has_begun = True
        self._heads += 1
        self._began_at = self.loop.time()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header while there is room for it; what follows a body is none."""
        if not self._awaiting_head:
            return
        self._header_bytes += len(name) + len(value) + 4
        if (
            self._header_bytes <= self.limits.max_header_bytes
            and len(self.headers) <= self.limits.max_headers
        ):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete: stop the watch, refuse what was too much."""
        self._awaiting_head = self._has_begun = False
        self._head_bytes = 0
        self._stop_head_timer()
        if (
            self._header_bytes + len(self.url) > self.limits.max_header_bytes
            or len(self.headers) > self.limits.max_headers
        ):
            self._refuse("header_size", 431, "the request's headers are too large")
        else:
            self._begin_cycle()

    def _begin_cycle(self) -> None:
        """As uvicorn begins one, without what only ASGI needs."""
        parser = self.parser
        self.scope["method"] = parser.get_method().decode("ascii")
        if parser.should_upgrade() and self._should_upgrade():
            return
        url = httptools.parse_url(self.url)
        self.scope["raw_path"] = url.path or b"/"
        self.scope["query_string"] = url.query or b""
        before: Cycle | None = self.cycle  # None before the first request
        self.cycle = Cycle(
            head_bytes=self._header_bytes + len(self.url),
            deadline=self._began_at + self.limits.unauthenticated_timeout_ms / 1000,
            on_admitted=self._note_held,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=parser.get_http_version() != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, None)
        else:
            self.cycle.deadline = math.inf  # until it is its turn, nobody waits for it
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Ignore the body of a refused request; let a stranger send no more than may be held."""
        self._is_after_chunks = False
        if not self.transport.is_closing() and not self._ending:
            super().on_body(body)
            cycle = self.cycle
            if not cycle.is_admitted and len(cycle.body) > self.limits.unauthenticated_body_bytes:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The next bytes belong to the next head."""
        self._awaiting_head = True
        self._is_after_chunks = False
        if not self.transport.is_closing() and not self._ending:
            super().on_message_complete()
            if len(self.pipeline) >= MAX_PIPELINED:
                self._end_after_pending()

    def _start_asgi_task(self, cycle: Cycle, app: Any) -> None:  # type: ignore[override]  # ours
        """Answer a request; uvicorn would call `app` instead."""
        del app
        self._served = cycle
        if cycle.deadline == math.inf:
            cycle.deadline = self.loop.time() + self.limits.unauthenticated_timeout_ms / 1000
        task = self.loop.create_task(self._answer(cycle))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer(self, cycle: Cycle) -> None:
        try:
            response = await self.app_.respond(cycle)
        except Exception:  # noqa: BLE001 - a peer must not be left without an answer
            _log.exception("answering failed")
            response = refuse(500, "Internal server error")
            cycle.keep_alive = False
        if cycle.more_body:
            cycle.keep_alive = False  # nobody reads the rest of a body that was not wanted
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if cycle.disconnected or self.transport.is_closing():
            return
        if isinstance(response, Streamed) and cycle.scope["method"] != "HEAD":
            self._stream(cycle, response)
            return
        cycle.keep_alive = cycle.keep_alive and (b"connection", b"close") not in response.headers
        answer = encode(
            response, keep_alive=cycle.keep_alive, common=self.server_state.default_headers
        )
        if cycle.scope["method"] == "HEAD":
            answer = answer[: len(answer) - len(response.body)]
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        self.transport.write(answer)
        if cycle.more_body:
            self._linger()
        elif not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        self._note_held()

    def _stream(self, cycle: Cycle, response: Streamed) -> None:
        """Become a connection that is sent events; nothing more is read from it."""
        common = self.server_state.default_headers
        self.count_out()  # from here on it counts for whoever a proxy speaks for
        if not response.quota.enter():
            self.metrics.refusals.labels("address_connections").inc()
            refusal = refuse(429, TOO_MANY_CONNECTIONS, (b"retry-after", b"5"))
            self.transport.write(encode(refusal, common=common))
            self.transport.close()
            return
        cycle.response_started = cycle.response_complete = True
        self._stop_head_timer()
        self._stop_unread_timer()
        self._unset_keepalive_if_required()
        self.unauthenticated.note(self, 0)
        self.pipeline.clear()
        self.flow.resume_reading()  # an end of the connection is noticed by reading
        self.connections.discard(self)
        self.cycle = self._served = None  # type: ignore[assignment]  # as before the first
        stream = EventStream(response, self.fanout, self.sockets, self.connections)
        stream.begin(self.transport, encode(response, common=common))

    def _linger(self) -> None:
        """Drop for a moment what is still being sent of a body that nobody wants.

        A connection that is closed on a peer which is still sending is reset, and the reset can
        overtake the answer.
        """
        self._ending = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # TLS has no half-close
            self.transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # Peers that do not read.

    def pause_writing(self) -> None:
        """The socket did not take everything."""
        super().pause_writing()
        self._watch_unread()

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        super().resume_writing()
        self._stop_unread_timer()

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

    def _note_held(self) -> None:
        held = self._head_bytes + self._trailer_bytes
        if self._served is not None:
            held += self._served.unproven_bytes
        for cycle, _ in self.pipeline:
            held += cycle.unproven_bytes
        self.unauthenticated.note(self, held)

    def give_way(self) -> None:
        """End, because all connections together hold too much that may be anybody's."""
        self.metrics.refusals.labels("unauthenticated_bytes").inc()
        served = self._served
        self._ending = True
        self._stop_head_timer()
        if served is None or served.response_complete or served.more_body:
            error = (
                "too much is waiting of requests that nobody has proved to have sent (setting "
                "limits.unauthenticated_total_bytes)"
            )
            self.transport.write(encode(refuse(503, error, (b"retry-after", b"1"))))
            self.transport.close()
        else:
            served.keep_alive = False  # it is whole, and will be answered; nothing after it is
        self.pipeline.clear()

    def _start_head_timer(self, seconds: float) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(seconds, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        self._is_head_timed = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        if self.transport.is_closing():
            return
        if self._has_begun and any(name == b"upgrade" for name, _ in self.headers):
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
        last: Cycle | None = self.cycle  # None before the first request
        if last is None or last.response_complete:
            return False
        last.keep_alive = False  # those before it are answered first, in their order
        self._ending = True
        return True

    def send_400_response(self, msg: str) -> None:
        """Not HTTP; unless an earlier request is unanswered, say so."""
        self.metrics.refusals.labels("malformed").inc()
        if not self._end_after_pending():
            self.transport.write(encode(refuse(400, msg)))
            self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """Switch protocols; not while an earlier request is unanswered."""
        if not self._end_after_pending():
            self._stop_unread_timer()
            self.count_out()  # from here on it counts as a socket, perhaps for whom a proxy speaks
            super().handle_websocket_upgrade()


def http_protocol(
    app: HttpApp,
    limits: Limits,
    metrics: Metrics,
    addresses: Addresses,
    unauthenticated: Unauthenticated,
    fanout: Fanout,
    sockets: Sockets,
) -> type[asyncio.Protocol]:
    """The class for `uvicorn.Config(http=...)`."""
    bound = {
        "app_": app,
        "limits": limits,
        "metrics": metrics,
        "addresses": addresses,
        "unauthenticated": unauthenticated,
        "fanout": fanout,
        "sockets": sockets,
    }
    return type("BoundHttp", (LimitedHttp,), bound)
