"""The wall clock never runs backwards; the fake one does what it is told."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.clock import Clock, SystemClock
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
