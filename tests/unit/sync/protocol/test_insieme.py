"""The dialect of npm's insieme, word by word and without sockets (sync 21)."""

import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sync.plugin import Event, Fault, Identity
from tidelog.sync.protocol.actions import Action, Close, Connected, Ping, Send, Submit, Sync
from tidelog.sync.protocol.insieme.events import VERBATIM, Item, delivered, project_of, to_event
from tidelog.sync.protocol.insieme.form import InsiemeForm, field_name
from tidelog.sync.protocol.insieme.messages import MAX_PAYLOAD_DEPTH
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.protocol.profiles import TREE_ACTIONS, Model
from tidelog.sync.protocol.session import Session
from tidelog.sync.protocol.tokens import Claims, Tokens
from tidelog.sync.protocol.wire import Committed, NotProcessed, Rejected, stored_body
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
EXPIRES_AT = int(time.time()) + 100_000
NOW = EXPIRES_AT - 1000.0
MODEL = Model.parse(
    {"t": {"kind": "tree", "actions": list(TREE_ACTIONS)}},
    {"task.created": {"type": "object", "required": ["title"]}, "any": True},
    1,
)
TOKENS = Tokens(SECRET, None, ["HS256"])

Json = dict[str, Any]

scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8)
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
names = st.text(min_size=1, max_size=20)
metas = st.dictionaries(
    names.filter(lambda name: name not in ("schemaVersion", "userId", "clientId", "clientTs")),
    values,
    max_size=2,
)
own_types = names.filter(lambda name: name != VERBATIM) | st.sampled_from([*TREE_ACTIONS, "event"])


def read(text: bytes) -> Any:
    """The value of a JSON text."""
    return json.loads(text)


# Events, both ways.


@given(
    own_types,
    st.integers(1, 2**53 - 1),
    objects,
    st.none() | names,
    metas,
    st.integers(0, 2**53 - 1) | st.floats(0, 1e15),
)
def test_whatever_a_client_of_the_dialect_writes_it_is_sent_again(
    kind: str, version: int, payload: Json, user: str | None, meta: Json, written_at: float
) -> None:
    """Its store compares the two, and a difference would end every connection (sync D71)."""
    item = Item(kind, version, payload, user, {**meta, "clientTs": written_at})
    event, raw = to_event(item, json.dumps(payload).encode())
    assert read(raw) == event
    body = stored_body("i", "c", b'["p/q"]', raw)
    expected = {
        "id": "i",
        "projectId": "p",
        "partition": "q",
        "committedId": 7,
        "type": kind,
        "schemaVersion": version,
        "payload": payload,
        "meta": {**meta, "clientTs": written_at, "clientId": "c"},
        "serverTs": 9,
    }
    if user is not None:
        expected["userId"] = user
    assert read(delivered(body, 7, 9, "p")) == expected


tree_events = st.fixed_dictionaries(
    {"type": st.sampled_from(TREE_ACTIONS), "payload": objects}, optional={"meta": objects}
)
schema_events = st.fixed_dictionaries(
    {
        "type": st.just("event"),
        "payload": st.fixed_dictionaries(
            {
                "schema": names | st.sampled_from([*TREE_ACTIONS, VERBATIM]),
                "data": values | objects,
            },
            optional={"meta": objects},
        ),
    },
    optional={"meta": objects},
)


@given(tree_events | schema_events)
def test_every_event_has_a_form_in_the_dialect(event: Json) -> None:
    """With all the members that the package asks of one; nothing of its content is lost."""
    raw = json.dumps(event).encode()
    said = read(delivered(stored_body("i", "c", b'["p/q"]', raw), 7, 9, "p"))
    assert isinstance(said["payload"], dict)
    assert isinstance(said["type"], str)
    assert said["type"]
    assert said["schemaVersion"] >= 1
    assert isinstance(said["meta"]["clientTs"], int | float)
    assert said["meta"]["clientId"] == "c"
    if event["type"] in TREE_ACTIONS or said["type"] == VERBATIM:
        assert said["payload"] == event["payload"]
    else:
        assert (said["type"], said["payload"]) == (
            event["payload"]["schema"],
            event["payload"]["data"],
        )


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"schema": "any", "data": {}}, "any"),
        ({"schema": "any", "data": 5}, VERBATIM),
        ({"schema": "any", "data": None}, VERBATIM),
        ({"schema": "set", "data": {}}, VERBATIM),
        ({"schema": VERBATIM, "data": {}}, VERBATIM),
        ({"schema": "event", "data": {}}, "event"),
    ],
)
def test_what_the_dialect_cannot_say_comes_as_it_is(payload: Json, kind: str) -> None:
    """Under a type that nobody can submit, so the two are never mistaken (sync D71)."""
    body = stored_body(
        "i", "c", b'["p/q"]', json.dumps({"type": "event", "payload": payload}).encode()
    )
    said = read(delivered(body, 1, 2, "p"))
    assert said["type"] == kind
    assert said["payload"] == (payload if kind == VERBATIM else payload["data"])


def test_members_of_either_meta_become_members_of_the_event() -> None:
    """An author of ours may name a schema version and a user in `meta`."""
    event = {
        "type": "event",
        "payload": {"schema": "any", "data": {}, "meta": {"schemaVersion": 3, "a": 1, "b": 1}},
        "meta": {"userId": "u", "b": 2},
    }
    body = stored_body("i", "c", b'["p/q"]', json.dumps(event).encode())
    said = read(delivered(body, 1, 2, "p"))
    assert (said["schemaVersion"], said["userId"]) == (3, "u")
    assert said["meta"] == {"a": 1, "b": 2, "clientId": "c", "clientTs": 2}


def test_an_event_in_several_partitions_comes_once_with_those_of_the_project() -> None:
    """Under the first; the names of other projects are not told (sync D70)."""
    event = b'{"type":"event","payload":{"schema":"any","data":{}}}'
    body = stored_body("i", "c", b'["o/x","p/","p/a","p/b/c","pp/z","z"]', event)
    said = read(delivered(body, 1, 2, "p"))
    assert (said["partition"], said["partitions"]) == ("a", ["a", "b/c"])
    assert "partitions" not in read(delivered(body, 1, 2, "o"))


def test_which_project_a_partition_is_in() -> None:
    """The part before the first slash, if there is something on both sides of it."""
    assert [project_of(name) for name in ("p/a", "p/a/b", "p/", "/a", "p", "")] == [
        "p",
        "p",
        None,
        None,
        None,
        None,
    ]


def test_faults_name_the_members_of_the_dialect() -> None:
    """An application shows them beside what it sent."""
    assert [
        field_name(field, is_event=True)
        for field in (
            "partitions.0",
            "event.type",
            "event.payload.schema",
            "event.payload.data",
            "event.payload.data.title",
            "event.meta.x",
            "event",
        )
    ] == ["partition", "type", "type", "payload", "payload.title", "meta.x", "event"]
    assert field_name("event.payload.data", is_event=False) == "payload.data"
    assert field_name("event.payload.options.id", is_event=False) == "payload.options.id"


# A connection.


def token(**claims: Any) -> str:
    """A token of client `c` that opens the project `p`."""
    whole = {"client_id": "c", "exp": EXPIRES_AT, "allowed_partition_prefixes": ["p/"], **claims}
    return jwt.encode(whole, SECRET, "HS256")


class Peer:
    """A session whose peer speaks the dialect, and the clocks it is shown."""

    def __init__(self, plugin: Any = None, **settings: Any) -> None:
        whole = SyncSettings(**{"jwt_secret": SECRET, **settings})
        model = Model(MODEL.targets, MODEL.schemas, 1, tuple(whole.profiles))
        self.now, self.unix, self.heard_at = 0.0, NOW, 0.0
        self.session = Session(whole, model, TOKENS, self.now, plugin)

    def send(self, kind: object, payload: object, **fields: Any) -> list[Action]:
        """A message comes; fields given as None are left out."""
        message = {
            "type": kind,
            "protocolVersion": "1.0",
            "msgId": "m",
            "timestamp": 1,
            "payload": payload,
            **fields,
        }
        said = {name: value for name, value in message.items() if value is not None}
        return self.frame(json.dumps(said).encode())

    def frame(self, data: bytes) -> list[Action]:
        """A frame comes."""
        return self.session.receive(data, is_text=True, now=self.now, unix_now=self.unix)

    def connect(self, **fields: Any) -> list[Action]:
        """A handshake, not yet finished."""
        return self.send("connect", {"token": token(), "clientId": "c", "projectId": "p", **fields})

    def submit(self, *items: Json) -> Submit:
        """A submit that is fine as a request."""
        [action] = self.send("submit_events", {"events": list(items)})
        assert isinstance(action, Submit)
        return action

    def due(self) -> list[Action]:
        """The timer fires."""
        return self.session.due(self.now, self.unix, self.heard_at)


def active(plugin: Any = None, **settings: Any) -> Peer:
    """A session after its handshake."""
    peer = Peer(plugin, **settings)
    [action] = peer.connect()
    assert action == Connected({}, None, "m")
    assert peer.session.done(peer.now, peer.unix) == []
    return peer


def item(item_id: str = "i", **fields: Any) -> Json:
    """An item that is fine; fields given as None are left out."""
    whole = {
        "id": item_id,
        "partition": "q",
        "projectId": "p",
        "type": "task.created",
        "schemaVersion": 1,
        "payload": {"title": "x"},
        "meta": {"clientId": "c", "clientTs": 5},
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not None}


def error(actions: list[Action]) -> tuple[str, Json, int | None]:
    """Code and details of the one error among the actions, and the close code after it."""
    [sent, *rest] = actions
    assert isinstance(sent, Send)
    assert sent.kind == "error"
    payload = read(sent.payload)
    assert payload.keys() == {"code", "message", "details"}
    if not rest:
        return payload["code"], payload["details"], None
    [closing] = rest
    assert isinstance(closing, Close)
    return payload["code"], payload["details"], closing.code


def test_the_two_dialects_are_told_apart_by_their_version() -> None:
    """By the word the handshake has for it; before that each message by its own (sync 21.1)."""
    peer = Peer()
    code, details, closed = error(peer.frame(b'{"type":"sync","msg_id":"m"}'))
    assert (code, details, closed) == ("bad_request", {"request_msg_id": "m"}, None)
    [sent] = peer.send("sync", {})
    assert isinstance(sent, Send)
    assert sent.reply_to == "m"
    assert error([sent])[0] == "bad_request"
    [action] = peer.connect()
    assert isinstance(action, Connected)


@pytest.mark.parametrize("fields", [{"protocolVersion": "1.1"}, {"protocolVersion": 1}])
def test_another_version_closes(fields: Json) -> None:
    """With the package's own code."""
    expected = ("protocolVersion_unsupported", {"supportedVersions": ["1.0"]}, 4406)
    assert error(Peer().send("connect", {}, **fields)) == expected
    assert error(active().send("sync", {}, **fields)) == expected


@pytest.mark.parametrize(
    ("kind", "payload", "fields"),
    [
        (1, {}, {}),
        ("sync", [], {}),
        ("sync", None, {}),
        ("sync", {}, {"msgId": 1}),
        ("connect", {}, {}),
        ("heartbeat", {}, {}),
        ("disconnect", {}, {}),
        ("event_broadcast", {}, {}),
        ("submit_events", {}, {}),
        ("submit_events", {"events": []}, {}),
        ("submit_events", {"events": [1]}, {}),
        ("submit_events", {"events": [{"id": ""}]}, {}),
        ("submit_events", {"events": [{"id": 1}]}, {}),
        ("submit_events", {"events": [item(), item()]}, {}),
        ("sync", {"sinceCommittedId": 0}, {}),
        ("sync", {"projectId": "p"}, {}),
        ("sync", {"projectId": "p", "sinceCommittedId": -1}, {}),
        ("sync", {"projectId": "p", "sinceCommittedId": "0"}, {}),
        ("sync", {"projectId": "p", "sinceCommittedId": True}, {}),
        ("sync", {"projectId": "p", "sinceCommittedId": 0.5}, {}),
    ],
)
def test_bad_requests_keep_the_connection(kind: object, payload: object, fields: Json) -> None:
    """And the next message is served."""
    peer = active()
    code, _, closed = error(peer.send(kind, payload, **fields))
    assert (code, closed) == ("bad_request", None)
    assert peer.submit(item()).items[0].refused is None


@pytest.mark.parametrize("data", [b"{", b"[]", b"null", b'{"a":1,"a":1}', b'{"payload":NaN}'])
def test_what_is_no_message_keeps_the_connection(data: bytes) -> None:
    """In the words of the dialect."""
    code, details, closed = error(active().frame(data))
    assert (code, closed) in {("bad_request", None), ("protocolVersion_unsupported", 4406)}
    assert "request_msg_id" not in details


@pytest.mark.parametrize(
    "fields",
    [
        {"token": None},
        {"token": 1},
        {"clientId": ""},
        {"clientId": 1},
        {"projectId": None},
        {"projectId": ""},
        {"projectId": "p/q"},
        {"projectId": "p" * 127},
        {"projectId": "e\u0301"},
    ],
)
def test_a_malformed_handshake_may_be_tried_again(fields: Json) -> None:
    """A project has a name that begins names of partitions (sync D70)."""
    peer = Peer()
    code, _, closed = error(peer.connect(**fields))
    assert (code, closed) == ("bad_request", None)
    [action] = peer.connect()
    assert isinstance(action, Connected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"token": "x"}, ("auth_failed", {}, 4401)),
        ({"clientId": "d"}, ("auth_failed", {}, 4401)),
        ({"projectId": "o"}, ("forbidden", {}, 4403)),
        ({"token": token(allowed_partition_prefixes=["p/q"])}, ("forbidden", {}, 4403)),
        (
            {"token": token(allowed_partition_prefixes=[], allowed_partitions=["p/", "p/q"])},
            ("forbidden", {}, 4403),
        ),
        ({"token": token(allowed_partition_prefixes=[])}, ("forbidden", {}, 4403)),
    ],
)
def test_who_may_not_connect_is_told_and_closed(fields: Json, expected: object) -> None:
    """A project needs a token for every partition it has or will have (sync D70)."""
    assert error(Peer().connect(**fields)) == expected


@pytest.mark.parametrize("prefixes", [[""], ["p"], ["p/"], ["x", "p/"]])
def test_a_prefix_opens_a_project(prefixes: list[str]) -> None:
    """Its own, or a shorter one."""
    [action] = Peer().connect(token=token(allowed_partition_prefixes=prefixes))
    assert isinstance(action, Connected)


def test_an_expired_token_ends_the_connection() -> None:
    """Whatever is asked."""
    peer = active()
    peer.unix = EXPIRES_AT
    assert error(peer.send("sync", {"projectId": "p", "sinceCommittedId": 0})) == (
        "auth_failed",
        {},
        4401,
    )


def test_an_item_becomes_an_event_of_its_profile() -> None:
    """With one partition, which names the project too."""
    request = active().submit(
        item("a", userId="u"),
        item(
            "b", type="treePush", payload={"target": "t", "value": {"id": "n"}}, schemaVersion=2.0
        ),
    )
    assert request.stops_at_rejection
    assert request.reply_to == "m"
    first, second = request.items
    assert first.partitions == ("p/q",)
    assert read(first.body)["event"] == {
        "type": "event",
        "payload": {"schema": "task.created", "data": {"title": "x"}},
        "meta": {"schemaVersion": 1, "clientTs": 5, "userId": "u"},
    }
    assert first.event == {"type": "event", "payload": {}}, "no decision looks at the rest"
    assert read(second.body)["event"] == second.event
    assert second.event == {
        "type": "treePush",
        "payload": {"target": "t", "value": {"id": "n"}},
        "meta": {"schemaVersion": 2, "clientTs": 5},
    }
    assert not any(each.refused or each.invalid for each in request.items)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"id": "i" * 129}, "validation_failed", "id"),
        ({"type": None}, "validation_failed", "type"),
        ({"type": ""}, "validation_failed", "type"),
        ({"type": 1}, "validation_failed", "type"),
        ({"type": VERBATIM}, "validation_failed", "type"),
        ({"schemaVersion": None}, "validation_failed", "schemaVersion"),
        ({"schemaVersion": 0}, "validation_failed", "schemaVersion"),
        ({"schemaVersion": 1.5}, "validation_failed", "schemaVersion"),
        ({"schemaVersion": True}, "validation_failed", "schemaVersion"),
        ({"schemaVersion": "1"}, "validation_failed", "schemaVersion"),
        ({"schemaVersion": 2**53}, "validation_failed", "schemaVersion"),
        ({"payload": None}, "validation_failed", "payload"),
        ({"payload": []}, "validation_failed", "payload"),
        ({"payload": {"n": 2**53}}, "validation_failed", "payload.n"),
        ({"payload": {}}, "validation_failed", "payload.title"),
        ({"partition": None}, "validation_failed", "partition"),
        ({"partition": ""}, "validation_failed", "partition"),
        ({"partition": 1}, "validation_failed", "partition"),
        ({"partition": "e\u0301"}, "validation_failed", "partition"),
        ({"partition": "q" * 127}, "validation_failed", "partition"),
        ({"meta": None}, "validation_failed", "meta.clientTs"),
        ({"meta": {"clientTs": True}}, "validation_failed", "meta.clientTs"),
        ({"meta": {"clientTs": "1"}}, "validation_failed", "meta.clientTs"),
        ({"meta": {"clientTs": 1, "x": 2**53}}, "validation_failed", "meta.x"),
        ({"meta": {"clientTs": 1, "userId": "u"}}, "validation_failed", "meta.userId"),
        ({"meta": {"clientTs": 1, "clientId": "d"}}, "forbidden", "meta.clientId"),
        ({"userId": ""}, "validation_failed", "userId"),
        ({"userId": 1}, "validation_failed", "userId"),
        ({"projectId": None}, "forbidden", "projectId"),
        ({"projectId": "o"}, "forbidden", "projectId"),
        ({"type": "unknown"}, "validation_failed", "type"),
        ({"type": "treePush"}, "validation_failed", "payload.target"),
    ],
)
def test_a_bad_item_is_rejected_and_not_the_request(fields: Json, reason: str, field: str) -> None:
    """The package drops a rejected draft; a refused request it would wait for for ever."""
    request = active().submit(item(**fields))
    [prepared] = request.items
    faults = prepared.refused[1] if prepared.refused else prepared.invalid
    said = reason if prepared.refused is None else prepared.refused[0]
    result = Rejected(prepared.id, said, tuple(faults), 9)
    [told] = read(InsiemeForm("p").results(request, [result], 9))["results"]
    assert (told["status"], told["reason"], told["created"]) == ("rejected", reason, 9)
    assert told["errors"][0]["field"] == field
    assert told["errors"][0]["message"]


def test_a_user_is_who_the_token_says() -> None:
    """If it says so."""
    peer = Peer()
    peer.connect(token=token(userId="u"))
    peer.session.done(peer.now, peer.unix)
    mine, none, other = peer.submit(item("a", userId="u"), item("b"), item("c", userId="v")).items
    assert mine.refused is None
    assert none.refused is None
    assert other.refused is not None
    assert other.refused[0] == "forbidden"


@pytest.mark.parametrize(
    ("profiles", "accepted"),
    [(["compatibility"], [False, True]), (["canonical"], [True, False])],
)
def test_what_the_server_does_not_offer_is_rejected(
    profiles: list[str], accepted: list[bool]
) -> None:
    """Tree actions belong to one profile, all other types to the other."""
    push = item("b", type="treePush", payload={"target": "t", "value": {"id": "n"}})
    request = active(profiles=profiles).submit(item("a"), push)
    assert [each.refused is None for each in request.items] == accepted


def nested(levels: int) -> Any:
    """A value of that depth."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_no_payload_is_too_deep_for_clients_of_the_other_dialect() -> None:
    """A page of theirs has it two levels further down, and they read no deeper than 64."""
    peer = active()
    fits, deep = peer.submit(
        item("a", payload={"title": nested(MAX_PAYLOAD_DEPTH - 1)}),
        item("b", payload={"title": nested(MAX_PAYLOAD_DEPTH)}),
    ).items
    assert fits.refused is None
    assert deep.refused is not None


def test_the_same_item_is_a_duplicate_and_another_is_not() -> None:
    """Fingerprints are those of the stored event: key order is nothing, `clientTs` is something."""
    peer = active()
    first = peer.submit(item(payload={"title": "x", "n": 1.0}))
    peer.session.done(peer.now, peer.unix)
    same = peer.submit(item(payload={"n": 1, "title": "x"}))
    peer.session.done(peer.now, peer.unix)
    other = peer.submit(item(payload={"n": 1, "title": "x"}, meta={"clientTs": 6}))
    assert first.items[0].fingerprint == same.items[0].fingerprint
    assert first.items[0].fingerprint != other.items[0].fingerprint


def test_items_beyond_a_batch_are_not_processed() -> None:
    """The package sends them again; had the request been refused it would wait (sync D73)."""
    peer = active(max_batch_size=2, max_in_flight_drafts=2)
    request = peer.submit(*[item(f"i{number}") for number in range(4)])
    assert [each.id for each in request.items] == ["i0", "i1"]
    results = [Committed("i0", 5, 9), Committed("i1", 6, 9)]
    told = read(InsiemeForm("p").results(request, results, 9))["results"]
    assert told[0] == {"id": "i0", "status": "committed", "committedId": 5, "serverTs": 9}
    assert told[2:] == [
        {
            "id": each,
            "status": "not_processed",
            "reason": "batch_limit",
            "blockedById": "i1",
            "created": 9,
        }
        for each in ("i2", "i3")
    ]


def test_what_comes_after_a_rejection_is_not_processed() -> None:
    """In the words of the dialect."""
    request = active().submit(item("a"), item("b"))
    blocked = NotProcessed("b", "prior_item_failed", "a", 9)
    rejected = Rejected("a", "forbidden", (Fault("partitions.0", "not allowed"),), 9)
    told = read(InsiemeForm("p").results(request, [rejected, blocked], 9))["results"]
    assert told[0]["errors"] == [{"field": "partition", "message": "partition: not allowed"}]
    assert told[1] == {
        "id": "b",
        "status": "not_processed",
        "reason": "prior_item_failed",
        "blockedById": "a",
        "created": 9,
    }


@pytest.mark.parametrize(
    ("limit", "expected"), [(500, 500), (None, 500), ("x", 500), (1, 50), (0, 50), (5000, 1000)]
)
def test_a_page_is_of_the_whole_project(limit: object, expected: int) -> None:
    """As large as the server's bounds allow."""
    payload = {"projectId": "p", "sinceCommittedId": 7, "limit": limit}
    [action] = active().send("sync", payload)
    assert isinstance(action, Sync)
    assert (action.project, action.partitions, action.since) == ("p", (), 7)
    assert (action.limit, action.watermark, action.subscriptions) == (expected, None, ("p",))


def test_no_page_continues_a_cycle() -> None:
    """Each goes as far as the log does by then; broadcasts follow the last (sync D76)."""
    peer = active()
    wish = {"projectId": "p", "sinceCommittedId": 0}
    [first] = peer.send("sync", wish)
    assert isinstance(first, Sync)
    peer.session.paged(first, 3, 9, has_more=True)
    peer.session.done(peer.now, peer.unix)
    [second] = peer.send("sync", {**wish, "sinceCommittedId": 3})
    assert isinstance(second, Sync)
    assert second.watermark is None


def test_another_project_is_forbidden_and_the_connection_stays() -> None:
    """It belongs to another connection."""
    wish = {"projectId": "o", "sinceCommittedId": 0}
    assert error(active().send("sync", wish)) == ("forbidden", {}, None)


def test_what_should_be_tried_again_ends_the_connection() -> None:
    """After any code but `server_error` the package would wait for its answer (sync D73)."""
    peer = active(max_messages_per_second=2)
    elsewhere = {"projectId": "o", "sinceCommittedId": 0}
    peer.send("sync", elsewhere)
    details = {"reason": "rate_limited", "retryAfterMs": 1000}
    assert error(peer.send("sync", elsewhere)) == ("server_error", details, 1011)
    assert error(active().session.busy("full")) == ("server_error", details, 1011)


def test_any_frame_keeps_the_connection_and_silence_is_asked() -> None:
    """Pongs too: the package sends no heartbeats (sync D74)."""
    peer = active(heartbeat_timeout_ms=30_000)
    peer.now = 9.0
    assert peer.due() == []
    peer.now = 10.0
    assert peer.due() == [Ping()]
    assert peer.due() == []
    peer.now, peer.heard_at = 29.0, 10.5
    assert peer.due() == [Ping()]
    peer.now = 40.0
    assert peer.due() == [Ping()]
    peer.now = 40.5
    assert peer.due() == [Close(4408)]
    assert peer.due() == []


def test_nobody_else_is_pinged() -> None:
    """Clients of the other dialect send heartbeats, and nothing else counts (sync D20)."""
    peer = Peer(heartbeat_timeout_ms=30_000)
    peer.now = peer.heard_at = 20.0
    assert peer.due() == []
    peer.now = 30.0
    assert peer.due() == [Close(4408)]


class Rules:
    """Stands for an application's plug-in."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def restrict(self, claims: Claims, access: str) -> Any:
        """Everything but the partition `p/closed`."""

        def allows(partition: str) -> bool:
            self.asked.append((partition, access))
            return partition != "p/closed" and claims.allows(partition)

        return allows

    def judge(self, item: PreparedItem, raw_event: bytes, claims: Claims) -> PreparedItem:
        """Nothing is wrong; the event must be readable."""
        if item.refused is None:
            content = read(raw_event)
            identity = Identity(claims.client_id, claims.all)
            Event(item.id, identity, item.partitions, content["type"], content["payload"])
        return item


def test_the_applications_rules_hold_here_too() -> None:
    """They are asked for the project when it is opened, and for each partition that is written."""
    rules = Rules()
    peer = active(rules)
    fine, closed = peer.submit(item("a"), item("b", partition="closed")).items
    assert fine.refused is None
    assert closed.refused is not None
    assert closed.refused[0] == "forbidden"
    assert rules.asked == [("p/", "read"), ("p/q", "write"), ("p/closed", "write")]
