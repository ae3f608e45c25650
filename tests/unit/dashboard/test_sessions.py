"""Logins: how long they last, how many there are, and how fast one may guess."""

import pytest

from tidelog.dashboard.sessions import (
    MAX_ADDRESSES,
    MAX_SESSIONS,
    SECONDS_PER_TRY,
    SESSION_SECONDS,
    TRIES,
    Sessions,
    Tries,
    is_same,
)


class Moment:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_a_session_ends_after_its_time() -> None:
    """A login holds for twelve hours and not a moment longer."""
    moment = Moment()
    sessions = Sessions(moment)
    session = sessions.begin()
    moment.now += SESSION_SECONDS - 1
    assert sessions.is_open(session)
    moment.now += 1
    assert not sessions.is_open(session)


def test_a_session_ends_when_it_is_ended() -> None:
    """Logging out ends one login and no other."""
    sessions = Sessions(Moment())
    first, second = sessions.begin(), sessions.begin()
    sessions.end(first)
    assert not sessions.is_open(first)
    assert sessions.is_open(second)
    sessions.end("never begun")


def test_sessions_are_bounded() -> None:
    """One login more than there may be ends the oldest."""
    sessions = Sessions(Moment())
    made = [sessions.begin() for _ in range(MAX_SESSIONS + 1)]
    assert not sessions.is_open(made[0])
    assert all(sessions.is_open(session) for session in made[1:])


@pytest.mark.parametrize("guess", ["", "x", "\ud800", "a" * 100_000])
def test_a_guess_is_no_session(guess: str) -> None:
    """Whatever a cookie holds, it opens nothing that was not begun here."""
    sessions = Sessions(Moment())
    sessions.begin()
    assert not sessions.is_open(guess)


def test_wrong_tokens_use_tries_up() -> None:
    """After the tries are used up an address waits, and gets one back for the time it waited."""
    moment = Moment()
    tries = Tries(moment)
    for _ in range(TRIES):
        assert tries.wait_seconds("a") == 0
        tries.failed("a")
    assert tries.wait_seconds("a") == SECONDS_PER_TRY
    assert tries.wait_seconds("b") == 0, "another address pays for it"
    moment.now += SECONDS_PER_TRY
    assert tries.wait_seconds("a") == 0
    tries.failed("a")
    assert tries.wait_seconds("a") > 0


def test_addresses_are_bounded() -> None:
    """Many addresses cannot fill the memory; the one that tried longest ago is forgotten."""
    tries = Tries(Moment())
    for _ in range(TRIES):
        tries.failed("old")
    for number in range(MAX_ADDRESSES):
        tries.failed(f"address-{number}")
    assert tries.wait_seconds("old") == 0
    assert len(tries._left) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("given", "verdict"), [("token", True), ("tokem", False), ("", False), ("tokentoken", False)]
)
def test_only_the_same_token_is_the_same(given: str, verdict: bool) -> None:
    """A token fits wholly or not at all."""
    assert is_same(given, "token") is verdict
