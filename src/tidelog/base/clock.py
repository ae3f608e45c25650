"""The time of day, as a value that never runs backwards."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

TEST_OFFSET_VARIABLE = "TIDELOG_TEST_CLOCK_OFFSET"
"""Names a file whose number of milliseconds is added to the wall clock; for fault tests only."""


class Clock(Protocol):
    """Where the server takes its time from; tests pass `tidelog.testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, never negative."""


class ServerClock(Clock, Protocol):
    """A clock that also tells the uncorrected time, for judging times that others wrote."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; runs backwards when the wall clock does."""


class SystemClock:
    """The wall clock with a high-water mark.

    A wall clock steps back when NTP or an operator corrects it. `committed_at` must not, so a time
    below the highest one already given out is answered with that highest one until the wall clock
    has passed it again. The mark lives as long as the object: one clock per process, and whoever
    needs the promise across a restart compares with what is stored.
    """

    def __init__(self, wall_ns: Callable[[], int] | None = None) -> None:
        self._wall_ns = wall_ns or wall_clock_ns()
        self._mark_ms = 0

    def now_ms(self) -> int:
        """The wall clock's time, or the highest one given out if the wall clock is behind it."""
        self._mark_ms = max(self._mark_ms, self._wall_ns() // 1_000_000)
        return self._mark_ms

    def wall_ms(self) -> int:
        """The wall clock's time as it is: who is right again after a jump must be believed."""
        return self._wall_ns() // 1_000_000


def wall_clock_ns() -> Callable[[], int]:
    """The system's time of day in nanoseconds, moved by the test file if a test names one."""
    file = os.environ.get(TEST_OFFSET_VARIABLE)
    if not file:
        return time.time_ns
    path = Path(file)
    return lambda: time.time_ns() + int(path.read_text(encoding="ascii") or 0) * 1_000_000
