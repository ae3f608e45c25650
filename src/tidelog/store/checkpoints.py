"""Folding the WAL of a SQLite store into its file, beside the event loop and beside COMMITs."""

import contextlib
import logging
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tidelog.base.sql import sqlitefile

COMMITS = 200
"""After so many the WAL is folded: a small batch writes about twenty pages."""

WRITTEN_BYTES = 8 * 1024 * 1024
"""Of content, after which it is folded too."""

LARGEST_WAL_PAGES = 16_000
"""Where a COMMIT folds it itself, as SQLite does without us: writers that never pause leave no
moment at which all of it is folded and it can begin anew, and it must not grow for ever."""

_log = logging.getLogger(__name__)


class Checkpoints:
    """Counts what is committed, and folds the WAL by a connection and a thread of its own.

    SQLite would do it inside the COMMIT that crosses its limit. That takes as long as the disk
    needs for sixteen megabytes, and on the loop nothing else runs meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidelog-checkpoint")
        self._connection: sqlite3.Connection | None = None
        self._running: Future[None] | None = None
        self._commits = self._bytes = 0

    @property
    def is_running(self) -> bool:
        """Whether the disk is busy with one, so that a COMMIT would wait for it."""
        return self._running is not None and not self._running.done()

    def note(self, size: int) -> None:
        """A batch with so many bytes of content is committed; begin a checkpoint if it is time."""
        self._commits += 1
        self._bytes += size
        is_due = self._commits >= COMMITS or self._bytes >= WRITTEN_BYTES
        if is_due and not self.is_running:
            self._commits = self._bytes = 0
            self._running = self._thread.submit(self._fold)

    def _fold(self) -> None:
        try:
            if self._connection is None:
                self._connection = sqlitefile.connect(self._path, waits=False)
            # PASSIVE: neither readers nor the writer wait for it. What is not folded now is later.
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (sqlite3.Error, OSError) as error:
            # Nothing is lost: all of it is still in the WAL, and a COMMIT that fails says so.
            _log.warning("the write-ahead log could not be folded into the file: %s", error)

    def close(self) -> None:
        """Wait for the one that runs, and let go of the file."""
        self._thread.shutdown(wait=True)
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
