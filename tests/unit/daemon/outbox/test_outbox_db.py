"""The outbox never forgets an id, and every change of a row is a compare-and-set (mesh 4)."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.base.errors import ConfigError, SchemaTooNew, StoreDamaged, StoreUnavailable
from tidelog.daemon.outbox.outbox_db import MAX_DELAY_MS, NewSend, Outbox, OutboxRefused, Settlement
from tidelog.daemon.outbox.pressure import Level, Pressure
from tidelog.daemon.settings import DiskSettings, OutboxSettings
from tidelog.mesh.protocol.fingerprint import make_envelope
from tidelog.mesh.protocol.negotiation import Parameters
from tidelog.mesh.protocol.policy import AcceptReply, MaxAgeRefused
from tidelog.testing.clock import FakeClock

HOUR_MS = 3_600_000
ANA, BOB = "a0" * 32, "b0" * 32
Open = Callable[..., Outbox]


def accept(outbox: Outbox, *ids: str, content: bytes = b"f") -> list[int]:
    """Statuses of the answers to sends with these ids."""
    results = outbox.accept([NewSend(name, content * 32, b"{}") for name in ids])
    return [result.status if isinstance(result, AcceptReply) else 507 for result in results]


def statuses(outbox: Outbox) -> dict[str, str]:
    """Id to status."""
    return {row.client_message_id: row.status for row in outbox.rows()}


def addressed(to: str | None, key: str, text: str = "x") -> NewSend:
    """A send under one id to a member, as it was asked for and as that was taken."""
    envelope = make_envelope(destination_kind="dm", destination_ref=key, body=text.encode())
    return NewSend("a", envelope.fingerprint(), envelope.payload(), to, key)


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [
        (addressed("dm:bob", ANA), addressed("dm:bob", BOB), 202),
        (addressed("dm:bob", ANA), addressed("bob", BOB), 202),
        (addressed("dm:bob", ANA), addressed("dm:bob", BOB, "y"), 409),
        (addressed("dm:bob", ANA), addressed("dm:ana", BOB), 409),
        (addressed("dm:bob", ANA), addressed(f"dm:{ANA}", ANA), 202),
        (addressed(None, ANA), addressed("dm:bob", BOB), 409),
    ],
)
def test_the_same_words_are_judged_under_the_rows_own_destination(
    outbox: Outbox, first: NewSend, again: NewSend, status: int
) -> None:
    """In the transaction: a name may get another meaning while its send is on the way."""
    assert [answer.status for answer in outbox.accept([first]) if isinstance(answer, AcceptReply)]
    [answer] = outbox.accept([again])
    assert isinstance(answer, AcceptReply)
    assert answer.status == status
    row, _ = outbox.inspect("a")
    assert (row.to, row.destination_ref) == (first.to, ANA)


def done(outbox: Outbox, incarnation: str | None, **history_ids: int | None) -> None:
    """Rows that a broker has accepted in one of its histories."""
    accept(outbox, *history_ids)
    outbox.settle(
        [
            Settlement(
                claim=claim,
                status="done",
                history_id=history_ids[claim.client_message_id],
                incarnation=incarnation,
            )
            for claim in outbox.claim()
        ]
    )


def lost(outbox: Outbox) -> list[str]:
    """Ids of the rows that are possibly lost, oldest first."""
    rows = [row.client_message_id for row in reversed(outbox.lost_rows())]
    assert outbox.possibly_lost() == len(rows)
    return rows


def test_what_another_history_does_not_share_is_possibly_lost(reopen: Open) -> None:
    """Whatever history a row is from; one without a place cannot be judged, and is left alone."""
    outbox = reopen()
    done(outbox, None, old=3)
    assert outbox.follow("h1", 0) == 0, "which history that was nobody knows"
    done(outbox, "h1", a=4, b=5, pruned=None)
    assert outbox.follow("h1", 0) == 0
    assert outbox.follow("h2", 4) == 1
    assert (lost(outbox), outbox.incarnation) == (["b"], "h2")
    outbox = reopen()
    done(outbox, "h2", c=5, d=6)
    assert (lost(outbox), outbox.incarnation) == (["b"], "h2")
    assert outbox.follow("h3", 2**70) == 0
    assert outbox.follow("h4", 2) == 4
    assert lost(outbox) == ["old", "a", "b", "c", "d"]


def test_a_history_that_is_back_has_its_own(outbox: Outbox) -> None:
    """The operator serves a copy for a while, then the log it was made of again."""
    outbox.follow("h1", 0)
    done(outbox, "h1", a=1, b=2)
    assert outbox.follow("copy", 1) == 1
    done(outbox, "copy", c=2)
    assert outbox.follow("h1", 0) == 1, "it never heard of the copy"
    assert lost(outbox) == ["c"]


def test_an_acceptance_of_a_lost_history_is_none(outbox: Outbox) -> None:
    """It was not stored when the rows of that history were judged: the row is tried again."""
    outbox.follow("h1", 0)
    accept(outbox, "a")
    [claim] = outbox.claim()
    outbox.follow("h2", 0)
    accepted = Settlement(claim=claim, status="done", history_id=9, incarnation="h1", delay_ms=0)
    assert outbox.settle([accepted]) == [True]
    assert (statuses(outbox), lost(outbox)) == ({"a": "pending"}, [])
    assert outbox.counts()["pending"] == 1
    [again] = outbox.claim()
    outbox.settle(
        [Settlement(claim=again, status="done", history_id=4, incarnation="h2", delay_ms=0)]
    )
    assert (outbox.inspect("a")[0].history_id, lost(outbox)) == (4, [])


def test_only_a_possibly_lost_row_that_is_done_is_retired(outbox: Outbox) -> None:
    """While its content is there; the others stay as they are."""
    outbox.follow("h1", 0)
    done(outbox, "h1", kept=1, pruned=2)
    outbox.prune()
    done(outbox, "h1", lost=3)
    outbox.follow("h2", 1)
    rows = {row.client_message_id: row for row in outbox.rows()}
    for name, code in (("kept", "outbox_row_done"), ("pruned", "outbox_payload_pruned")):
        with pytest.raises(OutboxRefused, match=code):
            outbox.requeue(rows[name].id)
    with pytest.raises(OutboxRefused, match="outbox_row_done"):
        outbox.drop(rows["kept"].id)
    assert outbox.prune() == 0
    answer = outbox.requeue(rows["lost"].id)
    assert answer.maybe_delivered
    assert outbox.drop(rows["pruned"].id).maybe_delivered
    assert lost(outbox) == []
    assert outbox.counts() == {"pending": 1, "inflight": 0, "done": 1, "dead": 0, "aborted": 2}


def test_a_turn_costs_the_same_whatever_waits(tmp_path: Path, clock: FakeClock) -> None:
    """Rows that are not attempted now are not read: a broker may have been away for a day."""
    limits = OutboxSettings(max_queue_size=10_000)
    pressure = Pressure(limits, DiskSettings(), tmp_path, clock.now_ms, lambda _: 10**12)
    outbox = Outbox(tmp_path / "outbox.db", pressure, clock)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    costs = []
    for waiting in (50, 2000):
        accept(outbox, *(f"id-{number}" for number in range(outbox.waiting, waiting)))
        before = steps
        outbox._database.connection.set_progress_handler(count, 10)
        assert len(outbox.claim(8)) == 8
        outbox._database.connection.set_progress_handler(None, 10)
        costs.append(steps - before)
    outbox.close()
    assert costs[1] < 2 * costs[0]


def test_rows_are_attempted_in_the_order_they_came(outbox: Outbox) -> None:
    """At most 32 at once, each once, and none again while it is under way."""
    ids = [f"id-{number:02}" for number in range(40)]
    accept(outbox, *ids)
    assert [claim.client_message_id for claim in outbox.claim()] == ids[:32]
    assert [claim.client_message_id for claim in outbox.claim()] == ids[32:]
    assert outbox.claim() == []
    assert outbox.counts()["inflight"] == 40
    assert outbox.next_due_in_ms() is None


def test_a_failed_attempt_waits(outbox: Outbox, clock: FakeClock) -> None:
    """It is due after its delay, and counts its attempts."""
    accept(outbox, "a")
    [claim] = outbox.claim()
    assert outbox.settle(
        [Settlement(claim=claim, status="pending", error="timeout", delay_ms=700)]
    ) == [True]
    assert (outbox.claim(), outbox.next_due_in_ms()) == ([], 700)
    clock.advance(700)
    assert outbox.next_due_in_ms() == 0
    [again] = outbox.claim()
    assert again.attempts == 2
    assert outbox.inspect("a")[0].last_error == "timeout"


def test_a_late_answer_changes_nothing(outbox: Outbox, clock: FakeClock) -> None:
    """Neither that of an abandoned attempt nor a second one of the same."""
    accept(outbox, "a")
    [first] = outbox.claim()
    outbox.settle([Settlement(claim=first, status="pending", delay_ms=0)])
    [second] = outbox.claim()
    late = Settlement(claim=first, status="dead", error="403")
    good = Settlement(claim=second, status="done", broker_message_id="01B", history_id=3)
    assert outbox.settle([late, good, good]) == [False, True, False]
    row = outbox.inspect("a")[0]
    assert (row.status, row.broker_message_id, row.history_id) == ("done", "01B", 3)
    assert row.delivered_at == clock.now_ms()
    assert outbox.counts() == {"pending": 0, "inflight": 0, "done": 1, "dead": 0, "aborted": 0}


def test_an_attempt_ends_in_three_ways_only(outbox: Outbox) -> None:
    """Nothing settles a row as `aborted`."""
    accept(outbox, "a")
    [claim] = outbox.claim()
    with pytest.raises(ValueError, match="cannot end"):
        outbox.settle([Settlement(claim=claim, status="aborted")])
    assert statuses(outbox) == {"a": "inflight"}


def test_a_restart_repeats_what_was_under_way(reopen: Open, clock: FakeClock) -> None:
    """One attempt more, due after the shortest delay."""
    outbox = reopen()
    accept(outbox, "a", "b")
    outbox.claim(1)
    outbox = reopen()
    assert outbox.counts()["inflight"] == 1
    assert outbox.recover_inflight() == 1
    row = outbox.inspect("a")[0]
    assert (row.status, row.attempts) == ("pending", 2)
    assert row.next_attempt_at == clock.now_ms() + 500
    assert [claim.client_message_id for claim in outbox.claim()] == ["b"]


def test_a_row_dies_of_age_before_it_is_attempted(outbox: Outbox, clock: FakeClock) -> None:
    """At the limit, not one millisecond before it (FT-23 a)."""
    accept(outbox, "a")
    clock.advance(144 * HOUR_MS - 1)
    assert outbox.expire() == 0
    clock.advance(1)
    assert outbox.claim() == []
    row = outbox.inspect("a")[0]
    assert (row.status, row.last_error, row.attempts) == ("dead", "max_age_exceeded", 0)
    assert not row.maybe_delivered


def test_a_clock_that_steps_back_makes_nothing_younger(reopen: Open, clock: FakeClock) -> None:
    """The mark survives a restart (FT-23 b)."""
    start = clock.now_ms()
    outbox = reopen()
    accept(outbox, "a")
    [claim] = outbox.claim()
    outbox.settle([Settlement(claim=claim, status="pending")])
    clock.set(start + 100 * HOUR_MS)
    assert outbox.expire() == 0
    clock.set(start - 200 * HOUR_MS)
    outbox = reopen()
    accept(outbox, "b")
    clock.set(start + 50 * HOUR_MS)
    assert outbox.expire() == 0  # 100 hours old by the mark
    clock.set(start + 144 * HOUR_MS)
    assert outbox.expire() == 1
    assert statuses(outbox) == {"a": "dead", "b": "pending"}
    assert outbox.inspect("a")[0].maybe_delivered


def test_a_clock_that_steps_back_does_not_stop_attempts(outbox: Outbox, clock: FakeClock) -> None:
    """A row scheduled by a clock that ran ahead is due at once."""
    accept(outbox, "a")
    clock.set(clock.now_ms() - 300 * HOUR_MS)
    assert outbox.next_due_in_ms() == 0
    [claim] = outbox.claim()
    outbox.settle([Settlement(claim=claim, status="pending", delay_ms=10**9)])
    assert outbox.next_due_in_ms() == MAX_DELAY_MS


@pytest.mark.parametrize(
    "use", [lambda outbox: accept(outbox, "a"), lambda outbox: outbox.follow("first", 0)]
)
def test_an_outbox_that_was_of_use_stays_with_its_mesh(
    reopen: Open, use: Callable[[Outbox], object]
) -> None:
    """Whether it has a row or the mesh has welcomed it; the refusal names both and the remedies."""
    outbox = reopen()
    outbox.belong_to("harbour")
    use(outbox)
    for _ in range(2):
        outbox = reopen()
        with pytest.raises(ConfigError, match=r"mesh harbour,.* mesh other\..*--mesh harbour, or"):
            outbox.belong_to("other")
    outbox.belong_to("harbour")


def test_a_mesh_that_was_of_no_use_can_be_corrected(reopen: Open) -> None:
    """A misspelt name at the first start does not spoil the directory; the next one stays."""
    reopen().belong_to("harbuor")
    outbox = reopen()
    outbox.belong_to("harbour")
    accept(outbox, "a")
    with pytest.raises(ConfigError):
        reopen().belong_to("harbuor")


def test_an_outbox_of_before_takes_the_mesh_it_is_next_started_with(reopen: Open) -> None:
    """Its rows do not say, and the daemon went on with them until now."""
    accept(reopen(), "a")
    reopen().belong_to("harbour")
    with pytest.raises(ConfigError):
        reopen().belong_to("other")


def test_what_was_negotiated_survives_a_restart(reopen: Open) -> None:
    """Offline, the last window and the last limits hold."""
    outbox = reopen()
    assert outbox.max_age_ms == 144 * HOUR_MS
    outbox.adopt(Parameters(dedupe_retention_days=30, inline_bytes=2048))
    outbox = reopen()
    assert (outbox.max_age_ms, outbox.parameters.inline_bytes) == (648 * HOUR_MS, 2048)


def test_a_narrower_window_applies_to_rows_that_are_there(outbox: Outbox, clock: FakeClock) -> None:
    """FT-25: what is too old for it dies before an attempt."""
    outbox.adopt(Parameters(dedupe_retention_days=365))
    accept(outbox, "old")
    clock.advance(240 * HOUR_MS)
    accept(outbox, "new")
    assert outbox.expire() == 0
    outbox.adopt(Parameters(dedupe_retention_days=7))
    assert [claim.client_message_id for claim in outbox.claim()] == ["new"]
    assert statuses(outbox)["old"] == "dead"


def test_an_override_must_suit_the_window(outbox: Outbox) -> None:
    """Otherwise nothing changes."""
    outbox.adopt(Parameters(dedupe_retention_days=30), 12)
    assert outbox.max_age_ms == 12 * HOUR_MS
    with pytest.raises(MaxAgeRefused):
        outbox.adopt(Parameters(dedupe_retention_days=7), 145)
    assert outbox.max_age_ms == 12 * HOUR_MS
    assert outbox.parameters.dedupe_retention_days == 30


def test_work_is_announced_after_the_commit(outbox: Outbox) -> None:
    """By a first send and a requeue, not by a repeat."""
    counts: list[int] = []
    outbox.on_work = lambda: counts.append(outbox.counts()["pending"])
    accept(outbox, "a")
    accept(outbox, "a")
    assert counts == [1]
    [claim] = outbox.claim()
    outbox.settle([Settlement(claim=claim, status="dead", error="404")])
    outbox.requeue(outbox.inspect("a")[0].id)
    assert counts == [1, 1]


def test_no_row_is_ever_deleted() -> None:
    """There is no statement that could."""
    text = (files("tidelog.daemon") / "sql" / "outbox.sql").read_text(encoding="utf-8")
    assert "DELETE FROM" not in text
    assert "OR REPLACE" not in text


def test_an_unknown_row_is_not_found(outbox: Outbox) -> None:
    """By either id."""
    with pytest.raises(OutboxRefused, match="outbox_row_not_found"):
        outbox.inspect("x")


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from([b"x", b"y"])), min_size=1, max_size=12
    )
)
def test_sends_that_share_a_transaction_are_answered_as_if_alone(
    tmp_path_factory: pytest.TempPathFactory, sends: list[tuple[str, bytes]]
) -> None:
    """One transaction for all and one for each give the same answers and the same rows."""
    answers, rows = [], []
    for is_shared in (True, False):
        folder = tmp_path_factory.mktemp("outbox")
        clock = FakeClock()
        limits = OutboxSettings(max_queue_size=4)
        pressure = Pressure(limits, DiskSettings(), folder, clock.now_ms, lambda _: 10**12)
        outbox = Outbox(folder / "outbox.db", pressure, clock)
        accepts = [NewSend(name, content * 32, b"{}") for name, content in sends]
        if is_shared:
            results = outbox.accept(accepts)
        else:
            results = [outbox.accept([one])[0] for one in accepts]
        answers.append([result if isinstance(result, AcceptReply) else 507 for result in results])
        rows.append([(row.client_message_id, row.request_fingerprint) for row in outbox.rows()])
        outbox.close()
    assert answers[0] == answers[1]
    assert rows[0] == rows[1]


def test_pressure_counts_what_waits(outbox: Outbox) -> None:
    """80 % is high, 95 % refuses, and what is delivered makes room."""
    accept(outbox, *[f"id-{number}" for number in range(79)])
    assert outbox.level() is Level.NORMAL
    accept(outbox, "id-79")
    assert outbox.level() is Level.HIGH
    assert accept(outbox, *[f"more-{number}" for number in range(20)]) == [202] * 15 + [507] * 5
    assert outbox.level() is Level.REFUSING
    for claim in outbox.claim():
        outbox.settle([Settlement(claim=claim, status="done")])
    assert accept(outbox, "room") == [202]
    assert outbox.shares()["rows"] == 0.64


def test_a_damaged_file_is_refused(tmp_path: Path, reopen: Open) -> None:
    """The message names the command that helps."""
    accept(reopen(), *[f"id-{number}" for number in range(90)])
    reopen().close()
    path = tmp_path / "outbox.db"
    content = bytearray(path.read_bytes())
    content[4096 * 2 : 4096 * 3] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="tidelog mesh recover"):
        reopen()
    path.write_bytes(b"not a database at all, but long enough to look like one" * 100)
    with pytest.raises(StoreDamaged, match="tidelog mesh recover"):
        reopen()


def test_another_file_is_refused(tmp_path: Path, reopen: Open) -> None:
    """An inbox is no outbox, and a newer schema is not understood."""
    outbox = reopen()
    connection = outbox._database.connection
    connection.execute("PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNew):
        reopen()
    connection.close()
    (tmp_path / "outbox.db").unlink()
    connection = reopen()._database.connection
    connection.execute("PRAGMA application_id = 7")
    with pytest.raises(StoreUnavailable, match="another application"):
        reopen()


def test_the_file_is_durable(outbox: Outbox) -> None:
    """WAL with a full sync, a wait for locks, foreign keys (mesh 1)."""
    connection = outbox._database.connection
    names = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert found == ["wal", 2, 5000, 1]
