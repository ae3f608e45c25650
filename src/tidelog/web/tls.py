"""TLS in front of HTTP: a connection counts from its first packet, not from its first request.

An event loop tells of a connection when its handshake is over. Until then it would be nobody's:
within no limit of its address or of the server, and open for a minute. So connections are accepted
here, and counted before the handshake begins.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection

from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.web.accepting import Acceptor
from tidelog.web.addresses import Addresses
from tidelog.web.http import LimitedHttp

MAX_REFUSING = 16
"""Handshakes under way with peers that have a connection too many. They are there to be told so in
HTTP; more than these are closed without a word, since a handshake is what costs us most."""

_ACCEPTED_AT_ONCE = 100
"""Connections taken in one turn of the loop."""


class TlsListener:
    """Accepts connections from `start` to `close`, and gives those that speak TLS to HTTP."""

    def __init__(
        self,
        context: ssl.SSLContext,
        limits: Limits,
        metrics: Metrics,
        addresses: Addresses,
        *,
        takes_turns: bool = False,
    ) -> None:
        """`takes_turns`: with other processes that serve the same port."""
        self._acceptor = Acceptor(1 if takes_turns else _ACCEPTED_AT_ONCE)
        self._context = context
        self._limits = limits
        self._metrics = metrics
        self._addresses = addresses
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[bool]] = set()
        self._refusing = 0
        """Of these, with peers that have a connection too many."""

    def start(
        self,
        listener: socket.socket,
        connections: Collection[object],
        http: Callable[[], LimitedHttp],
    ) -> None:
        """Accept; `connections` are those that HTTP has by now."""
        self._connections = connections
        self._http = http
        self._acceptor.start(listener, self._admit)

    def close(self) -> None:
        """Accept no more, and end the handshakes that are under way."""
        self._acceptor.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _admit(self, peer: socket.socket, address: str) -> None:
        """Count a connection and begin its handshake, or close it."""
        if len(self._connections) + len(self._handshakes) >= self._limits.max_connections:
            self._refuse(peer, "connections")
            return
        http = self._http()
        is_counted = http.count_in(address)
        if not is_counted and self._refusing >= MAX_REFUSING:
            self._refuse(peer, "address_connections")
            return
        self._refusing += not is_counted
        handshake = self._loop.create_task(self._shake_hands(peer, http))
        self._handshakes.add(handshake)

        def over(handshake: asyncio.Task[bool]) -> None:
            self._handshakes.discard(handshake)
            self._refusing -= not is_counted
            if handshake.cancelled() or not handshake.result():
                http.count_out()
                peer.close()

        handshake.add_done_callback(over)

    async def _shake_hands(self, peer: socket.socket, http: LimitedHttp) -> bool:
        """Whether it is over, and HTTP has the connection."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: http,
                peer,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.header_timeout_ms / 1000,
                ssl_shutdown_timeout=self._limits.close_timeout_ms / 1000,
            )
        except OSError:  # of TLS, of the network, or the time is up
            self._metrics.refusals.labels("tls_handshake").inc()
            return False
        return True

    def _refuse(self, peer: socket.socket, reason: str) -> None:
        self._metrics.refusals.labels(reason).inc()
        peer.close()
