"""What was delivered never takes the room of what is to be (mesh 4.5)."""

from collections.abc import Callable

import pytest

from tidelog.base.errors import StoreError
from tidelog.daemon.outbox.outbox_db import NewSend, Outbox, Settlement
from tidelog.daemon.outbox.pressure import Level
from tidelog.testing.clock import FakeClock

HOUR_MS = 3_600_000
BUDGET = 200_000
Open = Callable[..., Outbox]


@pytest.fixture
def outbox_limits() -> dict[str, int]:
    """Little room for content; the number of messages is no limit."""
    return {"budget_bytes": BUDGET, "max_queue_size": 10**6}


def accept(outbox: Outbox, name: str, size: int) -> bool:
    """Whether a send of so many bytes was stored."""
    [result] = outbox.accept([NewSend(name, b"f" * 32, b"x" * size)])
    return not isinstance(result, StoreError)


def deliver(outbox: Outbox, history_id: int = 1, incarnation: str | None = None) -> None:
    """Everything that waits reaches the broker."""
    outbox.settle(
        [
            Settlement(claim=claim, status="done", history_id=history_id, incarnation=incarnation)
            for claim in outbox.claim()
        ]
    )


def content(outbox: Outbox, name: str) -> int:
    """Bytes of a row's content that are kept."""
    return len(outbox.inspect(name)[0].payload)


def test_delivered_messages_never_make_it_refuse(outbox: Outbox) -> None:
    """Five times the budget goes through it; what is kept of that stays within half of it."""
    for number in range(100):
        assert accept(outbox, f"m-{number}", 10_000), f"message {number} was refused"
        deliver(outbox)
        assert outbox.level() is Level.NORMAL
    outbox.turn([])
    kept = [content(outbox, f"m-{number}") for number in range(100)]
    assert 0 < sum(kept) <= BUDGET // 2
    assert kept == sorted(kept), "the oldest are emptied first"


def test_the_records_of_delivered_messages_are_no_reason_to_refuse(reopen: Open) -> None:
    """Rows stay for ever, so that their ids stay taken: they alone are more than the budget."""
    outbox = reopen(budget_bytes=20_000)
    for number in range(0, 320, 16):
        for each in range(number, number + 16):
            assert accept(outbox, f"m-{each}", 100), f"message {each} was refused"
        deliver(outbox)
    assert outbox.level() is Level.NORMAL


def test_content_of_delivered_messages_is_kept_for_a_time(outbox: Outbox, clock: FakeClock) -> None:
    """As long as a broker may be restored to before them; then it goes without being asked."""
    accept(outbox, "old", 100)
    deliver(outbox)
    clock.advance(100 * HOUR_MS)
    accept(outbox, "new", 100)
    deliver(outbox)
    clock.advance(69 * HOUR_MS)
    outbox.turn([])
    assert (content(outbox, "old"), content(outbox, "new")) == (0, 100)


def test_what_may_be_lost_is_kept(outbox: Outbox, clock: FakeClock) -> None:
    """It can be sent again, which only people can decide, so neither age nor room empties it."""
    outbox.follow("h1", 0)
    accept(outbox, "lost", 60_000)
    deliver(outbox, 5, "h1")
    outbox.follow("h2", 4)
    for number in range(20):
        assert accept(outbox, f"m-{number}", 10_000)
        deliver(outbox, 4, "h2")
    clock.advance(1000 * HOUR_MS)
    outbox.turn([])
    assert content(outbox, "lost") == 60_000
    assert outbox.requeue(outbox.inspect("lost")[0].id).maybe_delivered


def test_what_waits_fills_it(outbox: Outbox) -> None:
    """Only what is not delivered counts against the budget, also after it has failed for good."""
    results = [accept(outbox, f"m-{number}", 10_000) for number in range(20)]
    assert results == [True] * 19 + [False]
    claims = outbox.claim()
    outbox.settle([Settlement(claim=claim, status="dead", error="404") for claim in claims])
    assert not accept(outbox, "one-more", 10_000)
    for row in outbox.rows("dead"):
        outbox.drop(row.id)
    assert accept(outbox, "one-more", 10_000)


def test_the_count_survives_a_restart(reopen: Open) -> None:
    """It is stored with the rows."""
    outbox = reopen()
    for number in range(12):
        accept(outbox, f"m-{number}", 10_000)
    shares = outbox.shares()
    assert shares["outbox"] > 0.6
    assert reopen().shares() == shares


def test_a_disk_that_runs_full_is_no_reason_either(reopen: Open) -> None:
    """Content of delivered messages goes first, and the pages it leaves are used again."""
    outbox = reopen(budget_bytes=10**9)
    for number in range(20):
        accept(outbox, f"m-{number}", 10_000)
    deliver(outbox)
    outbox = reopen(free_bytes=1_040_000, budget_bytes=10**9)
    assert outbox.level() is Level.REFUSING
    outbox.turn([])
    assert outbox.level() < Level.REFUSING
    assert accept(outbox, "one-more", 10_000)
