"""Folding the WAL of a SQLite store into its file, beside the event loop and beside COMMITs.

A checkpoint that nobody waits for (PASSIVE) folds all that no reader needs. The WAL begins anew,
and so stops growing, at a moment when all of it is folded and nobody reads from it. While reads
overlap, in this process or in others, there is none. So beyond a size the writer makes one: it
pauses between two transactions, and a checkpoint that ends with such a moment (RESTART) is tried
until it succeeds. Reads that begin in the pause see all of the WAL; when those before them have
ended, all of it can be folded, and reads that begin then need none of it. So about the time of two
reads is enough, and no reader waits. On a machine without a free processor reads last longer, and
the WAL grows by half, or more, until a try succeeds: the size is where tries begin, not a limit.

Two other ways were tried. With a busy timeout of SQLite's in place of tries most checkpoints
succeeded too, but one waited in vain for all of its 30 s. Cutting the file (TRUNCATE) took longer
in the few runs that compared them, and the next COMMITs have to make it longer again.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tidelog.base.spaced_lines import SpacedLines
from tidelog.base.sql import sqlitefile

COMMITS = 200
"""After so many the WAL is folded: a small batch writes about twenty pages."""

WRITTEN_BYTES = 8 * 1024 * 1024
"""Of content, after which it is folded too."""

RESTART_BYTES = sqlitefile.WAL_KEPT_BYTES
"""Size of the WAL's file above which the writer pauses until the WAL can begin anew. SQLite then
cuts the file back to this."""

RESTART_SECONDS = 0.1
MOST_RESTART_SECONDS = 1.0
"""How long such a checkpoint is tried, and the next batch waits for it: the more, the larger the
WAL is. Pages of ours are read in some milliseconds each; what reads for long, a backup say, is not
waited for."""

RESTART_PAUSE_SECONDS = 0.002
"""Between two tries."""

RESTART_AGAIN = 1.5
"""Growth of the WAL until the next attempt, after one that met a longer read. So a backup that
takes minutes costs the writer a small part of its time, however much is written meanwhile."""

PAGE_BYTES = 4096
"""SQLite's; a frame of the WAL is a little more."""

LARGEST_WAL_PAGES = 64_000
"""Where a COMMIT folds it itself (256 MiB), as SQLite does without us, should all that fail."""

LOG_SECONDS = 60.0
"""Pause between two log lines about a WAL that grows."""

_FAILED = "the write-ahead log could not be folded into the file: %s"
"""Nothing is lost then: all of it is still in the WAL, and a COMMIT that fails says so."""

_log = logging.getLogger(__name__)


class Checkpoints:
    """Counts what is committed, and folds the WAL by a connection and a thread of its own.

    SQLite would do it inside the COMMIT that crosses its limit. That takes as long as the disk
    needs for sixteen megabytes, and on the loop nothing else runs meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidelog-checkpoint")
        self._connection: sqlite3.Connection | None = None
        self._running: Future[None] | None = None
        self._commits = self._bytes = 0
        self.is_restart_due = False
        """Whether the WAL is so large that the writer should call `restart` before it begins."""
        self.may_commit_fold = False
        """Whether a COMMIT may find so large a WAL that it folds that itself: when a long read has
        ended it folds all that was written meanwhile, which takes the disk seconds."""
        self._restart_above = 0.0
        """Size at which to try again, after a try that failed; else 0."""
        self._lines = SpacedLines()

    @property
    def wal_bytes(self) -> int:
        """Size of the WAL's file."""
        try:
            return self._wal.stat().st_size
        except OSError:  # there is none yet; whatever else is wrong, a COMMIT says
            return 0

    @property
    def is_running(self) -> bool:
        """Whether the disk is busy with one, so that a COMMIT would wait for it."""
        return self._running is not None and not self._running.done()

    def note(self, size: int) -> None:
        """A batch with so many bytes of content is committed; begin a checkpoint if it is time."""
        self._commits += 1
        self._bytes += size
        if self.is_restart_due or self.is_running:
            return
        size_now = self.wal_bytes
        self.may_commit_fold = size_now > LARGEST_WAL_PAGES * PAGE_BYTES
        if size_now <= RESTART_BYTES:  # it has begun anew by itself
            self._restart_above = 0.0
        self.is_restart_due = size_now > max(RESTART_BYTES, self._restart_above)
        if self.is_restart_due or self._commits >= COMMITS or self._bytes >= WRITTEN_BYTES:
            # Also before a `restart`: what is folded while nobody waits, that need not do.
            self._commits = self._bytes = 0
            self._running = self._thread.submit(self._fold)

    async def restart(self) -> None:
        """Fold all of the WAL, so that it begins anew, if no read takes too long for that.

        For the writer, which must have no transaction open; the event loop turns meanwhile.
        """
        if not self.is_running:  # or it is time before the next transaction
            self.is_restart_due = False
            self._running = self._thread.submit(self._restart)
            await asyncio.wrap_future(self._running)

    def _fold(self) -> None:
        try:
            # Neither readers nor the writer wait for it. What is not folded now is later.
            self._checkpoint("PASSIVE")
        except (sqlite3.Error, OSError) as error:
            _log.warning(_FAILED, error)

    def _restart(self) -> None:
        patience = RESTART_SECONDS * self.wal_bytes / RESTART_BYTES
        deadline = time.monotonic() + min(patience, MOST_RESTART_SECONDS)
        try:
            while not self._checkpoint("RESTART"):
                if time.monotonic() > deadline:
                    self._say_that_it_grows()
                    break
                time.sleep(RESTART_PAUSE_SECONDS)
            else:
                self._restart_above = 0.0
                return
        except (sqlite3.Error, OSError) as error:
            _log.warning(_FAILED, error)
        self._restart_above = self.wal_bytes * RESTART_AGAIN

    def _checkpoint(self, mode: str) -> bool:
        """Returns whether nobody was in its way."""
        if self._connection is None:
            self._connection = sqlitefile.connect(self._path, waits=False)
        [(is_busy, _, _)] = self._connection.execute(f"PRAGMA wal_checkpoint({mode})")
        return not is_busy

    def _say_that_it_grows(self) -> None:
        also = self._lines.written(time.monotonic(), LOG_SECONDS)
        if also is not None:
            _log.warning(
                "the write-ahead log has %d MiB and grows while another program reads the store "
                "for long; it begins anew when that has ended%s",
                self.wal_bytes // 1024**2,
                also,
            )

    def close(self) -> None:
        """Wait for the one that runs, and let go of the file."""
        self._thread.shutdown(wait=True)
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
