"""Connections to PostgreSQL that were made to read, kept for the next read.

To make one takes far longer than to read a row, since the driver then reads the whole catalogue of
types, and many reads are of one row. One that is kept has no transaction, so it holds nothing back.
"""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

IDLE_SECONDS = 10.0
"""A connection that nobody has used for so long is closed."""

MOST_KEPT = 4
"""Connections of one kind that are kept; further ones are closed after use."""


class KeptConnections:
    """By what they were made with; any thread may use them, one at a time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], list[tuple[float, Any]]] = {}
        """By process too: a fork must not use its parent's."""
        self._turn = threading.Lock()
        self._sweeper: threading.Timer | None = None
        atexit.register(self.close)

    @contextlib.contextmanager
    def lent(self, url: str) -> Iterator[Any]:
        """A connection for the length of the block; it is closed if that fails."""
        connection = self._taken(url) or _made(url)
        try:
            yield connection
        except BaseException:
            _closed(connection)
            raise
        self._keep(url, connection)

    def close(self) -> None:
        """Close all that are kept."""
        self._sweep(0.0)

    def _taken(self, url: str) -> Any | None:
        while True:
            with self._turn:
                kept = self._kept.get((os.getpid(), url))
                if not kept:
                    return None
                _, connection = kept.pop()
            if _is_alive(connection):
                return connection
            _closed(connection)

    def _keep(self, url: str, connection: Any) -> None:
        with self._turn:
            kept = self._kept.setdefault((os.getpid(), url), [])
            if len(kept) < MOST_KEPT:
                kept.append((time.monotonic(), connection))
                self._sweep_later()
                return
        _closed(connection)

    def _sweep_later(self) -> None:
        if self._sweeper is None or not self._sweeper.is_alive():
            self._sweeper = threading.Timer(IDLE_SECONDS, self._swept)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _swept(self) -> None:
        self._sweep(IDLE_SECONDS)
        with self._turn:
            self._sweeper = None
            if self._kept:
                self._sweep_later()

    def _sweep(self, idle_seconds: float) -> None:
        """Close what nobody has used for so long; what a fork has of its parent's stays."""
        now, old = time.monotonic(), []
        with self._turn:
            for key in [key for key in self._kept if key[0] == os.getpid()]:
                kept = self._kept[key]
                old += [each for at, each in kept if now - at >= idle_seconds]
                self._kept[key] = [(at, each) for at, each in kept if now - at < idle_seconds]
                if not self._kept[key]:
                    del self._kept[key]
        for connection in old:
            _closed(connection)


def _made(url: str) -> Any:
    from adbc_driver_postgresql import dbapi as postgresql

    return postgresql.connect(url, autocommit=True)


def _is_alive(connection: Any) -> bool:
    """Whether the server still answers."""
    from adbc_driver_manager import Error

    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetch_arrow_table()
    except Error:
        return False
    return True


def _closed(connection: Any) -> None:
    from adbc_driver_manager import Error

    with contextlib.suppress(Error):  # it may be gone already
        connection.close()
