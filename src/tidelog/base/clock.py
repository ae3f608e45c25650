"""The time of day, as a value that never runs backwards."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

TEST_OFFSET_VARIABLE = "TIDELOG_TEST_CLOCK_OFFSET"
"""Names a file whose number of milliseconds is added to the wall clock, and to what a store's clock
shows; for fault tests only."""


STEP_MS = 20
"""A wall clock that moves by more than this against the monotonic one, between two comparisons with
a store's, was set; corrections that are spread over time are smaller."""


class Clock(Protocol):
    """Where the server takes its time from; tests pass `tidelog.testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, never negative."""


class Compared(NamedTuple):
    """A wall clock and a store's, side by side."""

    ahead_ms: int
    """By how much the wall clock is ahead of the store's at least; below 0 if it is behind."""
    store_ms: int
    """What the store's clock showed."""


class ServerClock(Clock, Protocol):
    """A clock that also tells the uncorrected time, and can be compared with a store's."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; runs backwards when the wall clock does."""

    def compare(self, asked_ms: int, store_ms: int) -> Compared:
        """A store that is shared showed `store_ms`, when asked at `asked_ms` of the wall clock.

        From then on `now_ms` tells the store's time, whatever becomes of the wall clock; never less
        than that, so that nobody takes what was dated by the store for something of the future.
        """

    def remembered_ms(self) -> int | None:
        """What the store's clock shows by the last comparison: no more than it really does.

        None if that must be asked: they were never compared, or the wall clock was set since.
        """


class SystemClock:
    """The wall clock, or the clock of a store that it was compared with, with a high-water mark.

    A wall clock steps back when NTP or an operator corrects it. `committed_at` must not, so a time
    below the highest one already given out is answered with that highest one until the wall clock
    has passed it again. The mark lives as long as the object: one clock per process, and whoever
    needs the promise across a restart compares with what is stored.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._moved_ns = _test_offset_ns if wall_ns is None else lambda: 0
        self._wall_ns = wall_ns or wall_clock_ns()
        self._monotonic_ns = monotonic_ns
        self._mark_ms = 0
        self._store: _Seen | None = None
        self._wall_lead_ms = 0
        """How far the wall clock was ahead of the monotonic one at the last comparison."""

    def now_ms(self) -> int:
        """The time, or the highest one given out if that is later."""
        now = self.wall_ms() if self._store is None else self._store.now_ms(self._monotonic_ms())
        self._mark_ms = max(self._mark_ms, now)
        return self._mark_ms

    def wall_ms(self) -> int:
        """The wall clock's time as it is: who is right again after a jump must be believed."""
        return self._wall_ns() // 1_000_000

    def compare(self, asked_ms: int, store_ms: int) -> Compared:
        """See `ServerClock.compare`."""
        store_ms += self._moved_ns() // 1_000_000
        wall_ms, now = self.wall_ms(), self._monotonic_ms()
        took_ms = wall_ms - asked_ms
        set_by_ms = wall_ms - now - self._wall_lead_ms
        self._wall_lead_ms = wall_ms - now
        if self._store is not None and abs(set_by_ms) > STEP_MS:
            # The wall clock was set since the last comparison, perhaps after the question: then so
            # much of the time to the answer did not pass.
            either = (took_ms, took_ms - set_by_ms)
            took_ms = min([each for each in either if each >= 0], default=-1)
        if self._store is None:
            self._mark_ms = 0  # of a wall clock that may have been wrong
            self._store = _Seen(store_ms, now - max(0, took_ms), max(0, took_ms))
        elif took_ms >= 0:
            seen = _Seen(store_ms, now - took_ms, took_ms)
            if seen.is_better_than(self._store, now):
                self._store = seen
        # The store looked at its clock at some moment between the question and the answer.
        ahead_ms = max(0, asked_ms - store_ms) + min(0, wall_ms - store_ms)
        return Compared(ahead_ms, store_ms)

    def remembered_ms(self) -> int | None:
        """See `ServerClock.remembered_ms`."""
        now = self._monotonic_ms()
        if self._store is None or abs(self.wall_ms() - now - self._wall_lead_ms) > STEP_MS:
            return None
        return self._store.now_ms(now) - self._store.took_ms

    def _monotonic_ms(self) -> int:
        return self._monotonic_ns() // 1_000_000


class _Seen(NamedTuple):
    """What a store's clock showed, at some moment between a question and its answer."""

    store_ms: int
    asked_at: int
    """Monotonic; as if the store had looked at once, so that its clock seems rather ahead."""
    took_ms: int

    def now_ms(self, monotonic_ms: int) -> int:
        """The store's time: at least the true one, and at most `took_ms` more."""
        return self.store_ms + monotonic_ms - self.asked_at

    def is_better_than(self, other: "_Seen", monotonic_ms: int) -> bool:
        """Whether it is more exact, or shows that the store's clock was set."""
        mine, others = self.now_ms(monotonic_ms), other.now_ms(monotonic_ms)
        drifted = (monotonic_ms - other.asked_at) // 1000
        is_contradicted = others < mine - self.took_ms - drifted or (
            others - other.took_ms > mine + drifted
        )
        return is_contradicted or self.took_ms <= other.took_ms + drifted


def wall_clock_ns() -> Callable[[], int]:
    """The system's time of day in nanoseconds, moved by the test file if a test names one."""
    if not os.environ.get(TEST_OFFSET_VARIABLE):
        return time.time_ns
    return lambda: time.time_ns() + _test_offset_ns()


def _test_offset_ns() -> int:
    """By how much a test has moved the time, for a process and for its store alike."""
    file = os.environ.get(TEST_OFFSET_VARIABLE)
    return int(Path(file).read_text(encoding="ascii") or 0) * 1_000_000 if file else 0
