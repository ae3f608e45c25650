"""Signed requests over connections that are kept, for threads without an event loop.

The blocking counterpart of `http`: any number of threads may ask at the same time, and a process
that was forked after a request opens connections of its own.
"""

import os
import socket
import ssl
import threading
import time
from typing import TypeVar

from tidelog.base.net.tls import blocking_context_for
from tidelog.client.channels.exchange import Answer, AnswerReader, Call, Exchange, Retry, Server

T = TypeVar("T")

MAX_CONNECTIONS = 16
"""Requests at the same time; further ones wait."""

READ_BYTES = 65_536


class _Connections:
    """Those of one process; a fork must not share them, nor a lock that somebody holds."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.idle: list[socket.socket] = []
        self.slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def close(self) -> None:
        with self.lock:
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()


class BlockingChannelApi:
    """The signed API of one app."""

    def __init__(self, server: Server, retry: Retry) -> None:
        self._server = server
        self._retry = retry
        self._pool = _Connections()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._connections().close()

    def ask(self, call: Call[T]) -> T:
        """Send a call until there is a response.

        Raises:
            PublishRefused: it was refused, and would be again.
            PublishFailed: there was no response, or only errors of the server.
        """
        exchange = Exchange(self._server, call, self._retry)
        while True:
            try:
                with self._connections().slots:
                    answer = self._send(exchange.request(time.time()))
            except OSError as error:  # a timeout is one
                wait: float | None = exchange.failed(error)
            else:
                wait = exchange.answered(answer)
            if wait is None:
                return exchange.result
            time.sleep(wait)

    def _connections(self) -> _Connections:
        if self._pool.process != os.getpid():
            self._pool, inherited = _Connections(), self._pool
            inherited.lock = self._pool.lock  # whoever holds the other one is not in this process
            inherited.close()
        return self._pool

    def _send(self, request: bytes) -> Answer:
        deadline = time.monotonic() + self._retry.timeout_s
        connection = self._take_idle() or self._connect()
        try:
            _wait_until(connection, deadline)
            connection.sendall(request)
            reader = AnswerReader()
            answer = None
            while answer is None:
                _wait_until(connection, deadline)
                answer = reader.feed(connection.recv(READ_BYTES))
        except BaseException:
            connection.close()
            raise
        if not (answer.is_reusable and self._keep(connection)):
            connection.close()
        return answer

    def _keep(self, connection: socket.socket) -> bool:
        pool = self._connections()
        with pool.lock:
            has_room = len(pool.idle) < MAX_CONNECTIONS
            if has_room:
                pool.idle.append(connection)
        return has_room

    def _take_idle(self) -> socket.socket | None:
        pool = self._connections()
        while True:
            with pool.lock:
                if not pool.idle:
                    return None
                connection = pool.idle.pop()
            if _is_usable(connection):
                return connection
            connection.close()

    def _connect(self) -> socket.socket:
        address = (self._server.host, self._server.port)
        connection = socket.create_connection(address, timeout=self._retry.timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = blocking_context_for(self._server.url)
            if context is None:
                return connection
            return context.wrap_socket(connection, server_hostname=self._server.host)
        except BaseException:
            connection.close()
            raise


def _wait_until(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the server did not respond in time")
    connection.settimeout(left)


def _is_usable(connection: socket.socket) -> bool:
    """Whether the server has not closed it meanwhile: there must be nothing to read."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False
