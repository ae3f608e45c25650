"""Drafts in the client core: judged, stored, submitted, decided (sync 17.2, 17.4, 17.7)."""

from pathlib import Path

import pytest

from support.sync.client_core import Bench, committed, page, push, update, value
from tidelog.client.sync import core as sync_core
from tidelog.client.sync.actions import Send
from tidelog.client.sync.messages import Json
from tidelog.sync.protocol.fault import Fault

# Drafts


def test_a_draft_is_shown_at_once(bench: Bench) -> None:
    """Creating a draft needs no server: it is stored and overlays the view."""
    row = bench.draft(value("a"), "mine")
    assert (row.status, row.draft_clock, row.client_id) == ("draft", 1, "ada")
    assert bench.settings() == {"a": 1}
    assert bench.sent() == []


def test_ids_are_made_where_none_is_given(bench: Bench) -> None:
    """An item needs an id before it is stored."""
    assert bench.draft(value("a")).id.startswith("u")


def test_the_same_draft_again_is_that_draft(bench: Bench) -> None:
    """An application may retry; another content under the id is a fault."""
    first = bench.draft(value("a", 1.0), "mine")
    assert bench.draft(value("a", 1), "mine") == first
    assert bench.fields(value("a", 2), id="mine") == ["id"]


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (value("a", 2**53), "event.payload.value"),
        (value("a", float("nan")), "event"),
        (value("a", {1: 2}), "event"),
        (value("a", "\ud800"), "event"),
        ({"type": "set"}, "event.payload"),
        ({"payload": {}}, "event.type"),
        ({"type": "event", "payload": {"schema": "note", "data": {}}}, "event.type"),
        ({"type": "set", "payload": {"target": "nowhere", "value": 1}}, "event.payload.target"),
        (update("unknown", name="x"), "event.payload.options.id"),
    ],
)
def test_invalid_drafts_are_not_stored(bench: Bench, event: Json, field: str) -> None:
    """Local validation gives the server's fields and leaves nothing behind."""
    assert bench.fields(event) == [field]
    assert list(bench.store.rows()) == []


def test_partitions_and_ids_are_judged_too(bench: Bench) -> None:
    """The rules of sync 7 and 8.1 for names and ids."""
    assert bench.fields(value("a"), "") == ["partitions.0"]
    assert bench.fields(value("a"), *(f"p{number}" for number in range(65))) == ["partitions"]
    for event_id in ("", "x" * 129):
        assert bench.fields(value("a"), id=event_id) == ["id"]
    assert bench.core.submit("p", value("a")) == [Fault("partitions", "must be a list of strings")]


def test_a_draft_is_judged_by_what_the_application_sees(bench: Bench) -> None:
    """Preconditions hold against committed state and earlier drafts."""
    bench.draft(push("a"))
    bench.draft(update("a", name="x"))
    assert bench.fields(push("a")) == ["event.payload.value.id"]


def test_a_partition_not_in_use_is_left_to_the_server(bench: Bench) -> None:
    """Without its state nothing can be said about preconditions there."""
    assert bench.draft(update("elsewhere", name="x"), None, "other").status == "draft"


def test_partitions_are_normalized_before_storage(bench: Bench) -> None:
    """NFC, without duplicates, sorted."""
    assert bench.draft(value("a"), "x", "q", "e\u0301", "q").partitions == ("q", "\u00e9")


def test_the_event_profile_uses_the_registry(tmp_path: Path) -> None:
    """A schema error is found here, with the server's field; the view is the application's."""
    bench = Bench(tmp_path / "c.db", profile="canonical")
    assert bench.fields({"type": "event", "payload": {"schema": "note", "data": {}}}) == [
        "event.payload.data.id"
    ]
    assert bench.fields(value("a")) == ["event.type"]
    bench.draft({"type": "event", "payload": {"schema": "note", "data": {"id": "n"}}})
    assert bench.core.view("p") == {"notes": 1}
    bench.store.close()


def test_the_application_keeps_its_own_objects(bench: Bench) -> None:
    """Changing an event or a view later changes nothing here."""
    event = value("a", {"b": 1})
    bench.draft(event)
    event["payload"]["value"]["b"] = 2
    bench.core.view("p")["settings"]["a"]["b"] = 3
    assert bench.settings() == {"a": {"b": 1}}


def test_a_commit_moves_the_draft_into_the_log(bench: Bench) -> None:
    """Committed: told with its position, shown as before."""
    bench.ready()
    bench.draft(value("a"), "mine")
    bench.result(id="mine", status="committed", committed_id=4)
    assert bench.told("committed") == [{"id": "mine", "committed_id": 4}]
    assert bench.settings() == {"a": 1}
    assert bench.store.drafts() == []


def test_a_rejection_takes_the_draft_away(bench: Bench) -> None:
    """Rejected: told with the reason, and gone from the view."""
    bench.ready()
    bench.draft(value("a"), "mine")
    assert bench.settings() == {"a": 1}
    bench.result(id="mine", status="rejected", reason="forbidden", errors=[])
    assert bench.told("rejected") == [{"id": "mine", "reason": "forbidden", "errors": []}]
    assert bench.settings() == {}


# Submitting


def test_drafts_wait_for_the_sync(bench: Bench) -> None:
    """After connecting: sync to completion first, then all drafts with their ids, in order."""
    for name in ("b", "a", "c"):
        bench.draft(value(name), name)
    bench.connect()
    assert bench.kinds() == ["connect", "sync"]
    bench.say("sync_response", page(through=0))
    assert bench.submitted() == [["b", "a", "c"]]


def test_a_draft_that_the_sync_brings_is_not_sent(bench: Bench) -> None:
    """A crash between commit and answer: the page confirms the draft."""
    bench.draft(value("a"), "mine")
    bench.connect()
    bench.say("sync_response", page(committed(3, value("a"), id="mine"), through=3))
    assert bench.submitted() == []
    assert bench.told("committed") == [{"id": "mine", "committed_id": 3}]


def test_one_batch_is_in_flight(bench: Bench) -> None:
    """Later drafts wait for the answer and then go together."""
    bench.ready()
    for name in ("a", "b", "c"):
        bench.draft(value(name), name)
    assert bench.submitted() == [["a"]]
    bench.result(id="a", status="committed", committed_id=1)
    assert bench.submitted() == [["b", "c"]]


def test_batches_keep_the_servers_limits(bench: Bench) -> None:
    """Up to `max_batch_size` items and under `max_message_bytes`."""
    for number in range(5):
        bench.draft(value("a", "x" * 400), f"d{number}")
    bench.connect(limits={"max_batch_size": 3, "max_message_bytes": 2200})
    bench.say("sync_response", page(through=0))
    assert bench.submitted() == [["d0", "d1"]]
    bench.core.disconnected()
    bench.connect(limits={"max_batch_size": 3, "max_message_bytes": 100_000})
    bench.say("sync_response", page(through=0))
    assert bench.submitted() == [["d0", "d1", "d2"]]


def test_a_draft_beyond_every_message_is_rejected_here(bench: Bench) -> None:
    """Sending it would end the connection again and again."""
    bench.draft(value("a", "x" * 3000), "large")
    bench.draft(value("b"), "small")
    bench.connect(limits={"max_message_bytes": 2000})
    bench.say("sync_response", page(through=0))
    assert bench.submitted() == [["small"]]
    assert [data["reason"] for data in bench.told("rejected")] == ["bad_request"]


def test_results_are_told_after_all_are_applied(bench: Bench) -> None:
    """All entries in one transaction, one rebase, then one change per entry in their order."""
    bench.ready()
    for name in ("a", "b", "c"):
        bench.draft(value(name), name)
    seen: list[Json] = []
    bench.core.on("committed", lambda change: seen.append(bench.settings()))
    results = [
        {"id": "a", "status": "committed", "committed_id": 1, "status_updated_at": 1},
        {"id": "b", "status": "rejected", "reason": "validation_failed", "status_updated_at": 1},
        {"id": "c", "status": "committed", "committed_id": 2, "status_updated_at": 1},
    ]
    bench.say("submit_events_result", {"results": results})
    assert seen == [{"a": 1, "c": 1}] * 2
    assert [data["id"] for data in bench.told("committed")] == ["a", "c"]
    assert [data["id"] for data in bench.told("rejected")] == ["b"]


def test_a_refused_batch_is_sent_singly(bench: Bench) -> None:
    """`bad_request`: one by one; what is refused alone becomes rejected."""
    for name in ("a", "b", "c"):
        bench.draft(value(name), name)
    bench.connect()
    bench.say("sync_response", page(through=0))
    assert bench.submitted() == [["a", "b", "c"]]
    bench.error("bad_request")
    assert bench.submitted() == [["a"]]
    bench.result(id="a", status="committed", committed_id=1)
    assert bench.submitted() == [["b"]]
    bench.error("bad_request")
    assert bench.told("rejected")[0]["reason"] == "bad_request"
    assert bench.store.row("b").status == "rejected"
    assert bench.submitted() == [["c"]]
    bench.result(id="c", status="committed", committed_id=2)
    assert bench.submitted() == []


def test_the_hint_tells_which_request_was_refused(bench: Bench) -> None:
    """With a batch and a sync in flight `request_msg_id` decides (sync D5)."""
    bench.ready()
    bench.draft(value("a"), "mine")
    bench.core.sync()
    messages = [action.message for action in bench.core.actions() if isinstance(action, Send)]
    assert [message["type"] for message in messages] == ["submit_events", "sync"]
    bench.error("bad_request", request_msg_id=messages[1]["msg_id"])
    assert bench.synced()
    assert bench.store.row("mine").status == "draft"
    bench.error("bad_request", request_msg_id=messages[0]["msg_id"])
    assert bench.store.row("mine").status == "rejected"


@pytest.mark.parametrize(("details", "wait"), [({"retry_after_ms": 250}, 250), ({}, 1000)])
def test_a_rate_limit_is_waited_out(bench: Bench, details: Json, wait: int) -> None:
    """`rate_limited`: the same batch again after `retry_after_ms`, by default a second."""
    bench.ready()
    bench.draft(value("a"), "mine")
    bench.sent()
    bench.error("rate_limited", **details)
    assert bench.core.wake_at == bench.clock.now_ms() + wait
    bench.draft(value("b"), "later")
    bench.clock.advance(wait - 1)
    bench.core.tick()
    assert bench.submitted() == []
    bench.clock.advance(1)
    bench.core.tick()
    assert bench.submitted() == [["mine"]]


def test_a_rate_limited_sync_is_asked_again(bench: Bench) -> None:
    """The page request in flight was not processed either."""
    bench.connect()
    bench.sent()
    bench.error("rate_limited", retry_after_ms=10)
    bench.clock.advance(10)
    bench.core.tick()
    [(kind, payload)] = bench.sent()
    assert (kind, payload["subscription_partitions"]) == ("sync", ["p"])


def test_a_drop_sends_everything_again(bench: Bench) -> None:
    """The outcome of a batch in flight is unknown: it goes again, unchanged, after the sync."""
    bench.ready()
    bench.draft(value("a"), "mine")
    [(_, first)] = bench.sent()
    bench.core.disconnected()
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=0))
    assert bench.sent() == [("submit_events", first)]


def test_an_answer_that_never_comes_ends_the_connection(bench: Bench) -> None:
    """A connect, a batch or a sync without an answer is not waited for for ever."""
    bench.core.connect("token")
    bench.sent()
    assert bench.core.wake_at == bench.clock.now_ms() + sync_core.REPLY_TIMEOUT_MS
    bench.clock.advance(sync_core.REPLY_TIMEOUT_MS)
    bench.core.tick()
    assert bench.kinds() == ["close"]
    assert bench.codes() == ["timeout"]


def test_a_draft_on_its_way_is_not_withdrawn(bench: Bench) -> None:
    """If it was committed nobody but the answer would tell; of a lost connection the sync does."""
    bench.ready()
    bench.draft(value("a"), "mine")
    bench.sent()
    assert not bench.core.withdraw("mine")
    bench.core.disconnected()
    assert bench.core.withdraw("mine")
    assert bench.store.find("mine") is None
    bench.connect()
    bench.say("sync_response", page(committed(1, value("a"), id="mine"), through=1))
    assert bench.settings() == {"a": 1}
    assert bench.submitted() == []


def test_what_was_refused_is_listed(bench: Bench) -> None:
    """In the order it was written in, until it is forgotten."""
    bench.ready()
    for name in ("b", "a", "c"):
        bench.draft(value(name), name)
    for name in ("a", "b"):
        bench.result(id=name, status="rejected", reason="forbidden")
    assert [(row.id, row.reject_reason) for row in bench.store.rejected()] == [
        ("b", "forbidden"),
        ("a", "forbidden"),
    ]
    bench.store.forget_rejected()
    assert bench.store.rejected() == []


def test_an_answer_on_its_way_is_waited_for(bench: Bench) -> None:
    """Part of a message shows that the rest is coming, however long it takes."""
    bench.connect()
    bench.sent()
    for _ in range(5):
        bench.clock.advance(sync_core.REPLY_TIMEOUT_MS - 1)
        bench.core.progressed()
        bench.core.tick()
        assert bench.kinds() == []
    bench.clock.advance(sync_core.REPLY_TIMEOUT_MS)
    bench.core.tick()
    assert bench.kinds() == ["close"]


def test_a_drop_in_the_middle_of_a_page_asks_for_less(bench: Bench) -> None:
    """Half of it each time, until everything was fetched."""

    def asked() -> tuple[int, int]:
        bench.connect()
        [_, (_, payload)] = bench.sent()
        return payload["limit"], payload["max_bytes"]

    sizes = []
    for _ in range(12):
        sizes.append(asked())
        bench.core.disconnected()
    assert sizes[:3] == [(500, 1_048_576), (250, 524_288), (125, 262_144)]
    assert sizes[-1] == (1, 16_384)
    asked()
    bench.say("sync_response", page(through=0))
    bench.core.disconnected()
    assert asked() == (500, 1_048_576)
