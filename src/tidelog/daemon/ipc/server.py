"""HTTP/1.1 for callers on this machine: a Unix socket, and a loopback port if wanted (mesh 3).

A small server of our own, because a web framework would cost the daemon its start time and its
memory. Heads are judged before bodies are read; a caller can hold one request, for a limited time.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import httptools

from tidelog.daemon.ipc.gate import Gate
from tidelog.daemon.ipc.http import Request, Response, Stream, Transport, refuse
from tidelog.daemon.ipc.token_file import TokenFile
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.settings import IpcSettings

_log = logging.getLogger(__name__)

SOCKET_NAME = "daemon.sock"

_DISCARDED_BODIES = 8
"""A refused request's body is read and dropped up to so many times the allowed size, so that the
caller gets to read why it was refused; then the connection is cut."""

_PIPELINED = 16
"""Requests of one connection that may wait for their turn."""

Respond = Callable[[Request], Awaitable[Response | Stream]]


class IpcServer:
    """The listening sockets and what all connections share."""

    def __init__(
        self,
        respond: Respond,
        settings: IpcSettings,
        metrics: DaemonMetrics,
        token: TokenFile | None = None,
        paths: frozenset[str] = frozenset(),
    ) -> None:
        """`token` is needed for `start_tcp` only; `paths` are those that metrics name."""
        self.paths = paths
        self.respond = respond
        self.settings = settings
        self.metrics = metrics
        self.gate = Gate(settings, token, lambda: time.monotonic() * 1000)
        self.connections: set[_Connection] = set()
        self.in_flight = 0
        """Requests whose head was let in and that are not answered."""
        self.idle = asyncio.Event()
        """Set while no request is in flight."""
        self.idle.set()
        self.streams = 0
        self._has_token = token is not None
        self._servers: list[asyncio.Server] = []
        self._socket_path: Path | None = None

    async def start_unix(self, path: Path) -> None:
        """Listen on a Unix socket that only this user can open.

        A socket that a killed daemon left is replaced: the caller holds the directory's lock.
        """
        listener = _unix_listener(path)
        try:
            loop = asyncio.get_running_loop()
            self._servers.append(
                await loop.create_unix_server(lambda: _Connection(self, "unix"), sock=listener)
            )
        except BaseException:
            listener.close()
            raise
        self._socket_path = path

    async def start_tcp(self, port: int = 0) -> int:
        """Listen on 127.0.0.1; returns the port."""
        if not self._has_token:
            raise ValueError("a TCP port needs a token")
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self, "tcp"), "127.0.0.1", port)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def close(self, grace_s: float = 2.0) -> None:
        """Take no new connection, let requests finish, then cut what is left."""
        for server in self._servers:
            server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.idle.wait()
        for connection in list(self.connections):
            connection.cut()
        if self._socket_path is not None:
            _remove(self._socket_path)
        await asyncio.sleep(0)


def _unix_listener(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)  # the mode must be right from the first moment
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old)
    return listener


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


class _Exchange:
    """A request and its answer, in the order of its connection."""

    __slots__ = ("answer", "body", "body_bytes", "counted", "is_written", "keep_alive", "request")

    def __init__(self, request: Request, *, keep_alive: bool) -> None:
        self.request = request
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.answer: Response | Stream | None = None
        self.counted = False
        """Whether it is one of the server's requests in flight."""
        self.is_written = False


class _Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, server: IpcServer, kind: Transport) -> None:
        self._server = server
        self._settings = server.settings
        self._kind: Transport = kind
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[_Exchange] = deque()
        self._arriving: _Exchange | None = None
        """The exchange whose body is being read."""
        self._in_head = False
        self._head_bytes = 0
        """Bytes read since a head began; what the parser holds cannot be more."""
        self._is_head_only = True
        """Whether what was read last holds nothing of an earlier request."""
        self._url = b""
        self._headers: list[tuple[str, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._port: _StreamPort | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_paused = False
        """Whether the caller reads too slowly for more to be written."""
        self._is_ending = False
        """Whether the connection ends with what is already to be answered."""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        server = self._server
        if len(server.connections) >= self._settings.max_connections:
            self._is_ending = True
            busy = refuse(429, "daemon_busy", "too many connections", ("retry-after", "1"))
            self._transport.write(busy.encode(closing=True))
            self._transport.close()
            return
        server.connections.add(self)
        self._watch(self._settings.keep_alive_timeout_ms, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._server.connections.discard(self)
        for exchange in self._exchanges:
            self._release(exchange)
        if self._port is not None:
            self._port.lost()

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._port is None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._watch(self._settings.body_timeout_ms, None)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._port is not None:
            self._port.resume()
        elif not self._transport.is_closing():
            self._transport.resume_reading()
            self._unwatch()
            if self._in_head or self._arriving is not None:  # it may go on now, for a while
                self._watch(self._settings.body_timeout_ms, "the request did not arrive in time")
            self._flush()

    def data_received(self, data: bytes) -> None:
        if self._is_ending or self._port is not None:
            return  # nothing more is read from this caller
        self._is_head_only = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end(refuse(400, "schema_invalid", "there is nothing to upgrade to"))
        except httptools.HttpParserError:
            self._end(refuse(400, "schema_invalid", "not an HTTP request"))
        if self._in_head and self._is_head_only:
            self._head_bytes += len(data)
        if self._in_head and self._head_bytes > self._settings.max_header_bytes:
            self._end(refuse(431, "headers_too_large", "the request's head is too large"))

    def cut(self) -> None:
        """End it now."""
        self._transport.abort()

    # httptools' side; none of these may raise

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []
        self._watch(self._settings.header_timeout_ms, "the request's head did not arrive in time")

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is None:  # what follows a body is not a header
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._watch(self._settings.body_timeout_ms, "the request's body did not arrive in time")
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            query_string=query,
            headers=self._headers,
            transport=self._kind,
        )
        exchange = _Exchange(request, keep_alive=self._parser.should_keep_alive())
        self._arriving = exchange
        self._exchanges.append(exchange)
        refusal = self._judge(request)
        if refusal is not None:
            exchange.answer = refusal
            self._flush()
        elif request.values("expect") == ["100-continue"] and len(self._exchanges) == 1:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _judge(self, request: Request) -> Response | None:
        server = self._server
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._settings.max_header_bytes:
            return refuse(431, "headers_too_large", "the request's head is too large")
        refusal = server.gate.check(request)
        if refusal is not None:
            return refusal
        if server.in_flight >= self._settings.max_in_flight or len(self._exchanges) > _PIPELINED:
            return refuse(429, "daemon_busy", "too many requests at once", ("retry-after", "1"))
        server.in_flight += 1
        server.idle.clear()
        self._exchanges[-1].counted = True
        return None

    def on_body(self, body: bytes) -> None:
        exchange = self._arriving
        if exchange is None or self._is_ending:
            return
        exchange.body_bytes += len(body)
        if exchange.body_bytes <= self._settings.max_body_bytes:
            if exchange.answer is None:
                exchange.body.append(body)
            return
        if exchange.answer is None:
            exchange.body.clear()
            exchange.answer = refuse(
                413,
                "payload_too_large",
                f"a request has at most {self._settings.max_body_bytes} bytes",
            )
            self._flush()
        if exchange.body_bytes > self._settings.max_body_bytes * _DISCARDED_BODIES:
            self.cut()

    def on_message_complete(self) -> None:
        exchange, self._arriving = self._arriving, None
        self._is_head_only = False
        self._watch(self._settings.keep_alive_timeout_ms, None)
        if exchange is None or self._is_ending:
            return
        if exchange.answer is None:
            exchange.request.body = b"".join(exchange.body)
            exchange.body.clear()
            self._unwatch()
            task = self._loop.create_task(self._answer(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._flush()

    # Responses, in the order of their requests

    async def _answer(self, exchange: _Exchange) -> None:
        try:
            exchange.answer = await self._server.respond(exchange.request)
        except Exception:  # noqa: BLE001 - a caller must not end the daemon
            _log.exception("an IPC request failed: %s", exchange.request.path)
            exchange.answer = refuse(500, "internal", "the daemon failed; its log says why")
        if not self._transport.is_closing():
            self._flush()

    def _flush(self) -> None:
        """Write what can be written; an early refusal stays first until its body was dropped."""
        while self._exchanges and self._port is None and not self._is_paused:
            exchange = self._exchanges[0]
            if exchange.answer is None:
                return
            if isinstance(exchange.answer, Stream):
                self._release(exchange)
                self._start_stream(exchange.answer)
                return
            if not exchange.is_written:
                self._write(exchange, exchange.answer)
            if exchange is self._arriving:
                return
            self._exchanges.popleft()
            if not exchange.keep_alive or self._is_ending:
                self._is_ending = True
                self._transport.close()
                return
        if self._arriving is None and not self._in_head and not self._is_paused:
            self._watch(self._settings.keep_alive_timeout_ms, None)

    def _write(self, exchange: _Exchange, answer: Response) -> None:
        exchange.is_written = True
        self._release(exchange)
        self._count(exchange.request, answer.status)
        closing = self._is_ending or not exchange.keep_alive
        self._transport.write(answer.encode(closing=closing))

    def _count(self, request: Request, status: int) -> None:
        path = request.path if request.path in self._server.paths else "other"
        self._server.metrics.ipc_requests[path, str(status)] += 1

    def _release(self, exchange: _Exchange) -> None:
        if exchange.counted:
            exchange.counted = False
            self._server.in_flight -= 1
            if not self._server.in_flight:
                self._server.idle.set()

    def _end(self, refusal: Response) -> None:
        """Refuse, unless an earlier request is unanswered: it would take this for its answer."""
        if self._is_ending or self._transport.is_closing():
            return
        self._is_ending = True
        self._unwatch()
        if self._arriving is not None and not self._arriving.is_written:
            self._arriving.answer = refusal
            self._arriving = None
            self._flush()
        elif not self._exchanges:
            self._transport.write(refusal.encode(closing=True))
            self._transport.close()
        elif self._exchanges[0].is_written:
            self._transport.close()

    # Event streams

    def _start_stream(self, stream: Stream) -> None:
        server = self._server
        request = self._exchanges[0].request
        if server.streams >= self._settings.max_streams:
            busy = refuse(429, "too_many_streams", "too many event streams", ("retry-after", "5"))
            self._exchanges[0].answer = busy
            self._flush()
            return
        server.streams += 1
        self._unwatch()
        self._count(request, 200)
        self._port = _StreamPort(self._transport, self._settings)
        self._transport.write(stream.head())
        task = self._loop.create_task(self._serve(stream, self._port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream, port: "_StreamPort") -> None:
        try:
            await stream.serve(port)
        except Exception:  # noqa: BLE001 - a reader must not end the daemon
            _log.exception("an event stream failed")
        finally:
            self._server.streams -= 1
            self._transport.close()

    # Time

    def _watch(self, timeout_ms: int, fault: str | None) -> None:
        """From now on the caller has so long; then it is told the fault, or just closed."""
        self._unwatch()
        self._timer = self._loop.call_later(timeout_ms / 1000, self._on_timeout, fault)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self, fault: str | None) -> None:
        self._timer = None
        if fault is None:
            self.cut()
            return
        self._end(refuse(408, "request_timeout", fault))


class _StreamPort:
    """A reader of events; what waits for it has a bound, and how long it may take nothing has."""

    def __init__(self, transport: asyncio.Transport, settings: IpcSettings) -> None:
        self._transport = transport
        self._max_bytes = settings.stream_buffer_bytes
        self._timeout_s = settings.stream_timeout_ms / 1000
        self._is_lost = False
        self._woken = asyncio.Event()
        self._drained = asyncio.Event()
        transport.set_write_buffer_limits(high=0)  # `resume` is called when nothing waits

    @property
    def is_open(self) -> bool:
        return not self._is_lost and not self._transport.is_closing()

    def has_room(self, size: int) -> bool:
        waiting = self._transport.get_write_buffer_size()
        return not waiting or waiting + size <= self._max_bytes

    def send(self, data: bytes) -> None:
        if self.is_open:
            self._transport.write(data)

    async def drain(self) -> None:
        while self.is_open and (waiting := self._transport.get_write_buffer_size()):
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._drained.wait()
            if self._transport.get_write_buffer_size() >= waiting and self.is_open:
                _log.warning(
                    "an event stream was cut off: its reader took nothing for %g s. It can come "
                    "back with the Last-Event-ID it has",
                    self._timeout_s,
                )
                self._transport.abort()

    async def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        was_woken = self._woken.is_set()
        self._woken.clear()
        return was_woken

    def wake(self) -> None:
        self._woken.set()

    def resume(self) -> None:
        """Everything was taken."""
        self._drained.set()

    def lost(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        self._woken.set()
        self._drained.set()
