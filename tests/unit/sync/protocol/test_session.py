"""The server's end of one sync connection, without sockets and with a clock in the test's hand."""

import json
import time
import tracemalloc
from itertools import product
from typing import Any

import jwt
import pytest

from tidelog.sync.protocol.actions import Action, Close, Connected, Send, Submit, Sync
from tidelog.sync.protocol.profiles import TREE_ACTIONS, Model
from tidelog.sync.protocol.session import (
    INBOX_BYTES,
    INBOX_MESSAGES,
    QUEUED_BYTES,
    QUEUED_MESSAGES,
    Session,
)
from tidelog.sync.protocol.tokens import Tokens
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
EXPIRES_AT = int(time.time()) + 100_000
NOW = EXPIRES_AT - 1000.0
"""Unix time of the tests, a thousand seconds before the token ends."""

T, E = "compatibility", "canonical"
MODEL = Model.parse({"t": {"kind": "tree", "actions": list(TREE_ACTIONS)}}, {"s": True}, 1)
TOKENS = Tokens(SECRET, None, ["HS256"])


def token(**claims: Any) -> str:
    """A token of client `c` that opens the partitions p..."""
    whole = {"client_id": "c", "exp": EXPIRES_AT, "allowed_partition_prefixes": ["p"], **claims}
    return jwt.encode({k: v for k, v in whole.items() if v is not None}, SECRET, "HS256")


def envelope(kind: object, payload: object, **fields: Any) -> dict[str, Any]:
    """A message; fields given as None are left out."""
    message = {
        "type": kind,
        "msg_id": "m",
        "timestamp": 1,
        "payload": payload,
        "protocol_version": "1.0",
        **fields,
    }
    return {name: value for name, value in message.items() if value is not None}


def item(item_id: str = "i", **fields: Any) -> dict[str, Any]:
    """A submit item that is fine in the event profile."""
    event = {"type": "event", "payload": {"schema": "s", "data": 1}}
    whole = {"id": item_id, "partitions": ["p"], "event": event, **fields}
    return {name: value for name, value in whole.items() if value is not None}


class Peer:
    """A session and the clocks it is shown."""

    def __init__(self, **settings: Any) -> None:
        settings = {"jwt_secret": SECRET, "profiles": [T, E], **settings}
        self.now, self.unix = 0.0, NOW
        self.session = Session(SyncSettings(**settings), MODEL, TOKENS, self.now)

    def frame(self, data: bytes, *, is_text: bool = True) -> list[Action]:
        """A frame comes."""
        return self.session.receive(data, is_text=is_text, now=self.now, unix_now=self.unix)

    def send(self, kind: object, payload: object = None, **fields: Any) -> list[Action]:
        """A message comes; its payload is empty unless given."""
        message = envelope(kind, {} if payload is None else payload, **fields)
        return self.frame(json.dumps(message).encode())

    def done(self) -> list[Action]:
        """What was asked for is finished."""
        return self.session.done(self.now, self.unix)

    def queued(self) -> list[Action]:
        """The submit is in the committer's queue."""
        return self.session.queued(self.now, self.unix)

    def answered(self) -> list[Action]:
        """The oldest submit in the committer's queue is answered."""
        return self.session.answered(self.now, self.unix)

    def due(self) -> list[Action]:
        """The timer fires."""
        return self.session.due(self.now, self.unix, self.now)

    def connect(self, **payload: Any) -> list[Action]:
        """A handshake of client `c`, not yet finished."""
        given = {"token": token(), "client_id": "c", **payload}
        return self.send("connect", {k: v for k, v in given.items() if v is not ABSENT})


ABSENT: Any = object()


def active(**settings: Any) -> Peer:
    """A session after its handshake, in the event profile."""
    peer = Peer(**settings)
    [action] = peer.connect(supported_profiles=[E, T])
    assert isinstance(action, Connected)
    assert peer.done() == []
    return peer


def tree(**settings: Any) -> Peer:
    """A session after its handshake, in the tree profile."""
    peer = Peer(**settings)
    peer.connect()
    peer.done()
    return peer


def problem(actions: list[Action]) -> tuple[str, dict[str, Any], int | None]:
    """Code and details of the one error among the actions, and the close code after it."""
    [sent, *rest] = actions
    assert isinstance(sent, Send)
    assert sent.kind == "error"
    payload = json.loads(sent.payload)
    assert payload.keys() <= {"code", "message", "details"}
    assert isinstance(payload["message"], str)
    if not rest:
        return payload["code"], {"message": payload["message"], **payload.get("details", {})}, None
    [closing] = rest
    assert isinstance(closing, Close)
    details = {"message": payload["message"], **payload.get("details", {})}
    return payload["code"], details, closing.code


def is_bad_request(actions: list[Action]) -> bool:
    """Whether the one answer is `bad_request`, and the connection stays open."""
    code, _, closed = problem(actions)
    return (code, closed) == ("bad_request", None)


# Sync 1: the order of the checks.

FAULTS: dict[str, tuple[str, str]] = {
    "size": ("bad_request", "too large"),
    "json": ("bad_request", "not JSON"),
    "field": ("bad_request", "msg_id"),
    "form": ("bad_request", "MAJOR.MINOR"),
    "version": ("protocol_version_unsupported", "not supported"),
    "unknown": ("bad_request", "unknown type"),
    "state": ("bad_request", "already connected"),
    "identity": ("auth_failed", "authenticated"),
    "shape": ("bad_request", "events"),
}
"""In the order of the table: the code, and what tells the answer from those of other checks."""

CLOSES = {"auth_failed": 4401, "protocol_version_unsupported": 4406, "bad_request": None}


def faulty(faults: set[str]) -> bytes:
    """A message with all of these faults at once."""
    payload: dict[str, Any] = {"events": [] if "shape" in faults else [item()]}
    if "identity" in faults:
        payload["client_id"] = "somebody else"
    kind = "connect" if "state" in faults else "submit_events"
    message = envelope("nonsense" if "unknown" in faults else kind, payload)
    if "field" in faults:
        del message["msg_id"]
    if "form" in faults:
        message["protocol_version"] = "1"
    if "version" in faults:
        message["protocol_version"] = "2.0"
    if "size" in faults:
        message["pad"] = "x" * 1024
    return json.dumps(message).encode() + (b"}" if "json" in faults else b"")


def test_of_several_faults_the_first_check_decides() -> None:
    """Whatever combination of the nine checks a message fails, the first of them answers."""
    alternatives = [
        ("", "size"),
        ("", "json"),
        ("", "field"),
        ("", "form", "version"),
        ("", "unknown", "state"),
        ("", "identity"),
        ("", "shape"),
    ]
    tried = 0
    for combination in product(*alternatives):
        faults = {name for name in combination if name}
        peer = active(max_message_bytes=1024)
        actions = peer.frame(faulty(faults))
        if not faults:
            assert isinstance(actions[0], Submit)
            continue
        tried += 1
        code, text = FAULTS[next(name for name in FAULTS if name in faults)]
        found, details, closed = problem(actions)
        assert (found, closed) == (code, CLOSES[code]), faults
        assert text in details["message"], faults
        assert peer.session.closed is (closed is not None)
    assert tried == 2 * 2 * 2 * 3 * 3 * 2 * 2 - 1


def test_a_message_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    """Row 1 counts bytes and names the limit; the connection stays open (sync D1)."""
    peer = active(max_message_bytes=1024)
    message = json.dumps(envelope("heartbeat", {})).encode()
    assert peer.frame(message.ljust(1024)) == [Send("heartbeat_ack", b"{}")]
    code, details, closed = problem(peer.frame(message.ljust(1025)))
    assert (code, details["max_message_bytes"], closed) == ("bad_request", 1024, None)
    assert peer.frame(message) == [Send("heartbeat_ack", b"{}")]


def test_a_message_of_as_many_values_as_may_be_is_taken_and_one_more_is_not() -> None:
    """The drafts of a refused one are not looked at, and do not count as in flight (sync D78)."""
    peer = active(max_message_values=30, max_in_flight_drafts=1)
    most = envelope("heartbeat", {"more": [0] * 23})
    assert peer.frame(json.dumps(most).encode()) == [Send("heartbeat_ack", b"{}")]
    most["payload"]["more"].append(0)
    code, details, closed = problem(peer.frame(json.dumps(most).encode()))
    assert (code, details["max_message_values"], closed) == ("bad_request", 30, None)
    many = item(more=[0] * 30)
    code, details, closed = problem(peer.send("submit_events", {"events": [many]}))
    assert (code, details["max_message_values"], closed) == ("bad_request", 30, None)
    assert isinstance(peer.send("submit_events", {"events": [item()]})[0], Submit)


@pytest.mark.parametrize("field", ["partitions", "subscription_partitions"])
def test_a_sync_names_as_many_partitions_as_may_be(field: str) -> None:
    """One more is refused and changes nothing; each is held as long as the connection (sync 15)."""
    peer = active(max_partitions=3)
    asked = {"partitions": ["p"], "since_committed_id": 0, field: ["p"] * 4}
    code, details, closed = problem(peer.send("sync", asked))
    assert (code, details["max_partitions"], closed) == ("bad_request", 3, None)
    assert field in details["message"]
    assert isinstance(peer.send("sync", {**asked, field: ["p"] * 3})[0], Sync)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '"text"',
        "null",
        "1",
        "{} {}",
        '{"type":"heartbeat"',
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":-Infinity}',
        '{"a":1e999}',
        '{"a":1,"a":1}',
        '{"a":{"b":1,"\\u0062":1}}',
        '{"a":"\\ud800"}',
        "\ufeff{}",
        "[" * 5000,
        '{"type":"submit_events","payload":{"events":[{"event":' + "[" * 5000,
    ],
)
def test_json_is_read_strictly(text: str) -> None:
    """What is not strict JSON, or no object, is `bad_request` in any state (sync D4)."""
    assert is_bad_request(Peer().frame(text.encode()))
    assert is_bad_request(active().frame(text.encode()))


def test_a_binary_frame_is_refused_whatever_it_holds() -> None:
    """Messages are text frames."""
    data = json.dumps(envelope("heartbeat", {})).encode()
    assert is_bad_request(active().frame(data, is_text=False))
    assert is_bad_request(Peer().frame(b"\xff\xfe\0", is_text=False))


def test_a_submit_nested_beyond_all_measure_is_refused() -> None:
    """Counting the drafts of a frame does not fail where reading it would only refuse it."""
    deep = b"[" * 50_000 + b"]" * 50_000
    data = json.dumps(envelope("submit_events", {"events": [item(event="?")]})).encode()
    peer = active()
    assert is_bad_request(peer.frame(data.replace(b'"?"', deep)))
    assert isinstance(peer.send("submit_events", {"events": [item()]})[0], Submit)


WRONG: dict[str, list[Any]] = {
    "type": [None, 1, True, [], {}],
    "msg_id": [None, "", 1, [], {}],
    "timestamp": [None, "1", True, False, [], {}],
    "payload": [None, [], "x", 1, True],
    "protocol_version": [None, 1.0, 1, True, [], {}],
}


@pytest.mark.parametrize("field", list(WRONG))
@pytest.mark.parametrize("is_null", [True, False])
def test_every_envelope_field_is_required_with_its_type(field: str, *, is_null: bool) -> None:
    """A missing field, null and every wrong type are `bad_request` (row 3 of sync 1)."""
    for value in WRONG[field]:
        message = envelope("heartbeat", {})
        if value is None and not is_null:
            del message[field]
        else:
            message[field] = value
        assert is_bad_request(Peer().frame(json.dumps(message).encode())), message


@pytest.mark.parametrize("timestamp", [0, -5, 1.5, 10**30, 1e300])
def test_the_clock_of_a_client_never_matters(timestamp: float) -> None:
    """Any finite number is a timestamp, however skewed."""
    assert active().send("heartbeat", timestamp=timestamp) == [Send("heartbeat_ack", b"{}")]


def test_unknown_fields_are_ignored_everywhere_but_in_the_event() -> None:
    """Envelope, payload and item may have more members; `event.payload` may not."""
    peer = active()
    extra = item(color="blue")
    [action] = peer.send("submit_events", {"events": [extra], "more": 1}, further={})
    assert isinstance(action, Submit)
    assert action.items[0].invalid == ()
    peer.done()
    event = {"type": "event", "payload": {"schema": "s", "data": 1, "more": 1}}
    [action] = peer.send("submit_events", {"events": [item(event=event)]})
    assert isinstance(action, Submit)
    assert [fault.field for fault in action.items[0].invalid] == ["event.payload.more"]


@pytest.mark.parametrize("version", ["1", "1.", ".1", "1.0.0", "v1.0", " 1.0", "1.0\n", "a.b", ""])
def test_a_version_that_is_no_version_is_a_malformed_envelope(version: str) -> None:
    """Only MAJOR.MINOR is judged as a version (sync D2)."""
    assert is_bad_request(active().send("heartbeat", protocol_version=version))


@pytest.mark.parametrize("version", ["1.1", "2.0", "0.9", "01.0", "1.00"])
@pytest.mark.parametrize("kind", ["connect", "heartbeat", "submit_events", "nonsense"])
@pytest.mark.parametrize("is_active", [True, False])
def test_support_is_exact_membership(version: str, kind: str, *, is_active: bool) -> None:
    """Any other version closes in any state, for any type, and names the known (sync D6, D7)."""
    peer = active() if is_active else Peer()
    code, details, closed = problem(peer.send(kind, protocol_version=version))
    assert (code, closed) == ("protocol_version_unsupported", 4406)
    assert details["supported_versions"] == ["1.0"]
    assert details["requested_version"] == version
    assert peer.session.closed


def test_an_error_names_the_message_it_answers() -> None:
    """`request_msg_id` is the offender's `msg_id` when that was a string (sync D5)."""
    assert problem(active().send("nonsense", msg_id="abc"))[1]["request_msg_id"] == "abc"
    assert "request_msg_id" not in problem(active().send("heartbeat", msg_id=5))[1]
    assert "request_msg_id" not in problem(active().frame(b"{"))[1]


def test_repeated_message_ids_are_nobodys_business() -> None:
    """The same `msg_id` again is as good as a fresh one (sync D3)."""
    peer = active()
    for _ in range(3):
        assert peer.send("heartbeat", msg_id="same") == [Send("heartbeat_ack", b"{}")]


# Sync 3: the state machine.

CLIENT_TYPES = ("connect", "submit_events", "sync", "heartbeat", "disconnect")
SERVER_TYPES = (
    "connected",
    "submit_events_result",
    "event_broadcast",
    "sync_response",
    "heartbeat_ack",
    "error",
    "version_changed",
)


@pytest.mark.parametrize("kind", [*SERVER_TYPES, "", "Heartbeat", "nonsense"])
def test_what_only_servers_say_is_an_unknown_type(kind: str) -> None:
    """A server's type from a client is unknown, in both states."""
    for peer in (Peer(), active()):
        code, details, closed = problem(peer.send(kind))
        assert (code, details["message"], closed) == ("bad_request", "unknown type", None)


@pytest.mark.parametrize("kind", ["submit_events", "sync", "disconnect"])
def test_before_the_handshake_only_connect_and_heartbeat_are_taken(kind: str) -> None:
    """Everything else is `bad_request`, `disconnect` too, and a handshake is still possible."""
    peer = Peer()
    assert is_bad_request(peer.send(kind))
    assert isinstance(peer.connect()[0], Connected)


def test_a_heartbeat_is_answered_in_both_states() -> None:
    """`heartbeat_ack` with an empty payload, before and after the handshake."""
    for peer in (Peer(), active()):
        assert peer.send("heartbeat") == [Send("heartbeat_ack", b"{}")]


def test_a_second_connect_changes_nothing() -> None:
    """It is `bad_request`; identity, profile and expiry stay those of the first (sync D8)."""
    peer = active()
    later = token(exp=EXPIRES_AT + 5000)
    assert is_bad_request(peer.connect(token=later, supported_profiles=[T]))
    assert peer.session.profile == E
    peer.unix = EXPIRES_AT
    assert problem(peer.due())[::2] == ("auth_failed", 4401)


@pytest.mark.parametrize("payload", [{}, {"reason": "client_shutdown"}, {"reason": ""}])
def test_disconnect_closes_without_a_word(payload: dict[str, Any]) -> None:
    """Close 1000, no message; nothing is processed afterwards."""
    peer = active()
    assert peer.send("disconnect", payload) == [Close(1000)]
    assert peer.send("heartbeat") == []
    assert peer.due() == []


@pytest.mark.parametrize("reason", [1, None, [], {}, True])
def test_a_reason_that_is_no_text_keeps_the_connection(reason: object) -> None:
    """`disconnect.reason` is an optional string."""
    peer = active()
    assert is_bad_request(
        peer.frame(json.dumps(envelope("disconnect", {"reason": reason})).encode())
    )
    assert peer.send("heartbeat") == [Send("heartbeat_ack", b"{}")]


def test_an_internal_failure_says_so_and_closes() -> None:
    """`server_error`, then close 1011, and what waited is not worked on."""
    peer = active()
    peer.send("submit_events", {"events": [item()]})
    peer.send("heartbeat")
    assert problem(peer.session.fail())[::2] == ("server_error", 1011)
    assert peer.done() == []


def test_messages_are_worked_on_one_after_another() -> None:
    """Whatever comes during a submit waits for it, in the order it came (sync D9)."""
    peer = active()
    [first] = peer.send("submit_events", {"events": [item("a")]})
    assert isinstance(first, Submit)
    assert peer.send("heartbeat") == []
    assert peer.send("submit_events", {"events": [item("b")]}) == []
    assert peer.send("nonsense") == []
    assert peer.send("sync", {"partitions": ["p"], "since_committed_id": 0}) == []
    assert peer.send("disconnect") == []
    [ack, second] = peer.done()
    assert ack == Send("heartbeat_ack", b"{}")
    assert isinstance(second, Submit)
    assert second.items[0].id == "b"
    [refused, third] = peer.done()
    assert isinstance(refused, Send)
    assert refused.kind == "error"
    assert isinstance(third, Sync)
    assert peer.done() == [Close(1000)]


def submitted(actions: list[Action]) -> list[str]:
    """The ids of the one submit that is asked for."""
    [action] = actions
    assert isinstance(action, Submit)
    return [each.id for each in action.items]


def test_submits_follow_each_other_into_the_queue() -> None:
    """A submit may be queued after others that have no result yet; all else waits (sync D9)."""
    peer = active()
    assert submitted(submit(peer, item("a"))) == ["a"]
    assert submit(peer, item("b")) == [], "the first has no place in the order yet"
    assert submitted(peer.queued()) == ["b"]
    assert peer.queued() == []
    assert submitted(submit(peer, item("c"))) == ["c"]
    assert peer.queued() == []
    assert peer.send("heartbeat") == []
    assert submit(peer, item("d")) == []
    assert peer.answered() == []
    assert peer.answered() == []
    [ack, last] = peer.answered()
    assert ack == Send("heartbeat_ack", b"{}")
    assert submitted([last]) == ["d"]


def test_a_refused_submit_is_answered_behind_those_before_it() -> None:
    """An error does not overtake the results of earlier submits, nor a later submit the error."""
    peer = active(max_in_flight_drafts=3)
    submit(peer, item("a"))
    peer.queued()
    assert submit(peer, item("b"), item("b")) == []
    assert submit(peer, item("c")) == []
    [refused, too_many] = peer.answered()
    assert [problem([action])[0] for action in (refused, too_many)] == [
        "bad_request",
        "rate_limited",
    ]
    assert submitted(submit(peer, item("d"), item("e"), item("f"))) == ["d", "e", "f"]


def test_a_token_that_ends_behind_a_queued_submit_closes_after_its_answer() -> None:
    """The error that closes comes last, and nothing after it is worked on."""
    peer = active()
    submit(peer, item("a"))
    peer.queued()
    peer.unix = EXPIRES_AT
    assert submit(peer, item("b")) == []
    assert not peer.session.closed
    assert problem(peer.answered())[::2] == ("auth_failed", 4401)
    assert submit(peer, item("c")) == []


def test_one_connection_does_not_fill_the_queue() -> None:
    """The committer's queue is everybody's: so many submits of one connection, so many bytes."""
    peer = active(max_messages_per_second=10_000)
    for number in range(QUEUED_MESSAGES):
        assert submitted(submit(peer, item(str(number)))) == [str(number)]
        assert peer.queued() == []
    assert submit(peer, item("more")) == []
    assert submitted(peer.answered()) == ["more"]

    peer = active()
    large = {"type": "event", "payload": {"schema": "s", "data": "x" * QUEUED_BYTES}}
    assert submitted(submit(peer, item("large", event=large))) == ["large"], "alone it may"
    assert peer.queued() == []
    assert submit(peer, item("a")) == []
    assert submit(peer, item("large too", event=large)) == []
    assert submitted(peer.answered()) == ["a"]
    assert peer.queued() == []
    assert submitted(peer.answered()) == ["large too"]


def test_a_submit_without_room_is_tried_again_in_its_turn() -> None:
    """Behind others it waits for their answers; alone it is the service's to refuse."""
    peer = active(max_in_flight_drafts=3)
    submit(peer, item("a"))
    assert not peer.session.postponed()
    peer.queued()
    assert submitted(submit(peer, item("b"))) == ["b"]
    assert peer.session.postponed()
    assert submit(peer, item("c")) == [], "it does not overtake"
    assert submitted(peer.answered()) == ["b"]
    assert submitted(peer.queued()) == ["c"]
    assert peer.queued() == []
    assert peer.answered() == []
    assert peer.answered() == []
    assert submitted(submit(peer, item("d"), item("e"), item("f"))) == ["d", "e", "f"]


def test_submits_that_were_on_their_way_without_room_are_tried_again_in_their_turn() -> None:
    """Whatever came after one that found no room is put back with it, in order."""
    peer = active()
    for name in "abcd":
        assert submitted(submit(peer, item(name))) == [name]
        assert peer.queued() == []
    assert peer.session.postponed(3)
    assert submit(peer, item("e")) == []
    assert submitted(peer.answered()) == ["b"]
    assert peer.queued() == []
    assert submitted(peer.answered()) == ["c"]
    assert peer.queued() == []
    assert not peer.session.postponed(), "c is alone now, and the service's to refuse"
    assert submitted(peer.done()) == ["d"]
    assert submitted(peer.queued()) == ["e"], "which was never on its way"


def test_of_submits_that_all_found_no_room_the_first_is_refused() -> None:
    """The others are tried when it is done."""
    peer = active(max_in_flight_drafts=3)
    for name in "abc":
        submit(peer, item(name))
        peer.queued()
    assert not peer.session.postponed(3)
    assert submitted(peer.done()) == ["b"]
    assert peer.queued() == []
    assert submitted(peer.answered()) == ["c"]
    assert peer.queued() == []
    assert peer.answered() == []
    assert submitted(submit(peer, item("d"), item("e"), item("f"))) == ["d", "e", "f"]


def test_a_type_in_a_string_makes_no_submit() -> None:
    """Only what is one is looked at while submits are in the queue."""
    peer = active()
    submit(peer, item("a"))
    peer.queued()
    assert peer.send("heartbeat", {"events": [item()], "x": "submit_events"}) == []
    peer.now = 5.0
    assert peer.answered() == [Send("heartbeat_ack", b"{}")]


def test_a_handshake_is_finished_before_the_next_message() -> None:
    """A pipelined message after `connect` is judged as one of an active connection (sync D9)."""
    peer = Peer()
    assert isinstance(peer.connect()[0], Connected)
    assert peer.send("sync", {"partitions": ["p"], "since_committed_id": 0}) == []
    assert isinstance(peer.done()[0], Sync)


def test_the_peer_waits_when_too_much_waits() -> None:
    """A full inbox says so, and no longer after one message was worked off."""
    peer = active(max_messages_per_second=10_000)
    peer.send("submit_events", {"events": [item()]})
    for _ in range(INBOX_MESSAGES):
        assert not peer.session.is_full
        peer.send("submit_events", {"events": [item()]})
    assert peer.session.is_full
    peer.done()
    assert not peer.session.is_full


def test_the_peer_waits_when_few_large_messages_wait() -> None:
    """Messages may be large: an inbox is full by its bytes too."""
    peer = active(max_messages_per_second=10_000)
    peer.send("submit_events", {"events": [item()]})
    was_full = []
    for _ in range(2):
        peer.send("heartbeat", {"x": "y" * (INBOX_BYTES // 2)})
        was_full.append(peer.session.is_full)
    peer.done()
    assert [*was_full, peer.session.is_full] == [False, True, False]


def test_what_waits_takes_little_more_memory_than_its_bytes() -> None:
    """A submit of many short names is taken apart when it has its turn, not before."""
    peer = active(max_messages_per_second=10_000)
    peer.send("sync", {"partitions": ["p"], "since_committed_id": 0})
    frame = json.dumps(envelope("submit_events", {"events": [item(partitions=["p"] * 8000)]}))
    tracemalloc.start()
    try:
        for _ in range(10):
            assert peer.frame(frame.encode()) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * 10 * len(frame)
    [action] = peer.done()
    assert isinstance(action, Submit)
    assert action.items[0].partitions == ("p",)


# Sync 4: the handshake.


@pytest.mark.parametrize(
    "change",
    [
        {"token": ABSENT},
        {"token": None},
        {"token": 5},
        {"client_id": ABSENT},
        {"client_id": ""},
        {"client_id": 5},
        {"client_id": None},
        {"last_committed_id": -1},
        {"last_committed_id": "0"},
        {"last_committed_id": 1.5},
        {"last_committed_id": True},
        {"last_committed_id": None},
        {"supported_profiles": T},
        {"supported_profiles": None},
        {"supported_profiles": [1]},
        {"supported_profiles": [None]},
        {"supported_profiles": {}},
        {"required_profile": None},
        {"required_profile": []},
        {"required_tree_policy": None},
        {"required_tree_policy": 1},
        {"incarnation": None},
        {"incarnation": ""},
        {"incarnation": 1},
    ],
)
def test_a_malformed_connect_can_be_corrected(change: dict[str, Any]) -> None:
    """Missing and wrong-typed fields are `bad_request`, and the next `connect` may succeed."""
    peer = Peer()
    assert is_bad_request(peer.connect(**change))
    assert peer.session.claims is None
    assert isinstance(peer.connect()[0], Connected)


@pytest.mark.parametrize("last", [ABSENT, 0, 7, 7.0, 10**30])
def test_the_clients_position_is_only_information(last: object) -> None:
    """Any integer of at least 0 will do, and none at all too (sync D12)."""
    assert isinstance(Peer().connect(last_committed_id=last)[0], Connected)


def test_a_client_may_name_the_history_it_follows() -> None:
    """Any text: one that is unknown is answered by `connected`, not refused."""
    for named in ("1f", "never heard of"):
        [action] = Peer().connect(incarnation=named)
        assert isinstance(action, Connected)
        assert action.incarnation == named
    [action] = Peer().connect()
    assert isinstance(action, Connected)
    assert action.incarnation is None


def test_shape_comes_before_authentication_and_that_before_the_profile() -> None:
    """A bad token with a bad profile is `auth_failed`; with a bad shape it is `bad_request`."""
    assert is_bad_request(Peer().connect(token="no", supported_profiles=1))
    peer = Peer()
    assert problem(peer.connect(token="no", supported_profiles=["x"]))[::2] == ("auth_failed", 4401)
    assert peer.session.closed
    assert peer.connect() == []
    assert problem(Peer().connect(supported_profiles=["x"]))[::2] == ("profile_unsupported", 4407)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"client_id": "d"}, "token"),
        ({"token": token(client_id="d")}, "token"),
        ({"token": "x.y.z"}, "refused"),
        ({"token": token(exp=1)}, "refused"),
        ({"token": token(exp=None)}, "refused"),
    ],
)
def test_who_is_not_who_it_says_is_closed(change: dict[str, Any], text: str) -> None:
    """Bad token, expired token and another's `client_id`: `auth_failed`, close, no token quoted."""
    peer = Peer()
    code, details, closed = problem(peer.connect(**change))
    assert (code, closed) == ("auth_failed", 4401)
    assert text in details["message"]
    assert str(change.get("token", "?")) not in details["message"]


def test_capabilities_follow_the_profile() -> None:
    """Each profile announces its own types; only the tree profile has a policy."""
    [action] = Peer().connect(supported_profiles=[T])
    assert action == Connected(
        {
            "profile": T,
            "accepted_event_types": list(TREE_ACTIONS),
            "tree_policy": "strict",
            "snapshots": True,
        }
    )
    [action] = Peer().connect(supported_profiles=[E])
    assert action == Connected({"profile": E, "accepted_event_types": ["event"]})


SERVERS = {"T+E": [T, E], "T": [T], "E": [E]}
OTHER = "other"
NEVER = ("x", "x", "x")
TRUTH: list[tuple[list[Any], list[Any], tuple[str, str, str]]] = [
    ([ABSENT, [T]], [ABSENT], (T, T, "x")),
    ([ABSENT, [T]], [T], (T, T, "x")),
    ([ABSENT, [T]], [E], NEVER),
    ([[E]], [ABSENT], (E, "x", E)),
    ([[E]], [T], NEVER),
    ([[E]], [E], (E, "x", E)),
    ([[T, E]], [ABSENT], (T, T, E)),
    ([[E, T]], [ABSENT], (E, T, E)),
    ([[T, E], [E, T]], [T], (T, T, "x")),
    ([[T, E], [E, T]], [E], (E, "x", E)),
    ([[], [OTHER]], [ABSENT, T, E, OTHER], NEVER),
    ([ABSENT, [T], [E], [T, E], [E, T], [OTHER, T]], [OTHER], NEVER),
    ([[OTHER, T, E]], [ABSENT], (T, T, E)),
    ([[OTHER, E, T]], [ABSENT], (E, T, E)),
]
ROWS = [
    (supported, required, column, results[column])
    for supports, requireds, results in TRUTH
    for supported in supports
    for required in requireds
    for column in range(3)
]


@pytest.mark.parametrize("policy", [ABSENT, "strict", "loose", ""])
def test_the_profile_is_that_of_the_truth_table(policy: Any) -> None:
    """Every row of sync 4.1 on every server; a policy but `strict` refuses a tree profile."""
    for supported, required, column, result in ROWS:
        offered = list(SERVERS.values())[column]
        peer = Peer(profiles=offered)
        actions = peer.connect(
            supported_profiles=supported, required_profile=required, required_tree_policy=policy
        )
        expected = "x" if result == T and policy not in (ABSENT, "strict") else result
        row = (supported, required, offered, policy)
        if expected == "x":
            code, details, closed = problem(actions)
            assert (code, closed) == ("profile_unsupported", 4407), row
            assert details["supported_profiles"] == offered
            assert peer.session.claims is None
        else:
            [action] = actions
            assert isinstance(action, Connected), row
            assert action.capabilities["profile"] == expected, row


# Sync 5: identity over time.


def test_the_token_ends_the_connection_to_the_moment() -> None:
    """One instant before `exp` nothing happens; at `exp` the timer closes even an idle peer."""
    peer = active(heartbeat_timeout_ms=86_400_000)
    peer.unix = EXPIRES_AT - 0.001
    assert peer.due() == []
    peer.unix = EXPIRES_AT
    assert problem(peer.due())[::2] == ("auth_failed", 4401)
    assert peer.due() == []


@pytest.mark.parametrize("kind", ["heartbeat", "sync", "submit_events", "disconnect"])
def test_a_message_at_the_end_of_the_token_is_not_processed(kind: str) -> None:
    """Also when the timer has not fired yet (sync D16)."""
    peer = active()
    peer.unix = EXPIRES_AT - 0.001
    assert peer.send("heartbeat") == [Send("heartbeat_ack", b"{}")]
    peer.unix = EXPIRES_AT
    assert problem(peer.send(kind))[::2] == ("auth_failed", 4401)


def test_a_waiting_message_is_judged_when_its_turn_comes() -> None:
    """A submit that was received in time and begun too late is not processed."""
    peer = active()
    peer.send("submit_events", {"events": [item("a")]})
    assert peer.send("submit_events", {"events": [item("b")]}) == []
    peer.unix = EXPIRES_AT
    assert problem(peer.done())[::2] == ("auth_failed", 4401)


@pytest.mark.parametrize("kind", ["heartbeat", "sync", "submit_events", "disconnect"])
def test_an_asserted_identity_must_be_the_authenticated_one(kind: str) -> None:
    """An equal `client_id` is fine on any message, another one ends the connection."""
    for name in ("d", "", "C", 5, None, ["c"]):
        message = envelope(kind, {"client_id": name})
        code, _, closed = problem(active().frame(json.dumps(message).encode()))
        assert (code, closed) == ("auth_failed", 4401), name
    assert active().send("heartbeat", {"client_id": "c"}) == [Send("heartbeat_ack", b"{}")]


def test_an_identity_inside_an_item_counts_like_the_payloads() -> None:
    """Equal is fine; one different item ends everything before any item is processed (sync D17)."""
    peer = active()
    events = [item("a", client_id="c"), item("b")]
    assert isinstance(peer.send("submit_events", {"events": events})[0], Submit)
    for stranger in ("d", 5):
        events = [item("a"), item("b", client_id=stranger)]
        code, _, closed = problem(active().send("submit_events", {"events": events}))
        assert (code, closed) == ("auth_failed", 4401)
    malformed = [{"client_id": "d"}, "nonsense"]
    assert problem(active().send("submit_events", {"events": malformed}))[0] == "auth_failed"


# Sync 6: the heartbeat.


def test_silence_closes_without_an_error() -> None:
    """At the timeout, not before, in both states: close 4408 and no message."""
    for peer in (Peer(), active()):
        peer.now = 29.999
        assert peer.due() == []
        peer.now = 30.0
        assert peer.due() == [Close(4408)]
        assert peer.send("heartbeat") == []


def test_only_heartbeats_and_the_handshake_restart_the_timer() -> None:
    """Submits, syncs and refused messages do not count as life (sync D20)."""
    peer = Peer(heartbeat_timeout_ms=1000)
    peer.now = 0.9
    assert is_bad_request(peer.connect(client_id=""))
    peer.now = 0.95
    peer.connect(supported_profiles=[E])
    peer.done()
    peer.now = 1.9
    assert peer.due() == []
    assert peer.send("heartbeat") == [Send("heartbeat_ack", b"{}")]
    peer.now = 2.8
    assert peer.due() == []
    peer.send("submit_events", {"events": [item()]})
    peer.done()
    peer.send("sync", {"partitions": ["p"], "since_committed_id": 0})
    peer.done()
    peer.send("connect")
    peer.send("nonsense")
    peer.now = 2.9
    assert peer.due() == [Close(4408)]


def test_a_refused_connect_is_no_sign_of_life() -> None:
    """A malformed `connect` does not keep an anonymous connection open."""
    peer = Peer(heartbeat_timeout_ms=1000)
    peer.now = 0.99
    assert is_bad_request(peer.connect(token=5))
    peer.now = 1.0
    assert peer.due() == [Close(4408)]


# Sync 7 and 8: submits.


def submit(peer: Peer, *items: Any) -> list[Action]:
    """Submit these items."""
    return peer.send("submit_events", {"events": list(items)})


@pytest.mark.parametrize(
    "events",
    [
        ABSENT,
        None,
        [],
        {},
        "x",
        [1],
        [None],
        [[]],
        [item(id=ABSENT)],
        [item("")],
        [item("x" * 129)],
        [item("\u00e9" * 65)],
        [{**item(), "id": 5}],
        [{**item(), "id": None}],
        [item("a"), item("b"), item("a")],
        [item(partitions=None)],
        [item(partitions="p")],
        [item(partitions={})],
        [item(partitions=["p", 1])],
        [item(partitions=[None])],
        [item(partitions=None, partition="p")],
        [item(partition="q")],
        [item(partitions=["p", "p2"], partition="p")],
        [item(partition=1)],
        [item(event=None)],
        [item(event=[])],
        [item(event={"payload": {}})],
        [item(event={"type": 1, "payload": {}})],
        [item(event={"type": "event"})],
        [item(event={"type": "event", "payload": []})],
        [item(event={"type": "event", "payload": None})],
        [item("fine"), item(event={})],
        [item(str(number)) for number in range(101)],
    ],
    ids=lambda events: json.dumps(events, default=lambda _: "absent")[:50],
)
def test_a_request_that_is_no_request_is_refused_as_a_whole(events: Any) -> None:
    """Missing fields and wrong types of sync 8.1 are `bad_request` (sync D22, D24)."""
    if events is not ABSENT and events and isinstance(events, list) and isinstance(events[0], dict):
        events = [{k: v for k, v in each.items() if v is not ABSENT} for each in events]
    payload = {} if events is ABSENT else {"events": events}
    peer = active()
    assert is_bad_request(peer.send("submit_events", payload))
    assert isinstance(submit(peer, item())[0], Submit), "nothing of it is left behind"


@pytest.mark.parametrize(
    "fine",
    [
        item("x" * 128),
        item("\u00e9" * 64),
        item("\0"),
        item("\U0001f600"),
        item(partition="p"),
        item(partitions=["pe\u0301", "p\u00e9"], partition="p\u00e9"),
        item(partitions=["p", "p"], partition="p"),
    ],
)
def test_a_request_at_its_bounds_is_taken(fine: dict[str, Any]) -> None:
    """Ids up to 128 bytes of any character, and a legacy partition that says the same."""
    [action] = submit(active(), fine)
    assert isinstance(action, Submit)
    assert action.items[0].refused is None


def test_a_full_batch_is_taken() -> None:
    """Exactly `max_batch_size` items."""
    [action] = submit(active(max_batch_size=7), *(item(str(n)) for n in range(7)))
    assert isinstance(action, Submit)
    assert [each.id for each in action.items] == [str(n) for n in range(7)]


def refusal(*items: dict[str, Any], peer: Peer | None = None) -> list[Any]:
    """Of each item the reason and the fields it was refused for before its id is looked at."""
    [action] = submit(peer or active(), *items)
    assert isinstance(action, Submit)
    return [
        each.refused and (each.refused[0], [fault.field for fault in each.refused[1]])
        for each in action.items
    ]


def test_a_right_type_with_a_bad_value_fails_its_item_alone() -> None:
    """Partitions, numbers and rights are judged by item; neighbours go on (sync D24, D26)."""
    big = {"type": "event", "payload": {"schema": "s", "data": {"a": [1, 2**53]}}}
    found = refusal(
        item("0", partitions=[]),
        item("1", partitions=["p", ""]),
        item("2", partitions=["p" * 129, "p", "", "\u00e9" * 65]),
        item("3", partitions=["q", "p", "r"]),
        item("4", event=big),
        item("5"),
        item("6", partitions=["", "q"], event=big),
        item("7", partitions=["q"], event=big),
    )
    assert found == [
        ("validation_failed", ["partitions"]),
        ("validation_failed", ["partitions.1"]),
        ("validation_failed", ["partitions.0", "partitions.2", "partitions.3"]),
        ("forbidden", ["partitions.0", "partitions.2"]),
        ("validation_failed", ["event.payload.data.a.1"]),
        None,
        ("validation_failed", ["partitions.0"]),
        ("forbidden", ["partitions.0"]),
    ]


def test_partitions_are_counted_after_normalization() -> None:
    """Seventy entries of three names are fine, 65 names are not, 64 are (sync D21)."""
    assert refusal(
        item("0", partitions=[f"p{n % 3}" for n in range(70)]),
        item("1", partitions=[f"p{n}" for n in range(65)]),
        item("2", partitions=[f"p{n}" for n in range(64)]),
    ) == [None, ("validation_failed", ["partitions"]), None]


def test_partitions_have_one_form() -> None:
    """NFC, no duplicates, ascending by UTF-8 bytes; nothing trimmed or folded."""
    names = ["p\U00010000", "p\uffee", "pe\u0301", "p\u00e9", "P", "p ", "p"]
    peer = Peer()
    everything = token(allowed_partition_prefixes=[""])
    peer.connect(token=everything, supported_profiles=[E])
    peer.done()
    [action] = submit(peer, item(partitions=names))
    assert isinstance(action, Submit)
    expected = ("P", "p", "p ", "p\u00e9", "p\uffee", "p\U00010000")
    assert action.items[0].partitions == expected


def test_the_longest_name_is_measured_after_normalization() -> None:
    """129 bytes that normalize to 128 are fine: size is that of the NFC form."""
    decomposed = "p" + "e\u0301" * 63 + "x"
    assert len(decomposed.encode()) > 128
    assert refusal(item(partitions=[decomposed])) == [None]


def test_each_profile_takes_its_own_types_only() -> None:
    """The other profile's types, `init` and nonsense fail at `event.type`."""
    push = {"type": "treePush", "payload": {"target": "t", "value": {"id": "n"}}}
    plain = {"type": "event", "payload": {"schema": "s", "data": 1}}
    init = {"type": "init", "payload": {}}
    for peer, good, bad in ((active(), plain, push), (tree(), push, plain)):
        [action] = submit(peer, item("a", event=good), item("b", event=bad), item("c", event=init))
        assert isinstance(action, Submit)
        fields = [[fault.field for fault in each.invalid] for each in action.items]
        assert fields == [[], ["event.type"], ["event.type"]]


# Sync 10: sync.


def sync(peer: Peer, *partitions: Any, since: Any = 0, **fields: Any) -> list[Action]:
    """Ask for a page."""
    payload = {"partitions": list(partitions), "since_committed_id": since, **fields}
    return peer.send("sync", {k: v for k, v in payload.items() if v is not ABSENT})


def page(peer: Peer, *partitions: Any, **fields: Any) -> Sync:
    """Ask for a page and get it."""
    [action] = sync(peer, *partitions, **fields)
    assert isinstance(action, Sync)
    peer.done()
    return action


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"partitions": ["p"]},
        {"since_committed_id": 0},
        {"partitions": [], "since_committed_id": 0},
        {"partitions": "p", "since_committed_id": 0},
        {"partitions": [1], "since_committed_id": 0},
        {"partitions": [""], "since_committed_id": 0},
        {"partitions": ["p" * 129], "since_committed_id": 0},
        {"partitions": None, "since_committed_id": 0},
        {"partitions": ["p"], "since_committed_id": -1},
        {"partitions": ["p"], "since_committed_id": 0.5},
        {"partitions": ["p"], "since_committed_id": True},
        {"partitions": ["p"], "since_committed_id": "0"},
        {"partitions": ["p"], "since_committed_id": None},
        {"partitions": ["p"], "since_committed_id": 0, "limit": "5"},
        {"partitions": ["p"], "since_committed_id": 0, "limit": 5.5},
        {"partitions": ["p"], "since_committed_id": 0, "limit": True},
        {"partitions": ["p"], "since_committed_id": 0, "limit": None},
        {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": None},
        {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": "p"},
        {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": [1]},
        {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": [""]},
        {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": ["p" * 129]},
    ],
)
def test_a_malformed_sync_is_refused(payload: dict[str, Any]) -> None:
    """Required fields, types and names; nothing is submitted: all is `bad_request` (sync D23)."""
    assert is_bad_request(active().frame(json.dumps(envelope("sync", payload)).encode()))


@pytest.mark.parametrize(
    ("wish", "limit"),
    [
        (ABSENT, 500),
        (-(10**30), 50),
        (-1, 50),
        (0, 50),
        (2, 50),
        (49, 50),
        (50, 50),
        (51, 51),
        (60.0, 60),
        (1000, 1000),
        (1001, 1000),
        (10**30, 1000),
    ],
)
def test_the_page_size_is_clamped(wish: Any, limit: int) -> None:
    """Below and above the bounds counts as the bound; without a wish it is 500 (sync D44)."""
    assert page(active(), "p", limit=wish).limit == limit


@pytest.mark.parametrize(
    ("wish", "most"), [(-1, 0), (0, 0), (7.0, 7), (2**20, 2**20), (2**20 + 1, 2**20)]
)
def test_the_bytes_of_a_page_are_clamped(wish: Any, most: int) -> None:
    """A mebibyte is the most, and what one gets without a wish (sync D66)."""
    assert page(active(), "p", max_bytes=wish).max_bytes == most
    assert page(active(), "p").max_bytes == 2**20


def test_a_deployment_may_set_its_own_bounds() -> None:
    """Both bounds come from the settings, for the default wish too."""
    peer = active(sync_limit_min=2, sync_limit_max=7)
    assert [page(peer, "p", limit=n).limit for n in (1, 2, 5, 9)] == [2, 2, 5, 7]
    assert page(peer, "p").limit == 7


def test_a_sync_names_its_partitions_in_their_one_form() -> None:
    """Sets are normalized; more than 64 names are fine; [] unsubscribes, absent leaves alone."""
    action = page(active(), "pe\u0301", "p", "p\u00e9", subscription_partitions=["p", "p"])
    assert action.partitions == ("p", "p\u00e9")
    assert action.subscriptions == ("p",)
    assert page(active(), "p", subscription_partitions=[]).subscriptions == ()
    assert page(active(), "p").subscriptions is None
    assert len(page(active(), *(f"p{n}" for n in range(100))).partitions) == 100
    assert page(active(), "p", since=7.0).since == 7


def test_all_names_of_a_sync_are_authorized() -> None:
    """Also those only subscribed to; the error lists the denied ones, sorted, and stays open."""
    peer = active()
    code, details, closed = problem(
        sync(peer, "z", "p", "e\u0301", subscription_partitions=["p", "b", "\u00e9"])
    )
    assert (code, closed) == ("forbidden", None)
    assert details["partitions"] == ["b", "z", "\u00e9"]
    assert problem(sync(active(), "p", subscription_partitions=["q"]))[0] == "forbidden"
    assert is_bad_request(sync(active(), "q", since=-1)), "the shape comes first"


def test_a_request_continues_the_cycle_it_follows() -> None:
    """Same set in any spelling and the returned position: the watermark stays (sync D37)."""
    peer = active()
    first = page(peer, "p", "p\u00e9")
    assert first.watermark is None
    peer.session.paged(first, 50, 200, has_more=True)
    second = page(peer, "pe\u0301", "p", "p", since=50, limit=60, subscription_partitions=["p"])
    assert (second.watermark, second.since, second.limit) == (200, 50, 60)
    assert second.subscriptions == ("p",)
    peer.session.paged(second, 120, 200, has_more=True)
    assert page(peer, "p", "p\u00e9", since=120.0).watermark == 200


def test_anything_else_opens_a_new_cycle() -> None:
    """Another position, another set, or nothing more to come: a fresh watermark."""

    def after(*, has_more: bool = True) -> Peer:
        peer = active()
        peer.session.paged(page(peer, "p", "p2"), 50, 200, has_more=has_more)
        return peer

    assert page(after(), "p", "p2", since=50).watermark == 200
    assert page(after(), "p", "p2", since=49).watermark is None
    assert page(after(), "p", "p2", since=51).watermark is None
    assert page(after(), "p", "p2").watermark is None
    assert page(after(), "p", since=50).watermark is None
    assert page(after(), "p", "p2", "p3", since=50).watermark is None
    assert page(after(has_more=False), "p", "p2", since=50).watermark is None


def test_a_new_cycle_ends_the_old_one() -> None:
    """The position of a cycle that was left for another continues nothing."""
    peer = active()
    peer.session.paged(page(peer, "p"), 50, 200, has_more=True)
    peer.session.paged(page(peer, "p2"), 70, 300, has_more=True)
    assert page(peer, "p", since=50).watermark is None


def test_a_failed_sync_leaves_the_cycle_open() -> None:
    """`bad_request`, `forbidden` and other messages in between change nothing (sync D42)."""
    peer = active()
    peer.session.paged(page(peer, "p"), 50, 200, has_more=True)
    assert is_bad_request(sync(peer, "p", since="x"))
    assert problem(sync(peer, "q", since=50))[0] == "forbidden"
    assert isinstance(submit(peer, item())[0], Submit)
    peer.done()
    peer.send("heartbeat")
    assert page(peer, "p", since=50).watermark == 200


# Sync 15: limits over time.


def test_a_connection_has_so_many_messages_in_a_second() -> None:
    """Beyond them each is answered `rate_limited` and dropped; the next second is a new one."""
    peer = active(max_messages_per_second=5)
    peer.now = 10.0
    for _ in range(5):
        assert peer.send("heartbeat") == [Send("heartbeat_ack", b"{}")]
    peer.now = 10.99
    for _ in range(3):
        code, details, closed = problem(peer.send("heartbeat"))
        assert (code, closed) == ("rate_limited", None)
        assert details["retry_after_ms"] > 0
    peer.now = 11.0
    for _ in range(5):
        assert peer.send("heartbeat") == [Send("heartbeat_ack", b"{}")]
    assert problem(peer.send("heartbeat"))[0] == "rate_limited"


def test_a_dropped_message_has_no_effect() -> None:
    """Not even a version error closes, and a heartbeat keeps nothing alive."""
    peer = active(max_messages_per_second=1, heartbeat_timeout_ms=1000)
    peer.now = 0.5
    assert problem(peer.send("heartbeat", protocol_version="9.9"))[::2] == ("rate_limited", None)
    assert problem(peer.send("heartbeat"))[0] == "rate_limited"
    peer.now = 1.0
    assert peer.due() == [Close(4408)]


def test_refusals_for_speed_keep_their_place() -> None:
    """A message dropped while another is worked on is answered after it (sync D9)."""
    peer = active(max_messages_per_second=3)
    peer.now = 5.0
    submit(peer, item("a"))
    assert submit(peer, item("b")) == []
    assert peer.send("heartbeat") == []
    assert peer.send("heartbeat") == []
    assert isinstance(peer.done()[0], Submit)
    [ack, dropped] = peer.done()
    assert ack == Send("heartbeat_ack", b"{}")
    assert problem([dropped])[0] == "rate_limited"


def test_drafts_in_flight_are_counted_on_arrival() -> None:
    """What exceeds the limit on arrival is refused in its turn, not what came before (sync D56)."""
    peer = active(max_in_flight_drafts=4, max_batch_size=4)
    assert isinstance(submit(peer, item("a"), item("b"))[0], Submit)
    assert submit(peer, item("c"), item("d")) == []
    assert submit(peer, item("e")) == []
    assert submit(peer, item("f")) == []
    [second] = peer.done()
    assert isinstance(second, Submit)
    assert [each.id for each in second.items] == ["c", "d"]
    refused = peer.done()
    assert [problem([action])[::2] for action in refused] == [("rate_limited", None)] * 2
    assert problem(refused[:1])[1]["retry_after_ms"] > 0
    assert isinstance(submit(peer, *(item(str(n)) for n in range(4)))[0], Submit)


def test_a_request_over_the_limit_by_itself_is_refused() -> None:
    """Nothing else needs to be in flight, and nothing of it stays counted."""
    peer = active(max_in_flight_drafts=2)
    for _ in range(3):
        assert problem(submit(peer, *(item(str(n)) for n in range(3))))[0] == "rate_limited"
    assert isinstance(submit(peer, item("a"), item("b"))[0], Submit)


def test_an_escaped_type_does_not_hide_its_drafts() -> None:
    r"""A submit whose type is written with `\u` escapes counts like any other (sync D56)."""
    peer = active(max_in_flight_drafts=2)
    message = json.dumps(envelope("submit_events", {"events": [item(str(n)) for n in range(3)]}))
    hidden = message.replace("submit_events", "submit\\u005fevents")
    assert problem(peer.frame(hidden.encode()))[0] == "rate_limited"


def test_refused_requests_leave_nothing_in_flight() -> None:
    """Malformed, dropped and answered requests all free what they counted."""
    peer = active(max_in_flight_drafts=2, max_messages_per_second=4)
    for second in range(10):
        peer.now = float(10 + second * 2)
        assert is_bad_request(submit(peer, item("a"), item("a")))
        assert is_bad_request(submit(peer, item("a"), {**item("b"), "id": 1}))
        assert isinstance(submit(peer, item("a"), item("b"))[0], Submit)
        assert submit(peer, {"id": 1}) == []
        assert submit(peer, item("d"), item("e")) == []
        assert [problem([action])[0] for action in peer.done()] == ["bad_request", "rate_limited"]


@pytest.mark.parametrize(("given", "expected"), [({}, False), ({"stop_at_rejection": True}, True)])
def test_a_submit_may_stop_at_the_first_rejection(given: dict[str, Any], expected: bool) -> None:
    """If it says so, and in no other way than by true or false (sync D68)."""
    peer = active()
    [action] = peer.send("submit_events", {"events": [item()], **given})
    assert isinstance(action, Submit)
    assert action.stops_at_rejection is expected
    peer.done()
    for wrong in (1, None, "true"):
        sent = peer.send("submit_events", {"events": [item()], "stop_at_rejection": wrong})
        assert problem(sent)[0] == "bad_request"
