"""Every open WebSocket connection of one server: how many, which are due, how they all end."""

import asyncio
from contextlib import suppress
from typing import Protocol

from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits

_SWEEP_MAX_SECONDS = 1.0
"""The longest time between two sweeps, and so the accuracy of long timeouts."""
_SWEEP_MIN_SECONDS = 0.01
"""The shortest: timeouts below it are for tests and must not make the loop busy."""


class Socket(Protocol):
    """One connection, as the registry sees it."""

    @property
    def surface(self) -> str:
        """Name of the surface it belongs to."""

    def sweep(self, now: float) -> None:
        """Do what is due: ping a silent peer, drop a dead one."""

    def shutdown(self) -> None:
        """Start the close handshake because the server stops."""

    def abort(self) -> None:
        """Drop the connection."""


class Sockets:
    """The registry of connections and the one timer that serves them all.

    A timer per connection would cost memory and a heap operation per message; looking at each
    connection once per sweep costs about 0.1 µs. The timer runs only while there are connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics, limits: Limits) -> None:
        self._loop = loop
        self._metrics = metrics
        self._limits = limits
        self._open: set[Socket] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()
        shortest_ms = min(limits.idle_timeout_ms, limits.pong_timeout_ms, limits.close_timeout_ms)
        self._interval = min(max(shortest_ms / 4000, _SWEEP_MIN_SECONDS), _SWEEP_MAX_SECONDS)
        self.received_bytes = 0
        """Bytes received since the last sweep, which moves them to the metric: that has a lock."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether another connection must be refused."""
        return self._closing or len(self._open) >= self._limits.max_connections

    def add(self, socket: Socket) -> None:
        """Count a connection in and watch over it."""
        self._open.add(socket)
        self._empty.clear()
        self._metrics.connections.labels(socket.surface).inc()
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._sweep)
        if self._closing:  # a request for a stream was on its way; all others are told already
            self._loop.call_soon(socket.shutdown)

    def remove(self, socket: Socket) -> None:
        """Count a connection out."""
        self._open.remove(socket)
        self._metrics.connections.labels(socket.surface).dec()
        if not self._open:
            self._record()
            self._empty.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _record(self) -> None:
        self._metrics.received_bytes.inc(self.received_bytes)
        self.received_bytes = 0

    def _sweep(self) -> None:
        self._record()
        now = self._loop.time()
        for socket in tuple(self._open):
            socket.sweep(now)
        self._timer = self._loop.call_later(self._interval, self._sweep) if self._open else None

    async def close_all(self, patience_seconds: float | None = None) -> None:
        """Refuse new connections, close all, and return when the last is gone.

        A peer that does not reply is dropped after `close_timeout_ms` and at most one sweep, or
        when patience ends, if there is less of that.
        """
        self._closing = True
        for socket in tuple(self._open):
            socket.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self._empty.wait()
        for socket in tuple(self._open):
            socket.abort()
        await self._empty.wait()
