"""Cold starts of the client core from a state of the server (sync 10.1)."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from support.sync.client_core import Bench, committed, page, push, update, value
from tidelog.client.sync import fetching
from tidelog.client.sync.messages import Json
from tidelog.sync.protocol.profiles import Model

GRANTED: Json = {"capabilities": {"profile": "compatibility", "snapshots": True}}
STATE: Json = {
    "explorer": {"items": {"a": {"id": "a"}}, "tree": [{"id": "a", "children": []}]},
    "settings": {"x": 1},
}


def state_page(through: int, *, at: int, state: Json = STATE, **more: Any) -> Json:
    """Payload of a `sync_response` with the whole state of `p`."""
    text = orjson.dumps(state).decode()
    return page(through=through, **{"snapshot": text, "snapshot_committed_id": at, **more})


def requests(bench: Bench) -> list[Json]:
    """The `sync`s since the last call."""
    return [payload for kind, payload in bench.sent() if kind == "sync"]


def test_a_cold_start_takes_the_servers_state(tmp_path: Path) -> None:
    """The state stands for the events before it; those after it follow, and it is stored."""
    bench = Bench(tmp_path / "c.db")
    bench.connect(**GRANTED)
    [asked] = requests(bench)
    assert (asked["accept_snapshot"], asked["since_committed_id"]) == (True, 0)
    bench.say("sync_response", state_page(7, at=7, to=9, has_more=True))
    [asked] = requests(bench)
    assert asked["since_committed_id"] == 7
    assert not asked.keys() & {"accept_snapshot", "snapshot_from", "snapshot_committed_id"}
    assert not bench.synced()
    bench.say("sync_response", page(committed(9, update("a", n=1)), through=9))
    assert bench.synced()
    assert bench.core.unfetched() == {}
    assert (bench.nodes(), bench.settings()) == ({"a": {"id": "a", "n": 1}}, {"x": 1})
    assert bench.core.last_committed_id("p") == 9
    assert bench.codes() == []
    pages = [change for change in bench.changes if change.name == "sync_page"]
    assert pages[0].partitions == ("p",), "the view has changed"
    assert pages[0].data == {"events": 0, "has_more": True, "through": 7, "snapshot": 7}
    bench.store.close()
    bench = Bench(tmp_path / "c.db")
    assert bench.nodes() == {"a": {"id": "a", "n": 1}}
    bench.connect(**GRANTED)
    [asked] = requests(bench)
    assert (asked["since_committed_id"], "accept_snapshot" in asked) == (9, False)
    bench.store.close()


def test_a_server_without_states_is_not_asked_for_them(tmp_path: Path) -> None:
    """Neither one that does not say that it has any, nor with a reducer of the application's."""
    for profile, granted in (
        ("compatibility", {}),
        ("canonical", {"capabilities": {"profile": "canonical", "snapshots": True}}),
    ):
        bench = Bench(tmp_path / f"{profile}.db", profile)
        bench.connect(**granted)
        [asked] = requests(bench)
        assert "accept_snapshot" not in asked
        bench.store.close()


def test_a_state_in_parts_goes_on_after_a_lost_connection(bench: Bench) -> None:
    """What arrived is kept; of another state there is only what arrives now."""
    text = orjson.dumps(STATE).decode()

    def part(start: int, end: int, at: int = 7) -> Json:
        more = {"snapshot_next": end} if end < len(text) else {}
        fields = {"snapshot": text[start:end], "snapshot_committed_id": at, **more}
        whole = end >= len(text)
        return page(through=at if whole else 0, to=9, has_more=True, **fields)

    bench.connect(**GRANTED)
    bench.sent()
    bench.say("sync_response", part(0, 10))
    [asked] = requests(bench)
    assert (asked["snapshot_committed_id"], asked["snapshot_from"]) == (7, 10)
    assert (asked["since_committed_id"], asked["accept_snapshot"]) == (0, True)
    assert "subscription_partitions" not in asked
    bench.core.disconnected()
    bench.connect(**GRANTED)
    [asked] = requests(bench)
    assert (asked["snapshot_committed_id"], asked["snapshot_from"]) == (7, 10)
    bench.say("sync_response", part(0, 20, at=8))
    [asked] = requests(bench)
    assert (asked["snapshot_committed_id"], asked["snapshot_from"]) == (8, 20)
    bench.say("sync_response", part(20, len(text), at=8))
    [asked] = requests(bench)
    assert asked["since_committed_id"] == 8
    bench.say("sync_response", page(through=9))
    assert bench.nodes() == {"a": {"id": "a"}}
    assert bench.codes() == []


def test_parts_give_way_to_events(bench: Bench) -> None:
    """A server that has no such state any more sends events instead, which count as ever."""
    bench.connect(**GRANTED)
    fields = {"snapshot": "{", "snapshot_committed_id": 7, "snapshot_next": 1}
    bench.say("sync_response", page(through=0, to=9, has_more=True, **fields))
    bench.sent()
    bench.say("sync_response", page(committed(1, push("b")), through=1, to=9, has_more=True))
    [asked] = requests(bench)
    assert asked["since_committed_id"] == 1
    assert not asked.keys() & {"accept_snapshot", "snapshot_from"}
    bench.say("sync_response", page(through=9))
    assert bench.nodes() == {"b": {"id": "b"}}


def test_too_much_of_a_state_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client holds so much of it and no more; then it fetches the events."""
    monkeypatch.setattr(fetching, "MAX_STATE_BYTES", 10)
    bench.connect(**GRANTED)
    bench.sent()
    fields = {"snapshot": "x" * 11, "snapshot_committed_id": 7, "snapshot_next": 11}
    bench.say("sync_response", page(through=0, to=9, has_more=True, **fields))
    [asked] = requests(bench)
    assert not asked.keys() & {"accept_snapshot", "snapshot_from"}
    bench.say("sync_response", page(committed(1, push("b")), through=9))
    assert bench.nodes() == {"b": {"id": "b"}}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"unknown":{}}', '{"explorer":{"items":{},"tree":[{"id":"a","children":[]}]}}'],
)
def test_a_state_that_cannot_be_read_is_replaced_by_events(bench: Bench, text: str) -> None:
    """It is no JSON, or nothing that this model knows, or breaks what holds for every tree."""
    bench.connect(**GRANTED)
    bench.sent()
    bench.say("sync_response", state_page(7, at=7) | {"snapshot": text})
    [asked] = requests(bench)
    assert (asked["since_committed_id"], "accept_snapshot" in asked) == (0, False)
    bench.say("sync_response", page(committed(7, push("b")), through=7))
    assert bench.synced()
    assert bench.nodes() == {"b": {"id": "b"}}
    assert requests(bench) == []


def test_a_state_that_the_log_contradicts_is_replaced_by_events(bench: Bench) -> None:
    """An event that cannot happen to it starts over, and not from the same state (sync D54)."""
    bench.connect(**GRANTED)
    bench.say("sync_response", state_page(7, at=7, to=8, has_more=True))
    bench.sent()
    bench.say("sync_response", page(committed(8, update("b", n=1)), through=8))
    assert bench.codes() == ["integrity_violation"]
    [asked] = requests(bench)
    assert (asked["since_committed_id"], "accept_snapshot" in asked) == (0, False)
    log = [committed(1, push("b")), committed(8, update("b", n=1))]
    bench.say("sync_response", page(*log, through=8))
    assert bench.synced()
    assert bench.nodes() == {"b": {"id": "b", "n": 1}}
    assert bench.codes() == ["integrity_violation"]


def test_a_draft_that_the_state_includes_is_confirmed(bench: Bench) -> None:
    """Its answer was lost with the file that the state replaces: it ends up committed, once."""
    bench.draft(value("mine"), "d")
    bench.connect(**GRANTED)
    state = STATE | {"settings": {"x": 1, "mine": 1}}
    bench.say("sync_response", state_page(7, at=7, state=state))
    assert bench.submitted() == [["d"]]
    bench.result(id="d", status="committed", committed_id=5)
    for _ in range(len(requests(bench))):
        bench.say("sync_response", state_page(7, at=7, state=state))
    assert requests(bench) == []
    assert bench.synced()
    assert bench.settings() == {"x": 1, "mine": 1}
    assert bench.store.row("d").status == "committed"


def test_several_new_partitions_are_fetched_one_by_one_while_there_are_states(
    tmp_path: Path,
) -> None:
    """A server that has none of the first few is asked for the rest in one go."""
    names = [f"p{number}" for number in range(8)]
    bench = Bench(tmp_path / "c.db", partitions=names)
    bench.connect(**GRANTED)
    asked: list[list[str]] = []
    while found := requests(bench):
        [payload] = found
        asked.append(payload["partitions"])
        answer = state_page(7, at=7) if payload["partitions"] == ["p1"] else page(through=7)
        bench.say(
            "sync_response",
            answer | {"partitions": payload["partitions"], "effective_subscriptions": names},
        )
    assert asked == [["p0"], ["p1"], ["p2"], ["p3"], ["p4"], ["p5", "p6", "p7"]]
    assert bench.synced()
    assert bench.core.unfetched() == {}
    assert bench.core.view("p1")["settings"] == {"x": 1}
    bench.store.close()


def test_an_event_of_two_partitions_is_applied_once_to_each(tmp_path: Path) -> None:
    """One has it in its state, the other gets it as an event: neither loses what it has."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q"])
    bench.connect(**GRANTED)
    both = {"effective_subscriptions": ["p", "q"]}
    bench.say("sync_response", state_page(7, at=7) | both)
    shared = committed(5, value("x"), "p", "q")
    bench.say("sync_response", page(shared, through=7) | both | {"partitions": ["q"]})
    assert bench.synced()
    assert (bench.settings("p"), bench.settings("q")) == ({"x": 1}, {"x": 1})
    assert [info.partition for info in bench.store.snapshots()] == ["p"]
    assert bench.codes() == []
    bench.store.close()


def test_a_new_model_fetches_what_only_a_state_had(bench: Bench) -> None:
    """By other reducers the state would be another one, and there are no events to make it of."""
    bench.connect(**GRANTED)
    bench.say("sync_response", state_page(7, at=7))
    bench.sent()
    bench.core.use_model(Model.parse({"settings": {"kind": "value", "actions": ["set"]}}, {}, 4))
    [asked] = requests(bench)
    assert (asked["since_committed_id"], asked["accept_snapshot"]) == (0, True)
    bench.say("sync_response", state_page(7, at=7, state={"settings": {"x": 2}}))
    assert bench.core.view("p") == {"settings": {"x": 2}}


@pytest.mark.parametrize(
    "answer",
    [
        page(through=7, snapshot="{}"),
        page(through=7, snapshot="{}", snapshot_committed_id=0),
        page(through=7, snapshot={}, snapshot_committed_id=7),
        page(through=6, snapshot="{}", snapshot_committed_id=7),
        page(committed(8, push("b")), through=8, snapshot="{}", snapshot_committed_id=7),
        page(through=0, to=9, snapshot="{", snapshot_committed_id=7, snapshot_next=0),
    ],
)
def test_a_malformed_snapshot_ends_the_connection(bench: Bench, answer: Json) -> None:
    """It says of what, has no events beside it, and goes on."""
    bench.connect(**GRANTED)
    bench.sent()
    bench.say("sync_response", answer)
    assert bench.codes() == ["bad_message"]
    assert bench.store.snapshots() == []


def test_a_snapshot_that_nobody_asked_for_ends_the_connection(bench: Bench) -> None:
    """It would replace events that are here."""
    bench.connect()
    bench.say("sync_response", state_page(7, at=7))
    assert bench.codes() == ["bad_message"]
