"""Logins: how long they last, how many there are, and how fast one may guess."""

import pytest

from tidelog.dashboard.sessions import (
    MAX_ADDRESSES,
    MAX_ENDED,
    SECONDS_PER_TRY,
    SESSION_SECONDS,
    TRIES,
    EndedLogins,
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


def sessions_of(moment: Moment, token: str = "token", log_id: str = "log") -> Sessions:
    """The logins of one node."""
    return Sessions(token, log_id, EndedLogins(moment))


def test_a_session_ends_after_its_time() -> None:
    """A login holds for twelve hours and not a moment longer."""
    moment = Moment()
    sessions = sessions_of(moment)
    session = sessions.begin()
    moment.now += SESSION_SECONDS - 1
    assert sessions.is_open(session)
    moment.now += 1
    assert not sessions.is_open(session)


def test_every_node_accepts_a_session() -> None:
    """Also one that starts later; not with another token, and not of another log."""
    moment = Moment()
    session = sessions_of(moment).begin()
    assert sessions_of(moment).is_open(session)
    assert not sessions_of(moment, token="another").is_open(session)
    assert not sessions_of(moment, log_id="another").is_open(session)


def test_a_session_ends_when_it_is_ended() -> None:
    """Logging out ends one login and no other, and on the nodes that are told of it."""
    moment = Moment()
    known = EndedLogins(moment)
    here, there = sessions_of(moment), Sessions("token", "log", known)
    first, second = here.begin(), here.begin()
    ended = here.end(first)
    assert ended is not None
    assert not here.is_open(first)
    assert known.note(ended)
    assert not known.note(ended), "no news"
    assert known.all() == [ended]
    assert not there.is_open(first)
    assert here.is_open(second)
    assert there.is_open(second)
    assert here.end(first) == ended, "telling the others may have failed"
    assert here.end("never begun") is None
    moment.now += SESSION_SECONDS
    assert here.end(first) is None


def test_what_is_remembered_is_bounded() -> None:
    """A login that would be over anyway is forgotten; so is the oldest, if there are too many."""
    moment = Moment()
    known = EndedLogins(moment)
    sessions = Sessions("token", "log", known)
    for _ in range(MAX_ENDED + 1):
        sessions.end(sessions.begin())
    assert len(known.all()) == MAX_ENDED
    moment.now += SESSION_SECONDS
    sessions.end(sessions.begin())
    assert len(known.all()) == 1


@pytest.mark.parametrize("guess", ["", "x", ".", "..", "\ud800", "a" * 100_000, "9999999999.x.y"])
def test_a_guess_is_no_session(guess: str) -> None:
    """Whatever a cookie holds, it opens nothing that was not begun by a node of the log."""
    sessions = sessions_of(Moment())
    assert not sessions.is_open(guess)


def test_a_session_cannot_be_made_longer() -> None:
    """Its end is signed."""
    moment = Moment()
    sessions = sessions_of(moment)
    ends, rest = sessions.begin().split(".", 1)
    assert not sessions.is_open(f"{int(ends) + 1}.{rest}")


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
