"""The daemon's time: goes on whatever the wall clock does, and across restarts (mesh 4.3).

The age of a row decides whether it may still be sent. A wall clock that is set back would make old
rows young again, so the daemon's time is never below the highest time it has seen, in this process
or, through the mark in `outbox.db`, in one before. It also never stands still while the wall clock
catches up: backoff delays are measured with it, and a row must not wait for days because somebody
corrected the date.
"""

import time
from collections.abc import Callable

from tidelog.base.clock import wall_clock_ns


class DaemonClock:
    """Starts at the later of the wall clock and a stored mark and adds whatever passes since.

    What has passed is what the wall clock or the monotonic clock says, whichever is more: a jump
    forwards counts, because the time may really have passed while the machine slept, and a jump
    backwards does not.
    """

    def __init__(
        self,
        wall_ms: Callable[[], int] | None = None,
        monotonic_ms: Callable[[], int] | None = None,
        mark_ms: int = 0,
    ) -> None:
        self._wall_ms = wall_ms or wall_clock()
        self._monotonic_ms = monotonic_ms or _monotonic_ms
        self._seen_wall = self._wall_ms()
        self._seen_monotonic = self._monotonic_ms()
        self._now_ms = max(self._seen_wall, mark_ms)

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; never less than before."""
        wall, monotonic = self._wall_ms(), self._monotonic_ms()
        passed = max(wall - self._seen_wall, monotonic - self._seen_monotonic, 0)
        self._seen_wall, self._seen_monotonic = wall, monotonic
        self._now_ms = max(self._now_ms + passed, wall)
        return self._now_ms

    def raise_to(self, mark_ms: int) -> None:
        """Go on from a stored mark, if that is later than now."""
        self._now_ms = max(self.now_ms(), mark_ms)


class WallClock:
    """The wall clock as it is, steps back included.

    Attempts are scheduled by it. A clock that never runs back would stand still after a step back,
    and so would every retry.
    """

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


def wall_clock() -> Callable[[], int]:
    """The system's time of day in milliseconds; see `wall_clock_ns`."""
    wall_ns = wall_clock_ns()
    return lambda: wall_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
