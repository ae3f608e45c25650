"""Connections taken from a port by hand, a few in each turn of the event loop.

An event loop takes all that wait at once. Where several processes serve one port, that gives all
clients that come back together to the process which happens to be first.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection

from tidelog.web.http import LimitedHttp

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""How long no connection is taken after the system had no room for one."""

Admit = Callable[[socket.socket, str], None]
"""Takes a connection and the address of its peer."""


class Acceptor:
    """Accepts connections from `start` to `close`."""

    def __init__(self, at_once: int) -> None:
        """`at_once`: how many in one turn of the loop."""
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def start(self, listener: socket.socket, admit: Admit) -> None:
        """Give each connection to `admit`."""
        self._listener = listener
        self._admit = admit
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        self._is_closed = True
        self._loop.remove_reader(self._listener)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                peer, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # as when this process has too many files open
                _log.error("no connection can be accepted: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(PAUSE_SECONDS, self._listen)
                return
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._admit(peer, str(address[0]))


class PlainListener:
    """Gives connections without TLS to HTTP, one in each turn."""

    def __init__(self) -> None:
        self._acceptor = Acceptor(at_once=1)
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()

    def start(
        self,
        listener: socket.socket,
        connections: Collection[object],
        http: Callable[[], LimitedHttp],
    ) -> None:
        """Accept; HTTP counts `connections` itself."""
        del connections

        async def begin(peer: socket.socket) -> None:
            try:
                await self._loop.connect_accepted_socket(http, peer)
            except OSError:  # its peer is gone already
                peer.close()

        def admit(peer: socket.socket, address: str) -> None:
            del address
            task = self._loop.create_task(begin(peer))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

        self._acceptor.start(listener, admit)

    def close(self) -> None:
        """Accept no more."""
        self._acceptor.close()
