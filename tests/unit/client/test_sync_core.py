"""The sync client's protocol, driven message by message: every rule of sync 17."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from tidelog.client.sync import core as sync_core
from tidelog.client.sync import fetching
from tidelog.client.sync.actions import Close, Send
from tidelog.client.sync.changes import CHANGE_NAMES, Change
from tidelog.client.sync.core import SyncCore
from tidelog.client.sync.messages import Commit, Json
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import SyncStore
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.profiles import Model
from tidelog.testing.clock import FakeClock

MODEL = Model.parse(
    {
        "explorer": {
            "kind": "tree",
            "actions": ["treePush", "treeDelete", "treeUpdate", "treeMove"],
        },
        "settings": {"kind": "value", "actions": ["set", "unset"]},
    },
    {"note": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}},
    3,
)


def value(name: str, given: object = 1) -> Json:
    """An event that sets a value."""
    return {"type": "set", "payload": {"target": f"settings.{name}", "value": given}}


def push(name: str) -> Json:
    """An event that adds a node."""
    return {"type": "treePush", "payload": {"target": "explorer", "value": {"id": name}}}


def update(node: str, **members: object) -> Json:
    """An event that changes a node, and so needs it."""
    payload = {"target": "explorer", "value": members, "options": {"id": node}}
    return {"type": "treeUpdate", "payload": payload}


def committed(place: int, event: Json, *partitions: str, id: str = "") -> Json:  # noqa: A002
    """A committed event as the server delivers it."""
    return {
        "id": id or f"e{place}",
        "client_id": "bo",
        "partitions": list(partitions or ("p",)),
        "committed_id": place,
        "status_updated_at": 1,
        "event": event,
    }


def page(*events: Json, through: int, to: int | None = None, **more: Any) -> Json:
    """Payload of a `sync_response`, the final page of `p` unless it says otherwise."""
    return {
        "partitions": ["p"],
        "effective_subscriptions": ["p"],
        "events": list(events),
        "next_since_committed_id": through,
        "sync_to_committed_id": through if to is None else to,
        "has_more": False,
    } | more


def reduce(state: Json, event: Json) -> Json:
    """Count the notes."""
    return {"notes": state.get("notes", 0) + 1} if event["type"] == "event" else state


class Bench:
    """A core with its server played by the test."""

    def __init__(
        self, path: Path, profile: str = "compatibility", partitions: Sequence[str] = ("p",)
    ) -> None:
        self.clock = FakeClock(1_000_000)
        self.store = SyncStore(path, client_id="ada", model_version=3, now=self.clock.now_ms)
        numbers = itertools.count(1)
        self.core = SyncCore(
            self.store,
            MODEL,
            now=self.clock.now_ms,
            uuid=lambda: f"u{next(numbers)}",
            profile=profile,
            partitions=partitions,
            reduce=reduce,
        )
        self.changes: list[Change] = []
        for name in CHANGE_NAMES:
            self.core.on(name, self.changes.append)

    def connect(self, **connected: Any) -> None:
        """Shake hands."""
        self.core.connect("token")
        self.say("connected", connected)

    def ready(self) -> None:
        """Connect and fetch an empty `p`; nothing is left in the outbox."""
        self.connect()
        self.say("sync_response", page(through=0))
        self.sent()

    def say(self, kind: str, payload: Json) -> None:
        """The server says this."""
        self.core.receive({"type": kind, "payload": payload})

    def broadcast(self, place: int, event: Json, *partitions: str, **more: str) -> None:
        """The server broadcasts a commit."""
        self.say("event_broadcast", committed(place, event, *partitions, **more))

    def result(self, **decision: Any) -> None:
        """The server answers one draft."""
        self.say("submit_events_result", {"results": [{"status_updated_at": 9} | decision]})

    def error(self, code: str, **details: Any) -> None:
        """The server complains."""
        self.say("error", {"code": code, "message": "m", "details": details})

    def draft(self, event: Json, id: str | None = None, *partitions: str) -> StoredEvent:  # noqa: A002
        """The application writes something valid."""
        stored = self.core.submit(partitions or ["p"], event, id)
        assert isinstance(stored, StoredEvent)
        return stored

    def fields(self, event: Json, *partitions: str, id: str | None = None) -> list[str]:  # noqa: A002
        """The application writes something invalid: which fields are at fault."""
        faults = self.core.submit(partitions or ["p"], event, id)
        assert isinstance(faults, list)
        return [fault.field for fault in faults]

    def sent(self) -> list[tuple[str, Json]]:
        """The messages since the last call; "close" stands for the end of the connection."""
        return [
            (action.message["type"], action.message["payload"])
            if isinstance(action, Send)
            else ("close", {"reason": action.reason})
            for action in self.core.actions()
        ]

    def kinds(self) -> list[str]:
        """The types of the messages since the last call."""
        return [kind for kind, _ in self.sent()]

    def submitted(self) -> list[list[str]]:
        """The ids of each batch since the last call."""
        return [
            [item["id"] for item in payload["events"]]
            for kind, payload in self.sent()
            if kind == "submit_events"
        ]

    def told(self, name: str) -> list[Json]:
        """The data of all changes of a name."""
        return [change.data for change in self.changes if change.name == name]

    def codes(self) -> list[str]:
        """The codes of all errors told."""
        return [data["code"] for data in self.told("error")]

    def synced(self) -> bool:
        """Whether the core counts itself complete."""
        return self.core.is_synced

    def settings(self, partition: str = "p") -> Json:
        """The `settings` that the application sees."""
        settings: Json = self.core.view(partition).get("settings", {})
        return settings

    def nodes(self) -> Json:
        """The `explorer` items that the application sees."""
        items: Json = self.core.view("p")["explorer"]["items"]
        return items


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A tree-profile client on partition `p`, not connected."""
    bench = Bench(tmp_path / "client.db")
    yield bench
    bench.store.close()


# Connecting


def test_connect_says_who_and_from_where(bench: Bench) -> None:
    """The handshake carries token, identity, profile and the smallest cursor in use (sync D58)."""
    bench.store.store_page([], ["p"], 8)
    bench.core.sync(["q"])
    bench.store.store_page([], ["q"], 5)
    bench.core.connect("secret")
    [(kind, payload)] = bench.sent()
    assert kind == "connect"
    assert payload == {
        "token": "secret",
        "client_id": "ada",
        "last_committed_id": 5,
        "supported_profiles": ["compatibility"],
        "required_profile": "compatibility",
    }
    assert bench.core.state == "connecting"


def test_messages_have_whole_envelopes(bench: Bench) -> None:
    """All five fields, and no `msg_id` twice."""
    bench.connect()
    messages = [action.message for action in bench.core.actions() if isinstance(action, Send)]
    assert len(messages) == 2
    assert len({message["msg_id"] for message in messages}) == 2
    for message in messages:
        assert message.keys() == {"type", "msg_id", "timestamp", "payload", "protocol_version"}
        assert message["protocol_version"] == "1.0"


def test_a_session_starts_with_a_sync_that_subscribes(bench: Bench) -> None:
    """After `connected` the partitions in use are fetched and subscribed to in one request."""
    bench.connect()
    kind, payload = bench.sent()[-1]
    assert kind == "sync"
    assert payload["partitions"] == payload["subscription_partitions"] == ["p"]
    assert payload["since_committed_id"] == 0
    assert [data["state"] for data in bench.told("status_changed")] == ["connecting", "active"]


@pytest.mark.parametrize(
    "granted",
    [{"profile": "canonical"}, {"profile": "compatibility", "tree_policy": "loose"}],
)
def test_what_the_client_cannot_do_ends_it(bench: Bench, granted: Json) -> None:
    """Another profile or tree policy is unsupported, and connecting again would not help."""
    bench.connect(capabilities=granted)
    assert bench.kinds() == ["connect", "close"]
    assert bench.core.halted == "profile_unsupported"


@pytest.mark.parametrize(
    "code", ["auth_failed", "profile_unsupported", "protocol_version_unsupported"]
)
def test_final_errors_halt(bench: Bench, code: str) -> None:
    """No automatic reconnect where the same connect would fail again; the next one may try."""
    bench.core.connect("old")
    bench.error(code)
    assert bench.kinds() == ["connect", "close"]
    assert bench.core.halted == code
    bench.core.disconnected()
    bench.core.connect("new")
    assert bench.core.halted is None


def test_a_server_error_drops_the_connection_only(bench: Bench) -> None:
    """`server_error`: reconnect and retry."""
    bench.ready()
    bench.error("server_error")
    assert bench.kinds() == ["close"]
    assert bench.core.halted is None


def test_stopping_says_goodbye(bench: Bench) -> None:
    """`stop` sends `disconnect` and closes."""
    bench.ready()
    bench.core.stop()
    assert bench.sent() == [
        ("disconnect", {"reason": "client_shutdown"}),
        ("close", {"reason": "client_shutdown"}),
    ]


def test_nonsense_from_the_server_ends_the_connection(bench: Bench) -> None:
    """A message that is none cannot be skipped: it may have been a commit."""
    bench.ready()
    bench.say("event_broadcast", {"id": 5})
    assert bench.kinds() == ["close"]
    assert bench.codes() == ["bad_message"]
    bench.broadcast(1, value("a"))
    assert list(bench.store.rows()) == []


def test_unknown_types_and_members_are_ignored(bench: Bench) -> None:
    """Additive protocol versions do not disturb."""
    bench.ready()
    bench.say("news", {"a": 1})
    bench.say("event_broadcast", committed(1, value("a")) | {"unknown": "member"})
    assert bench.sent() == []
    assert bench.settings() == {"a": 1}


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
    """Committed: told with its place, shown as before."""
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


# View and rebase


def test_drafts_lie_on_top_of_later_commits(bench: Bench) -> None:
    """Drafts are never interleaved into the committed stream; the highest place wins."""
    bench.ready()
    bench.draft(value("a", "mine"), "mine")
    bench.broadcast(9, value("a", "theirs"))
    assert bench.settings() == {"a": "mine"}
    bench.result(id="mine", status="committed", committed_id=8)
    assert bench.settings() == {"a": "theirs"}


def test_arrival_order_is_irrelevant(bench: Bench) -> None:
    """A commit below the last one rebuilds the state."""
    bench.core.assume_connected()
    bench.broadcast(5, value("a", 5))
    assert bench.settings() == {"a": 5}
    bench.broadcast(4, value("a", 4))
    assert bench.settings() == {"a": 5}
    bench.broadcast(6, value("b", 6))
    assert bench.settings() == {"a": 5, "b": 6}


def test_a_draft_that_cannot_happen_is_hidden_and_sent(bench: Bench) -> None:
    """Sync D54: its preconditions fail in the overlay, the server still decides."""
    bench.core.assume_connected()
    bench.broadcast(1, push("a"))
    bench.core.disconnected()
    bench.draft(update("a", name="x"), "mine")
    assert bench.nodes() == {"a": {"id": "a", "name": "x"}}
    bench.connect()
    delete = {"type": "treeDelete", "payload": {"target": "explorer", "options": {"id": "a"}}}
    bench.say("sync_response", page(committed(2, delete), through=2))
    assert bench.nodes() == {}
    assert bench.submitted() == [["mine"]]


def test_events_of_another_profile_are_passed_over(bench: Bench) -> None:
    """Sync D45: all rows are stored; unknown types and targets change nothing and harm nothing."""
    bench.ready()
    bench.broadcast(1, {"type": "event", "payload": {"schema": "note", "data": {}}})
    bench.broadcast(2, {"type": "treePush", "payload": {"target": "gone", "value": {"id": "x"}}})
    bench.broadcast(3, value("a"))
    assert bench.settings() == {"a": 1}
    assert len(list(bench.store.rows())) == 3
    assert bench.codes() == []


def test_views_in_memory_are_limited(tmp_path: Path) -> None:
    """A state that was put away is built again from the store."""
    bench = Bench(tmp_path / "c.db", partitions=[f"p{number}" for number in range(70)])
    bench.core.assume_connected()
    for number in range(70):
        bench.broadcast(number + 1, value("n", number), f"p{number}")
    assert len(bench.core._views._views) == 64
    assert bench.settings("p0") == {"n": 0}
    bench.store.close()


# Sync engine


def test_pages_follow_until_the_last(bench: Bench) -> None:
    """Next `since` is the page's `next_since_committed_id`; only the first request subscribes."""
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(committed(1, value("a")), through=1, to=9, has_more=True))
    following = {"partitions": ["p"], "since_committed_id": 1, "limit": 500, "max_bytes": 1_048_576}
    assert bench.sent() == [("sync", following)]
    assert bench.store.cursor("p") == 1
    assert not bench.synced()
    bench.say("sync_response", page(committed(9, value("b")), through=9))
    assert bench.sent() == []
    assert bench.store.cursor("p") == 9
    assert bench.synced()
    assert [data["events"] for data in bench.told("sync_page")] == [1, 1]


def test_one_sync_is_in_flight(bench: Bench) -> None:
    """Requests made meanwhile wait, and share one cycle."""
    bench.ready()
    bench.core.sync(["p"])
    bench.core.sync(["q"])
    bench.core.sync(["r"], ["p", "q", "r"])
    assert [payload["partitions"] for _, payload in bench.sent()] == [["p"]]
    bench.say("sync_response", page(through=0))
    [(_, payload)] = bench.sent()
    assert payload["partitions"] == ["q", "r"]
    assert payload["subscription_partitions"] == ["p", "q", "r"]


def test_a_request_already_under_way_is_not_repeated(bench: Bench) -> None:
    """Asking for what the first page is still awaited of changes nothing."""
    bench.connect()
    bench.core.sync(["p"], ["p"])
    bench.core.sync()
    assert bench.kinds() == ["connect", "sync"]
    bench.say("sync_response", page(through=0))
    assert bench.sent() == []


def test_new_partitions_are_fetched_separately(tmp_path: Path) -> None:
    """Sync D58: known ones from their smallest cursor, those without one from 0."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q", "r"])
    bench.store.store_page([], ["p"], 80)
    bench.store.store_page([], ["q"], 70)
    bench.connect()
    _, payload = bench.sent()[-1]
    assert (payload["partitions"], payload["since_committed_id"]) == (["p", "q"], 70)
    assert payload["subscription_partitions"] == ["p", "q", "r"]
    bench.say("sync_response", page(through=90, partitions=["p", "q"]))
    [(_, payload)] = bench.sent()
    assert (payload["partitions"], payload["since_committed_id"]) == (["r"], 0)
    assert "subscription_partitions" not in payload
    assert not bench.synced()
    bench.say("sync_response", page(through=90, partitions=["r"]))
    assert bench.synced()
    bench.store.close()


def test_broadcasts_wait_for_the_watermark(bench: Bench) -> None:
    """Sync D60: before the first page everything is held back; then only what comes after it."""
    bench.connect()
    bench.broadcast(6, value("f", 6))
    bench.broadcast(3, value("c", 3))
    assert list(bench.store.rows()) == []
    bench.say("sync_response", page(committed(1, value("a")), through=1, to=5, has_more=True))
    bench.broadcast(4, value("d", 4))
    bench.broadcast(7, value("g", 7))
    assert [row.committed_id for row in bench.store.rows()] == [1, 4]
    bench.say("sync_response", page(committed(3, value("c", 3)), through=5))
    assert [row.committed_id for row in bench.store.rows()] == [1, 3, 4, 6, 7]
    assert bench.store.cursor("p") == 5
    places = [data["committed_id"] for data in bench.told("broadcast")]
    assert places == [4, 6, 7]


def test_broadcasts_next_to_each_other_share_a_transaction(bench: Bench) -> None:
    """A burst costs one sync of the disk; the order of messages is kept."""
    bench.ready()
    mine = bench.draft(value("m"), "mine")
    before = bench.store._file.connection.total_changes
    messages: list[Json] = [
        {"type": "event_broadcast", "payload": committed(place, value("a", place))}
        for place in range(1, 101)
    ]
    results = [{"id": mine.id, "status": "committed", "committed_id": 101, "status_updated_at": 1}]
    messages.append({"type": "submit_events_result", "payload": {"results": results}})
    bench.core.receive_all((message, 0) for message in messages)
    # Each event is a row and a place in its partition; the partition is to be checked.
    assert bench.store._file.connection.total_changes - before == 2 * 101 + 1
    assert bench.settings() == {"a": 100, "m": 1}


@pytest.mark.parametrize("limit", ["MAX_BUFFERED", "MAX_BUFFERED_BYTES"])
def test_a_full_buffer_is_dropped_and_fetched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Beyond the cap nothing is kept in memory; another cycle brings it all."""
    monkeypatch.setattr(fetching, limit, 2)
    bench.connect()
    bench.sent()
    for place in (6, 7, 8, 9):
        message = {"type": "event_broadcast", "payload": committed(place, value("a", place))}
        bench.core.receive(message, size=1)
    bench.say("sync_response", page(through=5))
    assert list(bench.store.rows()) == []
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 5)
    assert not bench.synced()


def test_a_lost_connection_forgets_the_buffer(bench: Bench) -> None:
    """The buffer is memory only: after a drop the cursors decide."""
    bench.connect()
    bench.broadcast(6, value("a"))
    bench.core.disconnected()
    bench.connect()
    bench.say("sync_response", page(through=5))
    assert list(bench.store.rows()) == []


def test_a_page_nobody_asked_for_is_ignored(bench: Bench) -> None:
    """Its lower bound is unknown, so it proves nothing about cursors."""
    bench.ready()
    bench.say("sync_response", page(committed(1, value("a")), through=1))
    assert bench.store.cursor("p") == 0


def test_a_page_that_goes_nowhere_ends_the_connection(bench: Bench) -> None:
    """A server that promises more without going on would be asked for ever."""
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=0, to=9, has_more=True))
    assert bench.kinds() == ["close"]


def test_a_forbidden_partition_is_left_out(tmp_path: Path) -> None:
    """Retried without the denied names; the next connection asks for them again."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q"])
    bench.connect()
    bench.error("forbidden", partitions=["q"])
    _, payload = bench.sent()[-1]
    assert payload["partitions"] == payload["subscription_partitions"] == ["p"]
    bench.say("sync_response", page(through=0))
    assert bench.synced()
    assert "q" not in bench.core.partitions
    bench.core.disconnected()
    assert "q" in bench.core.partitions
    bench.store.close()


def test_a_refused_sync_is_not_repeated(bench: Bench) -> None:
    """`bad_request` without a batch in flight means the sync: no loop, and drafts still go."""
    bench.connect()
    bench.draft(value("a"), "mine")
    bench.sent()
    bench.error("bad_request")
    assert bench.submitted() == [["mine"]]


def test_leaving_replaces_the_subscriptions(tmp_path: Path) -> None:
    """Leave P: a subscription set without P; leaving the last one is an empty set."""
    bench = Bench(tmp_path / "c.db", partitions=["p", "q"])
    bench.connect()
    bench.say("sync_response", page(through=0, partitions=["p", "q"]))
    bench.sent()
    bench.core.leave(["q"])
    [(_, payload)] = bench.sent()
    assert payload["partitions"] == payload["subscription_partitions"] == ["p"]
    bench.say("sync_response", page(through=0))
    bench.core.leave(["p"])
    [(_, payload)] = bench.sent()
    assert (payload["partitions"], payload["subscription_partitions"]) == (["p"], [])
    assert bench.core.partitions == ()
    bench.store.close()


# Histories: a log that is not the one that was followed


def test_the_history_is_remembered_and_named(bench: Bench) -> None:
    """The first one is taken as it is; from then on `connect` names it."""
    bench.store.store_page([], ["p"], 8)
    bench.connect(incarnation="one", began=0)
    assert bench.store.incarnation == "one"
    assert bench.sent()[-1][1]["since_committed_id"] == 8
    bench.core.disconnected()
    bench.connect(incarnation="one", began=8)
    messages = dict(bench.sent())
    assert messages["connect"]["incarnation"] == "one"
    assert messages["sync"]["since_committed_id"] == 8
    assert bench.told("history_reset") == []


def test_a_server_that_names_no_history_resets_nothing(bench: Bench) -> None:
    """One of an earlier version: absent means unknown."""
    bench.store.follow("one")
    bench.store.store_page([], ["p"], 8)
    bench.connect()
    assert bench.sent()[-1][1]["since_committed_id"] == 8
    assert bench.store.incarnation == "one"
    assert bench.told("history_reset") == []


@pytest.mark.parametrize(
    ("cursor", "began", "since", "kept"),
    [(8, 3, 3, [2, 3]), (8, 0, 0, []), (2, 3, 2, [2]), (5, 3, 3, [2, 3]), (3, 9, 3, [2, 3])],
)
def test_another_history_is_fetched_from_where_they_part(
    bench: Bench, cursor: int, began: int, since: int, kept: list[int]
) -> None:
    """Events after it go, from the views too; drafts and what was rejected stay."""
    bench.store.follow("one")
    places = [place for place in (2, 3, 5, 8) if place <= cursor]
    bench.connect(incarnation="one")
    bench.say(
        "sync_response",
        page(*(committed(place, value(f"v{place}")) for place in places), through=cursor),
    )
    bench.draft(value("refused"), "refused")
    bench.result(id="refused", status="rejected", reason="forbidden")
    assert bench.settings() == {f"v{place}": 1 for place in places}
    bench.core.disconnected()
    bench.draft(value("mine"), "mine")
    bench.sent()
    bench.connect(incarnation="two", began=began)
    kind, payload = bench.sent()[-1]
    assert (kind, payload["since_committed_id"]) == ("sync", since)
    assert bench.told("history_reset") == [
        {"incarnation": "two", "began": began, "dropped": len(places) - len(kept)}
    ]
    assert bench.settings() == {f"v{place}": 1 for place in kept} | {"mine": 1}
    events = [committed(place, value(f"n{place}"), id=f"n{place}") for place in (11, 12)]
    bench.say("sync_response", page(*events, through=12))
    assert bench.settings() == {f"v{place}": 1 for place in kept} | {"n11": 1, "n12": 1, "mine": 1}
    assert bench.submitted() == [["mine"]]
    assert bench.store.row("refused").status == "rejected"
    assert bench.codes() == []


def test_a_snapshot_of_another_history_is_dropped(bench: Bench) -> None:
    """One that ends before they part is kept; one that hides pruned rows makes all be fetched."""
    bench.store.follow("one")
    bench.core.sync(["q"])
    bench.connect(incarnation="one")
    both = {"partitions": ["p", "q"], "effective_subscriptions": ["p", "q"]}
    events = [
        committed(2, value("a"), "p", "q"),
        committed(3, value("b"), "q"),
        committed(8, value("c"), "p"),
    ]
    bench.say("sync_response", page(*events, through=8) | both)
    assert bench.core.save_snapshot("p") == 8
    assert bench.core.save_snapshot("q") == 3
    assert bench.store.prune() == 3
    bench.core.disconnected()
    bench.sent()
    bench.connect(incarnation="two", began=5)
    [snapshot] = bench.store.snapshots()
    assert (snapshot.partition, snapshot.committed_id) == ("q", 3)
    _, payload = bench.sent()[-1]
    assert (payload["partitions"], payload["since_committed_id"]) == (["q"], 5)
    bench.say("sync_response", page(through=9) | both | {"partitions": ["q"]})
    _, payload = bench.sent()[-1]
    assert (payload["partitions"], payload["since_committed_id"]) == (["p"], 0)
    events = [committed(2, value("a"), "p", "q"), committed(9, value("d"), "p")]
    bench.say("sync_response", page(*events, through=9) | both | {"partitions": ["p"]})
    assert bench.settings("p") == {"a": 1, "d": 1}
    assert bench.settings("q") == {"a": 1, "b": 1}


# Integrity


def test_a_contradiction_starts_over(bench: Bench) -> None:
    """17.6: told as an error, log forgotten, drafts kept, fetched from 0, then resubmitted."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.draft(value("mine"), "mine")
    bench.sent()
    bench.broadcast(5, value("z"), id="impostor")
    assert bench.codes() == ["integrity_violation"]
    assert [row.id for row in bench.store.rows()] == ["mine"]
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 0)
    bench.say("sync_response", page(committed(5, value("z"), id="impostor"), through=5))
    assert bench.settings() == {"z": 1, "mine": 1}
    bench.core.disconnected()
    bench.connect()
    bench.say("sync_response", page(through=5))
    assert bench.submitted() == [["mine"]]


def test_a_future_cursor_starts_over(bench: Bench) -> None:
    """The server's log ends before our cursor: it lost history or is another server."""
    bench.store.store_page([], ["p"], 900)
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=12))
    assert bench.codes() == ["integrity_violation"]
    [(_, payload)] = bench.sent()
    assert payload["since_committed_id"] == 0
    assert bench.store.cursor("p") == 0


def test_a_violation_during_a_cycle_waits_for_its_answer(bench: Bench) -> None:
    """Requests are not pipelined: the answer in flight is thrown away, then it starts over."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.core.sync()
    bench.sent()
    bench.say("submit_events_result", {"results": []})
    bench.core.submit(["p"], value("b"), "mine")
    bench.result(id="mine", status="committed", committed_id=5)
    assert bench.codes() == ["integrity_violation"]
    assert "sync" not in bench.kinds()
    bench.say("sync_response", page(committed(6, value("c")), through=6))
    assert [row.id for row in bench.store.rows()] == ["mine"]
    _, payload = bench.sent()[-1]
    assert payload["since_committed_id"] == 0


def test_a_commit_that_cannot_happen_starts_over_once(bench: Bench) -> None:
    """Sync D54: fetched anew; if that does not mend it, it is told and passed over."""
    bench.ready()
    bench.broadcast(5, update("nobody", name="x"))
    assert bench.codes() == ["integrity_violation"]
    assert bench.kinds() == ["sync"]
    bench.say("sync_response", page(committed(5, update("nobody", name="x")), through=5))
    assert bench.codes() == ["integrity_violation"] * 2
    assert bench.sent() == []
    assert bench.synced()
    bench.broadcast(6, value("a"))
    assert bench.settings() == {"a": 1}
    assert bench.sent() == []


def test_a_gap_during_a_cycle_is_no_violation(bench: Bench) -> None:
    """A broadcast below the watermark may need an event of a page that has not come yet."""
    bench.connect()
    bench.say("sync_response", page(committed(1, value("a")), through=1, to=5, has_more=True))
    bench.broadcast(4, update("n", name="x"))
    assert bench.nodes() == {}
    bench.say("sync_response", page(committed(3, push("n")), through=5))
    assert bench.nodes() == {"n": {"id": "n", "name": "x"}}
    assert bench.codes() == []


def test_own_commits_beyond_held_broadcasts_are_no_violation(bench: Bench) -> None:
    """A result is stored while the broadcasts before it wait for the end of the cycle."""
    bench.ready()
    bench.draft(push("n"), "mine")
    bench.core.sync()
    bench.broadcast(2, push("m"))
    bench.result(id="mine", status="committed", committed_id=3)
    assert list(bench.nodes()) == ["n"]
    bench.say("sync_response", page(through=1))
    assert sorted(bench.nodes()) == ["m", "n"]
    assert bench.codes() == []


def test_a_second_contradiction_drops_the_connection(bench: Bench) -> None:
    """A server that contradicts itself is not fetched from in a tight loop."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.broadcast(5, value("a"), id="impostor")
    bench.sent()
    events = [committed(1, value("a")), committed(1, value("a"), id="impostor")]
    bench.say("sync_response", page(*events, through=1))
    assert bench.kinds() == ["close"]


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


# Many partitions


def fetched(path: Path, names: Sequence[str], events: int = 3) -> Bench:
    """A client that has fetched so many events of each partition."""
    bench = Bench(path, partitions=names)
    bench.connect()
    places = itertools.count(1)
    log = [committed(next(places), value("a", n), name) for name in names for n in range(events)]
    bench.say("sync_response", page_of(names, *log, through=len(log)))
    assert bench.synced()
    bench.sent()
    return bench


def page_of(names: Sequence[str], *events: Json, through: int) -> Json:
    """The final page of several partitions."""
    every = list(names)
    return page(*events, through=through, partitions=every, effective_subscriptions=every)


def reconnect(bench: Bench, names: Sequence[str], *events: Json, through: int) -> None:
    """Lose the connection, and get one page with the next."""
    bench.core.disconnected()
    bench.connect()
    bench.say("sync_response", page_of(names, *events, through=through))


NAMES = tuple(sorted(f"p{number:03}" for number in range(150)))
"""More partitions than views are held in memory."""


def test_a_reconnect_costs_what_has_changed(tmp_path: Path) -> None:
    """No question to the store and no state more than a client of three partitions has."""
    asked: dict[int, list[str]] = {}
    for names in (NAMES[:3], NAMES):
        bench = fetched(tmp_path / f"{len(names)}.db", names)
        reconnect(bench, names, through=3 * len(names))  # notes that all of it was checked
        statements = asked[len(names)] = []
        bench.store._file.connection.set_trace_callback(statements.append)
        applied = bench.core._views.applied
        reconnect(bench, names, through=3 * len(names))
        assert bench.synced()
        assert bench.core._views.applied == applied
        bench.store._file.connection.set_trace_callback(None)
        bench.store.close()
    assert len(asked[len(NAMES)]) == len(asked[3])


def test_a_view_reads_the_events_of_its_partition_only(tmp_path: Path) -> None:
    """By an index, whatever else there is."""
    bench = fetched(tmp_path / "c.db", NAMES)
    bench.core._views.clear()
    plan = bench.store._file.connection.execute(
        "EXPLAIN QUERY PLAN " + bench.store._file.queries["sync_committed_after"], ("p000", 0)
    ).fetchall()
    assert all("SEARCH" in detail for *_, detail in plan), plan
    applied = bench.core._views.applied
    assert bench.settings("p000") == {"a": 2}
    assert bench.core._views.applied == applied + 3
    bench.store.close()


def test_what_nobody_looks_at_is_checked_when_it_changes(tmp_path: Path) -> None:
    """Sync D54 holds for every partition that is followed; it costs the changed states only."""
    bench = fetched(tmp_path / "c.db", NAMES)
    applied = bench.core._views.applied
    last = 3 * len(NAMES)
    reconnect(bench, NAMES, committed(last + 1, value("b"), "p007"), through=last + 1)
    assert bench.core._views.applied <= applied + 4
    assert bench.codes() == []
    wrong = committed(last + 2, update("nobody", name="x"), "p008")
    reconnect(bench, NAMES, wrong, through=last + 2)
    assert bench.codes() == ["integrity_violation"]
    bench.store.close()


def test_a_check_that_was_interrupted_is_made_later(tmp_path: Path) -> None:
    """The client was killed between storing a page and looking at what it made of a partition."""
    bench = fetched(tmp_path / "c.db", NAMES)
    last = 3 * len(NAMES)
    wrong = update("nobody", name="x")
    bench.store.store_page([Commit("x", "bo", ("p008",), last + 1, 1, wrong)], NAMES, last + 1)
    bench.store._file.connection.close()
    bench.store._file.lock.release()
    bench = Bench(tmp_path / "c.db", partitions=NAMES)
    bench.connect()
    bench.say("sync_response", page_of(NAMES, through=last + 1))
    assert bench.codes() == ["integrity_violation"]
    bench.store.close()


def test_what_was_checked_is_not_checked_again(tmp_path: Path) -> None:
    """Neither by the next connection nor by the next start."""
    fetched(tmp_path / "c.db", NAMES).store.close()
    bench = Bench(tmp_path / "c.db", partitions=NAMES)
    bench.connect()
    bench.say("sync_response", page_of(NAMES, through=3 * len(NAMES)))
    assert bench.synced()
    assert bench.core._views.applied == 0
    bench.store.close()


def test_what_nobody_looks_at_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many events, in each partition."""
    monkeypatch.setattr(sync_core, "SNAPSHOT_EVERY", 3)
    bench = fetched(tmp_path / "c.db", NAMES)
    assert [snapshot.partition for snapshot in bench.store.snapshots()] == list(NAMES)
    bench.store.close()


def test_checks_take_turns_with_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large fetch is complete at once; its states follow piece by piece, also that of one."""
    monkeypatch.setattr(sync_core, "CHECK_EVENTS", 10)
    bench = fetched(tmp_path / "c.db", NAMES[:2], events=24)
    assert bench.core._views.applied == 10
    turns = 0
    while bench.core.wake_at == bench.clock.now_ms():
        bench.core.tick()
        turns += 1
        assert bench.core._views.applied <= 10 + 10 * turns
    assert bench.core._views.applied == 48
    assert bench.store.unchecked == set()
    assert bench.settings("p001") == {"a": 23}
    bench.store.close()


def test_a_violation_in_a_late_piece_starts_over_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an early one: what fetching anew does not mend is told and passed over."""
    monkeypatch.setattr(sync_core, "CHECK_EVENTS", 10)
    names = NAMES[:2]
    log = [committed(place, value("a", place), "p000") for place in range(1, 30)]
    log.append(committed(30, update("nobody", name="x"), "p001"))
    bench = Bench(tmp_path / "c.db", partitions=names)
    bench.connect()
    for told in (1, 2):
        bench.say("sync_response", page_of(names, *log, through=30))
        while bench.core.wake_at == bench.clock.now_ms():
            bench.core.tick()
        assert bench.codes() == ["integrity_violation"] * told
    assert bench.synced()
    assert bench.kinds()[-1] == "sync"
    bench.store.close()


# Snapshots and model version


def test_snapshots_hold_no_drafts(bench: Bench) -> None:
    """A snapshot is the committed state, tagged with place and model version."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.draft(value("b"), "mine")
    assert bench.core.save_snapshot("p") == 5
    assert bench.store.start_of("p").state == {
        "explorer": {"items": {}, "tree": []},
        "settings": {"a": 1},
    }
    assert bench.store.snapshots()[0].model_version == 3
    assert bench.settings() == {"a": 1, "b": 1}


def test_no_snapshot_while_the_partition_is_fetched(bench: Bench) -> None:
    """Sync D62: the state may have a gap that the cycle is about to fill."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.core.sync()
    assert bench.core.save_snapshot("p") is None
    assert bench.core.save_snapshot("other") == 0
    bench.say("sync_response", page(through=5))
    assert bench.core.save_snapshot("p") == 5


def test_snapshots_are_saved_by_themselves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many committed events of a partition."""
    monkeypatch.setattr(sync_core, "SNAPSHOT_EVERY", 10)
    bench.ready()
    for place in range(1, 10):
        bench.broadcast(place, value("a", place))
    assert bench.store.snapshots() == []
    bench.broadcast(10, value("a", 10))
    assert bench.store.snapshots()[0].committed_id == 10
    bench.broadcast(11, value("a", 11))
    assert bench.store.snapshots()[0].committed_id == 10


def test_a_lost_snapshot_of_pruned_rows_is_fetched(bench: Bench) -> None:
    """Full replay is impossible, so the partition is fetched from 0."""
    bench.ready()
    bench.draft(value("a", 4), "e4")
    bench.broadcast(5, value("a", 5))
    bench.core.save_snapshot("p")
    assert bench.core.prune() == 1
    bench.sent()
    bench.result(id="e4", status="committed", committed_id=4)
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 0)
    bench.say(
        "sync_response",
        page(committed(4, value("a", 4)), committed(5, value("a", 5)), through=5),
    )
    assert bench.settings() == {"a": 5}
    assert bench.synced()


def test_pruning_during_a_cycle_keeps_what_it_may_bring(bench: Bench) -> None:
    """Whether something is missing before the snapshot is known when the cycle is over."""
    bench.ready()
    bench.broadcast(5, value("a", 5))
    bench.core.save_snapshot("p")
    bench.core.sync()
    assert bench.core.prune() == 0
    bench.say("sync_response", page(committed(5, value("a", 5)), through=5))
    assert bench.core.prune() == 1
    bench.core.disconnected()
    assert bench.core.prune() == 0
    bench.sent()
    bench.connect()
    assert bench.sent()[-1][1]["since_committed_id"] == 5


def test_a_new_model_version_fetches_everything_anew(bench: Bench) -> None:
    """Snapshots go, cursors go to 0, drafts stay; when it is done new snapshots are stored."""
    bench.ready()
    bench.broadcast(5, value("a"))
    bench.core.save_snapshot("p")
    bench.draft(value("b"), "mine")
    bench.sent()
    bench.say("version_changed", {"old_model_version": 3, "new_model_version": 4})
    assert bench.store.snapshots() == []
    [(kind, payload)] = bench.sent()
    assert (kind, payload["since_committed_id"]) == ("sync", 0)
    assert bench.store.row("mine").status == "draft"
    bench.say("sync_response", page(committed(5, value("a")), through=5, model_version=4))
    assert [info.model_version for info in bench.store.snapshots()] == [4]
    assert bench.told("version_changed") == [{"old_model_version": 3, "new_model_version": 4}]


def test_the_version_in_use_is_no_news(bench: Bench) -> None:
    """Repeated announcements do nothing, whichever message carries them."""
    bench.connect(model_version=3)
    bench.say("sync_response", page(through=7, model_version=3))
    bench.sent()
    bench.say("version_changed", {"old_model_version": 2, "new_model_version": 3})
    assert bench.sent() == []
    assert bench.told("version_changed") == []
    assert bench.store.cursor("p") == 7


def test_the_handshake_can_announce_a_version(bench: Bench) -> None:
    """`connected.model_version` differing from the stored one voids the cursors before the sync."""
    bench.store.store_page([], ["p"], 7)
    bench.connect(model_version=4)
    _, payload = bench.sent()[-1]
    assert payload["since_committed_id"] == 0
    assert bench.store.model_version == 4


def test_a_page_can_announce_a_version(bench: Bench) -> None:
    """Its events are fetched again from 0 with everything else."""
    bench.store.store_page([], ["p"], 7)
    bench.connect()
    bench.sent()
    bench.say("sync_response", page(through=9, model_version=4))
    [(_, payload)] = bench.sent()
    assert payload["since_committed_id"] == 0
    assert bench.store.cursor("p") == 0


def test_a_version_announced_during_a_cycle_waits_for_its_answer(bench: Bench) -> None:
    """The answer in flight may still carry the old version; it is thrown away unread."""
    bench.connect()
    bench.sent()
    bench.say("version_changed", {"old_model_version": 3, "new_model_version": 4})
    assert bench.sent() == []
    bench.say("sync_response", page(through=9, model_version=3))
    [(_, payload)] = bench.sent()
    assert payload["since_committed_id"] == 0
    assert bench.store.model_version == 4


def test_a_new_model_rebuilds_the_views(bench: Bench) -> None:
    """The application brings the reducers that the version needs."""
    bench.ready()
    bench.broadcast(1, value("a"))
    bench.core.save_snapshot("p")
    model = Model.parse({"other": {"kind": "value", "actions": ["set"]}}, {}, 4)
    bench.core.use_model(model)
    assert bench.core.view("p") == {}
    assert bench.store.snapshots() == []


# The application's ear


def test_listeners_can_act_and_leave(bench: Bench) -> None:
    """A listener may submit; what that changes is told afterwards; unsubscribing ends it."""
    bench.ready()
    order: list[str] = []

    def react(change: Change) -> None:
        order.append(change.name)
        if change.name == "broadcast":
            bench.draft(value("b"), "reaction")
            bench.core.report("mine", "text")

    leave = bench.core.on("broadcast", react)
    bench.core.on("error", react)
    bench.broadcast(1, value("a"))
    assert order == ["broadcast", "error"]
    assert bench.submitted() == [["reaction"]]
    leave()
    bench.broadcast(2, value("a"))
    assert order == ["broadcast", "error"]


def test_changes_name_their_partitions(bench: Bench) -> None:
    """An application refreshes only the views that a change concerns."""
    bench.ready()
    bench.broadcast(1, value("a"), "p", "q")
    assert bench.changes[-1].partitions == ("p", "q")


def test_closing_is_asked_for_once(bench: Bench) -> None:
    """After a close nothing more is sent or read until the connection is gone."""
    bench.ready()
    bench.error("server_error")
    bench.error("server_error")
    bench.draft(value("a"))
    assert [type(action) for action in bench.core.actions()] == [Close]


# Cold starts by snapshot (sync 10.1)

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
    """It would take the place of events that are here."""
    bench.connect()
    bench.say("sync_response", state_page(7, at=7))
    assert bench.codes() == ["bad_message"]
