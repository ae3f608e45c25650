"""The time of day, as a value that never runs backwards."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

TEST_OFFSET_VARIABLE = "TIDELOG_TEST_CLOCK_OFFSET"
"""Names a file whose number of milliseconds is added to the wall clock, and to what a store's clock
shows; for fault tests only."""

EXACT_MS = 1000
"""A store that took longer to tell its time is not believed to the millisecond."""


class Clock(Protocol):
    """Where the server takes its time from; tests pass `tidelog.testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, never negative."""


class ServerClock(Clock, Protocol):
    """A clock that also tells the uncorrected time, and can be compared with a store's."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; runs backwards when the wall clock does."""

    def compare(self, asked_ms: int, store_ms: int) -> int:
        """A store that is shared showed `store_ms`, when asked at `asked_ms` of the wall clock.

        From then on `now_ms` tells the store's time, whatever becomes of the wall clock. Answers by
        how much the wall clock is ahead of the store's at least, less than 0 if it is behind.
        """


class SystemClock:
    """The wall clock, or the clock of a store that it was compared with, with a high-water mark.

    A wall clock steps back when NTP or an operator corrects it. `committed_at` must not, so a time
    below the highest one already given out is answered with that highest one until the wall clock
    has passed it again. The mark lives as long as the object: one clock per process, and whoever
    needs the promise across a restart compares with what is stored.
    """

    def __init__(self, wall_ns: Callable[[], int] | None = None) -> None:
        self._moved_ns = _test_offset_ns if wall_ns is None else lambda: 0
        self._wall_ns = wall_ns or wall_clock_ns()
        self._mark_ms = 0
        self._store: tuple[int, int] | None = None
        """What a store's clock showed, and the monotonic time in ms then."""

    def now_ms(self) -> int:
        """The time, or the highest one given out if that is later."""
        if self._store is None:
            now = self.wall_ms()
        else:
            store_ms, at = self._store
            now = store_ms + _monotonic_ms() - at
        self._mark_ms = max(self._mark_ms, now)
        return self._mark_ms

    def wall_ms(self) -> int:
        """The wall clock's time as it is: who is right again after a jump must be believed."""
        return self._wall_ns() // 1_000_000

    def compare(self, asked_ms: int, store_ms: int) -> int:
        """See `ServerClock.compare`."""
        store_ms += self._moved_ns() // 1_000_000
        answered_ms = self.wall_ms()
        if self._store is None:
            self._mark_ms = 0  # of a wall clock that may have been wrong
        if self._store is None or 0 <= answered_ms - asked_ms < EXACT_MS:
            self._store = (store_ms, _monotonic_ms())
        # The store looked at its clock at some moment between the question and the answer.
        return max(0, asked_ms - store_ms) + min(0, answered_ms - store_ms)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_clock_ns() -> Callable[[], int]:
    """The system's time of day in nanoseconds, moved by the test file if a test names one."""
    if not os.environ.get(TEST_OFFSET_VARIABLE):
        return time.time_ns
    return lambda: time.time_ns() + _test_offset_ns()


def _test_offset_ns() -> int:
    """By how much a test has moved the time, for a process and for its store alike."""
    file = os.environ.get(TEST_OFFSET_VARIABLE)
    return int(Path(file).read_text(encoding="ascii") or 0) * 1_000_000 if file else 0
