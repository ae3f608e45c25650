"""The wall clock never runs backwards; the fake one does what it is told."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.clock import Clock, Compared, SystemClock
from tidelog.testing.clock import FakeClock


def test_system_clock_shows_the_wall_clock() -> None:
    """The system clock is the wall clock in whole milliseconds."""
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    assert before <= now <= time.time_ns() // 1_000_000


def test_step_back_returns_the_mark() -> None:
    """A wall clock that steps back is answered with the highest time given out."""
    wall = iter([5_000_000_000, 4_000_000_000, 4_999_999_999, 5_001_000_000])
    clock = SystemClock(lambda: next(wall))
    assert [clock.now_ms() for _ in range(4)] == [5000, 5000, 5000, 5001]


def test_time_before_the_epoch_is_zero() -> None:
    """A clock set before 1970 gives 0, never a negative time."""
    assert SystemClock(lambda: -1).now_ms() == 0


@given(st.lists(st.integers(min_value=-(2**62), max_value=2**62), min_size=1))
def test_system_clock_never_decreases(wall: list[int]) -> None:
    """Whatever the wall clock does, times never decrease and never lag behind it."""
    ticks = iter(wall)
    clock = SystemClock(lambda: next(ticks))
    seen = [clock.now_ms() for _ in wall]
    assert seen == sorted(seen)
    assert all(now >= tick // 1_000_000 for now, tick in zip(seen, wall, strict=True))


def test_fake_clock_moves_only_when_told() -> None:
    """A fake clock stands still, advances and jumps either way."""
    fake = FakeClock(1000)
    clock: Clock = fake
    assert clock.now_ms() == clock.now_ms() == 1000
    fake.advance(5)
    assert clock.now_ms() == 1005
    fake.set(3)
    assert clock.now_ms() == 3


def test_fake_clock_does_not_advance_backwards() -> None:
    """Going back has to be said with `set`: a negative advance is a slip of the test."""
    with pytest.raises(ValueError, match="use set"):
        FakeClock().advance(-1)


def test_the_wall_clock_is_believed_again_after_a_jump() -> None:
    """Times that others wrote are judged by the wall clock, which a mark must not hold back."""
    wall = [5_000_000_000]
    clock = SystemClock(lambda: wall[0])
    assert (clock.now_ms(), clock.wall_ms()) == (5000, 5000)
    wall[0] = 2_000_000_000
    assert (clock.now_ms(), clock.wall_ms()) == (5000, 2000)


class Machine:
    """A machine's two clocks, and a store's, in ms; all three go on when time passes."""

    def __init__(self) -> None:
        self.wall, self.monotonic, self.store = 1_000_000, 50, 1_000_000
        self.clock = SystemClock(lambda: self.wall * 1_000_000, lambda: self.monotonic * 1_000_000)

    def pass_ms(self, ms: int) -> None:
        """Time passes."""
        self.wall += ms
        self.monotonic += ms
        self.store += ms

    def ask(self, before_ms: int = 0, after_ms: int = 0) -> Compared:
        """Ask the store, which looks at its clock somewhere between question and answer."""
        asked = self.clock.wall_ms()
        self.pass_ms(before_ms)
        shown = self.store
        self.pass_ms(after_ms)
        return self.clock.compare(asked, shown)


def test_a_clock_that_was_compared_tells_the_stores_time() -> None:
    """Whatever the wall clock does: a jump, an hour back, a jump in the middle of a question."""
    machine = Machine()
    machine.store += 300
    assert machine.ask() == Compared(-300, 1_000_300)
    machine.pass_ms(1000)
    machine.wall += 590_000
    assert machine.clock.now_ms() == machine.store
    assert machine.ask().ahead_ms == 589_700
    machine.wall -= 3_600_000
    assert machine.ask().ahead_ms == -(3_600_000 - 589_700)
    assert machine.clock.now_ms() == machine.store
    asked = machine.clock.wall_ms()
    machine.wall += 3_600_000
    assert machine.clock.compare(asked, machine.store).store_ms == machine.store
    assert machine.clock.now_ms() == machine.store


def test_a_slow_answer_shows_no_difference_that_may_not_be_there() -> None:
    """A store that was waited for for minutes is as right as one that answered at once."""
    machine = Machine()
    assert machine.ask(before_ms=300_000).ahead_ms == 0
    assert machine.ask(after_ms=300_000).ahead_ms == 0
    machine.wall += 6000
    assert machine.ask(before_ms=2000).ahead_ms == 4000, "at least"


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 60_000))))
def test_it_is_never_behind_the_store(questions: list[tuple[int, int, int]]) -> None:
    """However long answers take, and whenever the store looks at its clock meanwhile."""
    machine = Machine()
    for before_ms, after_ms, pause_ms in questions:
        machine.ask(before_ms, after_ms)
        assert machine.store <= machine.clock.now_ms()
        machine.pass_ms(pause_ms)
        assert machine.store <= machine.clock.now_ms()


def test_a_store_whose_clock_was_set_is_followed() -> None:
    """Another database takes over, and its clock is ahead; or that of this one was corrected."""
    machine = Machine()
    machine.ask()
    machine.store += 60_000
    machine.ask(before_ms=40)
    assert 0 <= machine.clock.now_ms() - machine.store <= 40
    machine.store -= 30_000
    mark = machine.clock.now_ms()
    machine.ask()
    assert machine.clock.now_ms() == mark, "times never decrease"
    machine.pass_ms(30_100)
    assert machine.clock.now_ms() == machine.store


@pytest.mark.parametrize("is_asked_before", [True, False])
@pytest.mark.parametrize("set_by_ms", [700_000_000, -700_000_000])
def test_clocks_that_are_set_together_while_one_is_asked(
    set_by_ms: int, *, is_asked_before: bool
) -> None:
    """As on one machine: what they were set by did not pass, so nothing expires by it."""
    machine = Machine()
    machine.ask()
    machine.pass_ms(1000)
    mark = machine.clock.now_ms()
    asked = machine.clock.wall_ms()
    machine.wall += set_by_ms
    machine.store += set_by_ms
    if not is_asked_before:
        asked = machine.clock.wall_ms()
    machine.pass_ms(5)
    machine.clock.compare(asked, machine.store)
    assert 0 <= machine.clock.now_ms() - max(mark, machine.store) <= 5


def test_a_mark_of_a_wrong_wall_clock_is_forgotten_at_the_first_comparison() -> None:
    """A machine that started an hour ahead does not stay there once it knows the store's time."""
    machine = Machine()
    machine.wall += 3_600_000
    assert machine.clock.now_ms() == 4_600_000
    machine.ask()
    assert machine.clock.now_ms() == machine.store
