"""The time of day, as a value that never runs backwards."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where the server takes its time from; tests pass `tidelog.testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, never negative."""


class SystemClock:
    """The wall clock with a high-water mark.

    A wall clock steps back when NTP or an operator corrects it. `committed_at` must not, so a time
    below the highest one already given out is answered with that highest one until the wall clock
    has passed it again. The mark lives as long as the object: one clock per process, and whoever
    needs the promise across a restart compares with what is stored.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._mark_ms = 0

    def now_ms(self) -> int:
        """The wall clock's time, or the highest one given out if the wall clock is behind it."""
        self._mark_ms = max(self._mark_ms, self._wall_ns() // 1_000_000)
        return self._mark_ms
