"""ULIDs sort as text in the order they were given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.clock import SystemClock
from tidelog.base.ids import (
    Ulid,
    UlidFactory,
    parse_ulid,
)
from tidelog.testing.clock import FakeClock

TIMES = st.integers(min_value=0, max_value=2**48 - 2)


def test_known_ulid() -> None:
    """A ULID is 10 characters of time and 16 of randomness in Crockford's alphabet."""
    factory = UlidFactory(FakeClock(1_469_918_176_385), lambda size: bytes(range(size)))
    assert factory.mint() == "01ARYZ6S41000G40R40M30E209"


@given(TIMES, st.binary(min_size=10, max_size=10))
def test_ulid_keeps_time_and_randomness(now_ms: int, entropy: bytes) -> None:
    """Parsing gives back exactly the time and the random bits that went in."""
    text = UlidFactory(FakeClock(now_ms), lambda _: entropy).mint()
    assert len(text) == 26
    assert parse_ulid(text) == Ulid(now_ms, int.from_bytes(entropy, "big"))


@given(st.lists(TIMES, min_size=2, max_size=50))
def test_ulids_increase_whatever_the_clock_does(times: list[int]) -> None:
    """Each ULID is greater as text than the last, also when time stands still or goes back."""
    clock = FakeClock()
    factory = UlidFactory(clock)
    minted = []
    for now_ms in times:
        clock.set(now_ms)
        minted += [factory.mint(), factory.mint()]
    assert minted == sorted(set(minted))


def test_clock_stepping_back_keeps_the_last_millisecond() -> None:
    """After a step back the time of the last ULID is used until the clock has passed it."""
    clock = FakeClock(1000)
    factory = UlidFactory(clock)
    first = parse_ulid(factory.mint())
    clock.set(10)
    assert parse_ulid(factory.mint()) == Ulid(1000, first.entropy + 1)
    clock.set(1001)
    assert parse_ulid(factory.mint()).unix_ms == 1001


def test_exhausted_randomness_moves_to_the_next_millisecond() -> None:
    """When the 80 random bits overflow the next ULID belongs to the next millisecond."""
    factory = UlidFactory(FakeClock(7), lambda size: b"\xff" * size)
    first, second = factory.mint(), factory.mint()
    assert parse_ulid(first) == Ulid(7, 2**80 - 1)
    assert parse_ulid(second).unix_ms == 8
    assert second > first


def test_randomness_is_drawn_anew_each_millisecond() -> None:
    """Ten fresh random bytes are asked for in each new millisecond and only then."""
    asked: list[int] = []

    def random_bytes(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    clock = FakeClock()
    factory = UlidFactory(clock, random_bytes)
    factory.mint()
    factory.mint()
    clock.advance(1)
    factory.mint()
    assert asked == [10, 10]


@pytest.mark.parametrize("now_ms", [2**48, 2**60])
def test_time_beyond_48_bits_is_refused(now_ms: int) -> None:
    """A time that does not fit into 48 bits cannot become a ULID."""
    with pytest.raises(OverflowError, match="48 bits"):
        UlidFactory(FakeClock(now_ms)).mint()


def test_overflow_of_the_last_ulid_is_refused() -> None:
    """After the greatest ULID there is none, rather than a wrap-around to the smallest."""
    factory = UlidFactory(FakeClock(2**48 - 1), lambda size: b"\xff" * size)
    assert factory.mint() == "7" + "Z" * 25
    with pytest.raises(OverflowError):
        factory.mint()


def test_default_randomness_differs_between_factories() -> None:
    """Two processes that start in the same millisecond do not mint the same ids."""
    clock = FakeClock()
    assert UlidFactory(clock).mint() != UlidFactory(clock).mint()


def test_system_clock_fits() -> None:
    """The real clock can be used and gives a time close to its own."""
    clock = SystemClock()
    assert abs(parse_ulid(UlidFactory(clock).mint()).unix_ms - clock.now_ms()) < 60_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01ARYZ6S41000G40R40M30E20",
        "01ARYZ6S41000G40R40M30E2090",
        "01aryz6s41000g40r40m30e209",
        "01ARYZ6S41000G40R40M30E20I",
        "01ARYZ6S41000G40R40M30E20L",
        "01ARYZ6S41000G40R40M30E20O",
        "01ARYZ6S41000G40R40M30E20U",
        "81ARYZ6S41000G40R40M30E209",
        "01ARYZ6S41000G40R40M30E20\n",
        "01ARYZ6S41000G40R40M30E20\u0660",
    ],
)
def test_other_spellings_are_no_ulids(text: str) -> None:
    """An id has one spelling: lower case, aliases, other lengths and overflow are refused."""
    with pytest.raises(ValueError, match="not a ULID"):
        parse_ulid(text)
