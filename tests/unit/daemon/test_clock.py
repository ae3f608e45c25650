"""The daemon's time."""

from tidelog.daemon.clock import DaemonClock

HOUR = 3_600_000


class Hands:
    """A wall clock and a monotonic one, moved by hand."""

    def __init__(self) -> None:
        self.wall = 1_000 * HOUR
        self.monotonic = 0

    def clock(self, mark_ms: int = 0) -> DaemonClock:
        """A daemon's clock that follows them."""
        return DaemonClock(lambda: self.wall, lambda: self.monotonic, mark_ms)


def test_it_is_the_wall_clock_as_long_as_that_behaves() -> None:
    """Nothing is added to a clock that runs evenly."""
    hands = Hands()
    clock = hands.clock()
    hands.wall += 500
    hands.monotonic += 500
    assert clock.now_ms() == hands.wall


def test_a_step_back_neither_goes_back_nor_stands_still() -> None:
    """Delays still pass after a step back."""
    hands = Hands()
    clock = hands.clock()
    before = clock.now_ms()
    hands.wall -= 300 * HOUR
    hands.monotonic += 700
    assert clock.now_ms() == before + 700
    hands.wall += 300
    hands.monotonic += 300
    assert clock.now_ms() == before + 1000


def test_a_jump_ahead_counts() -> None:
    """A machine that slept has aged."""
    hands = Hands()
    clock = hands.clock()
    hands.wall += 200 * HOUR
    assert clock.now_ms() == hands.wall


def test_time_goes_on_from_a_stored_mark() -> None:
    """After a restart with a wrong clock, what passes is added to the mark."""
    hands = Hands()
    mark = hands.wall + 100 * HOUR
    hands.wall -= 200 * HOUR
    clock = hands.clock()
    clock.raise_to(mark)
    assert clock.now_ms() == mark
    hands.wall += 50 * HOUR
    assert clock.now_ms() == mark + 50 * HOUR


def test_a_mark_in_the_past_changes_nothing() -> None:
    """The wall clock has passed it long ago."""
    hands = Hands()
    clock = hands.clock(mark_ms=hands.wall - HOUR)
    assert clock.now_ms() == hands.wall
