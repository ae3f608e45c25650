"""Folding the WAL of a SQLite store into its file, beside the event loop and beside COMMITs.

A checkpoint that nobody waits for (PASSIVE) folds all that no reader needs. The WAL begins anew,
and so stops growing, at a moment when all of it is folded and nobody reads from it. A writer that
never rests leaves no such moment, since it commits beside every checkpoint. So its next batch waits
until the few pages of those commits are folded too: a COMMIT that overwrites the WAL is cheaper
than one that makes its file longer (`bench/commit.py --wal`; docs/measurements.md).

While reads overlap, in this process or in others, there is no such moment either. So beyond a size
the writer makes one: it pauses between two transactions and folds what it can, then the processes
of this server begin no read for some milliseconds (`ReadGate`), and what is left is folded and the
file cut (TRUNCATE).

A read of another program, a backup say, cannot be paused. It ends sooner or later: one that begins
while the writer pauses sees all of the WAL; when those before it have ended, all of it can be
folded, and reads that begin then need none of it. So with those in the way it is tried for about
the time of two reads, and again when the WAL is half as large again.

A busy timeout of SQLite's in place of tries waited in vain for all of its 30 s, once.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tidelog.base.spaced_lines import SpacedLines
from tidelog.base.sql import sqlitefile
from tidelog.store.read_gate import ReadGate

COMMITS = 200
"""After so many the WAL is folded: a small batch writes about twenty pages."""

WRITTEN_BYTES = 8 * 1024 * 1024
"""Of content, after which it is folded too."""

FULL_BYTES = 16 * 1024 * 1024
FULL_AGAIN = 1.25
"""A file that is longer than that, and than when it was last folded, is folded rather than made yet
longer. Few large batches fill it."""

FEW_COMMITS = COMMITS // 4
FEW_BYTES = WRITTEN_BYTES // 8
"""Of what was committed beside a checkpoint, up to which the next batch waits for another."""

MOST_BYTES = sqlitefile.WAL_KEPT_BYTES
"""The size that the WAL's file has at most, beside what one transaction writes, while nobody but
processes of this server reads it."""

RESTART_BYTES = MOST_BYTES * 3 // 4
"""Size above which the writer pauses until the WAL can begin anew."""

RETRY_BYTES = MOST_BYTES // 16
"""Growth until the next attempt, after one that met a read of this server that took longer than a
pause may. So there are several of them before the WAL has its largest size."""

PAUSED_SECONDS = 0.1
"""How long a checkpoint is tried while reads pause. They have ended by then, so the first try
succeeds unless another program reads."""

RESTART_SECONDS = 0.1
MOST_RESTART_SECONDS = 1.0
"""How long it is tried after that, and the next batch waits for it: the more, the larger the WAL
is. What reads for long, a backup say, is not waited for."""

RESTART_PAUSE_SECONDS = 0.002
"""Between two tries."""

RESTART_AGAIN = 1.5
"""Growth of the WAL until the next attempt, after one that another program was in the way of. So a
backup that takes minutes costs the writer a small part of its time, however much is written."""

PAGE_BYTES = 4096
"""SQLite's; a frame of the WAL is a little more."""

LARGEST_WAL_PAGES = 64_000
"""Where a COMMIT folds it itself (256 MiB), as SQLite does without us, should all that fail."""

LOG_SECONDS = 60.0
"""Pause between two log lines about a WAL that grows."""

_FAILED = "the write-ahead log could not be folded into the file: %s"
"""Nothing is lost then: all of it is still in the WAL, and a COMMIT that fails says so."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Checkpoints:
    """Counts what is committed, and folds the WAL by a connection and a thread of its own.

    SQLite would do it inside the COMMIT that crosses its limit. That takes as long as the disk
    needs for sixteen megabytes, and on the loop nothing else runs meanwhile.
    """

    def __init__(self, path: Path, gate: ReadGate) -> None:
        self._path = path
        self._gate = gate
        self._wal = path.with_name(path.name + "-wal")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidelog-checkpoint")
        self._connection: sqlite3.Connection | None = None
        self._running: Future[Any] | None = None
        self._commits = self._bytes = 0
        self._size = 0
        """Of the file when it was last folded."""
        self._is_folded = False
        """Whether a checkpoint has folded all there was when it began. Since then there were
        `_commits` with `_bytes`."""
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

    @property
    def is_rest_due(self) -> bool:
        """Whether the writer should call `fold_rest` before it begins."""
        return self._is_folded and not self.is_running

    def note(self, size: int) -> None:
        """A batch with so many bytes of content is committed; begin a checkpoint if it is time."""
        self._commits += 1
        self._bytes += size
        if self.is_restart_due:
            return
        size_now = self.wal_bytes
        self.may_commit_fold = size_now > LARGEST_WAL_PAGES * PAGE_BYTES
        if size_now <= RESTART_BYTES:  # it has begun anew by itself
            self._restart_above = 0.0
        self.is_restart_due = size_now > max(RESTART_BYTES, self._restart_above)
        if self.is_running:
            return
        self._size = min(self._size, size_now)  # it may have been cut
        is_full = size_now > max(FULL_BYTES, self._size * FULL_AGAIN)
        if (
            is_full
            or self.is_restart_due
            or self._commits >= COMMITS
            or self._bytes >= WRITTEN_BYTES
        ):
            # Also before a `restart`: what is folded while nobody waits, that need not do.
            self._commits = self._bytes = 0
            self._size = size_now
            self._running = self._thread.submit(self._fold)

    async def fold_rest(self) -> None:
        """Fold what was committed beside the last checkpoint, so that the WAL begins anew.

        For the writer, which must have no transaction open; the event loop turns meanwhile.
        """
        self._is_folded = False
        if 0 < self._commits <= FEW_COMMITS and self._bytes <= FEW_BYTES:
            self._commits = self._bytes = 0
            await self._in_thread(self._fold)
            self._is_folded = False  # nothing was committed beside this one

    async def restart(self) -> None:
        """Fold all of the WAL, so that it begins anew, if no read takes too long for that.

        For the writer, which must have no transaction open; the event loop turns meanwhile.
        """
        self.is_restart_due = False
        if self._running is not None:
            await asyncio.wait([asyncio.wrap_future(self._running)])
        await self._in_thread(self._fold_all)  # while reads go on: nothing is left for the pause
        async with self._gate.paused() as is_quiet:
            if await self._in_thread(self._cut, PAUSED_SECONDS):
                return
        if not is_quiet:
            self._restart_above = self.wal_bytes + RETRY_BYTES
            return
        patience = RESTART_SECONDS * self.wal_bytes / RESTART_BYTES
        if not await self._in_thread(self._cut, min(patience, MOST_RESTART_SECONDS)):
            self._say_that_it_grows()
            self._restart_above = self.wal_bytes * RESTART_AGAIN

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        running = self._thread.submit(work, *arguments)
        self._running = running
        return await asyncio.wrap_future(running)

    def _fold(self) -> None:
        try:
            # Neither readers nor the writer wait for it. What is not folded now is later.
            self._is_folded = self._checkpoint("PASSIVE")
        except (sqlite3.Error, OSError) as error:
            _log.warning(_FAILED, error)

    def _fold_all(self) -> None:
        """Nothing is written, so all can be folded when the reads that have begun are over."""
        self._try("PASSIVE", RESTART_SECONDS)

    def _cut(self, seconds: float) -> bool:
        """Try for so long; returns whether the WAL begins anew."""
        if self._try("TRUNCATE", seconds):
            self._restart_above = 0.0
            return True
        return False

    def _try(self, mode: str, seconds: float) -> bool:
        """A checkpoint, for so long; returns whether it has folded all, and done what it does."""
        deadline = time.monotonic() + seconds
        try:
            while not self._checkpoint(mode):
                if time.monotonic() > deadline:
                    return False
                time.sleep(RESTART_PAUSE_SECONDS)
        except (sqlite3.Error, OSError) as error:
            _log.warning(_FAILED, error)
            return False
        return True

    def _checkpoint(self, mode: str) -> bool:
        """Returns whether nobody was in its way."""
        if self._connection is None:
            self._connection = sqlitefile.connect(self._path, waits=False)
        try:
            [found] = self._connection.execute(f"PRAGMA wal_checkpoint({mode})")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False  # another one runs
        is_busy, in_wal, folded = found
        return not is_busy and in_wal == folded

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
