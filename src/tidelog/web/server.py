"""What takes connections from a port, and lets them end when the server does.

The connections are `tidelog.web.http`'s. This is what they share: who is there, what is being
answered, and the header with the time.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tidelog.web.listening import BACKLOG

_log = logging.getLogger(__name__)

END_SECONDS = 1.0
"""How long connections may take to leave after all that was accepted is done: only answers that are
already made are left then."""

_TURNS = 3
"""Of the event loop, within which what it had accepted last is a connection."""

_LOOK_SECONDS = 0.02
"""How often it is looked whether the last has left."""

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Accepting(Protocol):
    """Takes connections by hand, where the event loop must not."""

    def start(
        self,
        listener: socket.socket,
        connections: set[Any],
        http: Callable[[], Any],
    ) -> None:
        """Begin; each connection gets a protocol of `http`."""

    def close(self) -> None:
        """Take no more."""


class PortServer:
    """Serves one port from `serve` until `end`."""

    def __init__(
        self,
        http: Callable[["PortServer"], asyncio.Protocol],
        websocket: Callable[[set[Any]], Any],
        keep_alive_seconds: float,
        finish: Callable[[], Awaitable[None]],
        accepting: Accepting | None = None,
    ) -> None:
        """`http` makes the protocol of a connection, `websocket` that of one which upgrades.

        `finish` is awaited at the end: accepted work may be done before the connections that wait
        for it end. Without `accepting` the event loop takes connections.
        """
        self.websocket = websocket
        self.keep_alive_seconds = keep_alive_seconds
        """How long a connection without a request is kept."""
        self.connections: set[Any] = set()
        """All of them, HTTP and WebSocket."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Requests that are being answered."""
        self.common_headers: list[tuple[bytes, bytes]] = []
        """What every response has."""
        self.accepting = accepting
        self._http = http
        self._finish = finish
        self._told = asyncio.Event()
        self._is_hurried = False
        self.is_leaving = False
        """Whether all connections were told to end: one that begins after that ends at once."""
        self._ticking: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Let `serve` return, in an orderly way."""
        self._told.set()

    def hurry(self) -> None:
        """Wait for no connection any more."""
        self._is_hurried = True

    async def serve(self, listener: socket.socket) -> None:
        """Take connections until `end`, let them finish, and close the listener."""
        loop = asyncio.get_running_loop()
        server: asyncio.Server | None = None
        if self.accepting is None:
            server = await loop.create_server(
                lambda: self._http(self), sock=listener, backlog=BACKLOG
            )
        else:
            self.accepting.start(listener, self.connections, lambda: self._http(self))
        self._tick()
        try:
            await self._told.wait()
            if server is not None:
                server.close()
            if self.accepting is not None:
                self.accepting.close()
            await self._finish()
            listener.close()
            await self._leave()
        finally:
            if self._ticking is not None:
                self._ticking.cancel()

    async def _leave(self) -> None:
        """Let all connections end, and what answers them, for a moment."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.is_leaving = True
        for connection in list(self.connections):
            connection.shutdown()
        deadline = time.monotonic() + END_SECONDS
        while (self.connections or self.tasks) and not self._is_hurried:
            if time.monotonic() >= deadline:
                _log.warning(
                    "gave up %d connections and %d requests that did not end",
                    *(len(self.connections), len(self.tasks)),
                )
                break
            await asyncio.sleep(_LOOK_SECONDS)
        for task in self.tasks:
            task.cancel()

    def _tick(self) -> None:
        self.common_headers = [(b"date", http_date(time.time()))]
        self._ticking = asyncio.get_running_loop().call_later(1.0, self._tick)


def http_date(unix_seconds: float) -> bytes:
    """A time as HTTP writes it; the library's own would cost a start 3 ms of imports."""
    t = time.gmtime(unix_seconds)
    day, month = _DAYS[t.tm_wday], _MONTHS[t.tm_mon - 1]
    clock = f"{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}"
    return f"{day}, {t.tm_mday:02d} {month} {t.tm_year:04d} {clock} GMT".encode()
