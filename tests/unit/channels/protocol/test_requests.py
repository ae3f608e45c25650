"""Bodies and queries of the HTTP API: what they become, and what is refused with which words."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.channels.protocol import requests
from tidelog.channels.protocol.extras import compact
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.requests import Change, Mutation, Patch, Publication
from tidelog.channels.protocol.verbs import MutationVerb
from tidelog.channels.settings import Channels

LIMITS = Channels()


def event(**members: Any) -> bytes:
    """A publish that is fine but for what is given; None leaves a member out."""
    whole = {"name": "e", "channel": "c", "data": "d", **members}
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


def published(**members: Any) -> Publication:
    """What that publish becomes."""
    return requests.parse_publication(event(**members), None, LIMITS)


def mutation(action: MutationVerb, body: bytes | dict[str, Any]) -> Mutation:
    """What a mutation of message `s` in `c` becomes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.parse_mutation(action, "c", "s", text)


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> Fault:
    """The fault a call raises."""
    with pytest.raises(Fault) as caught:
        call(*arguments, **named)
    return caught.value


def coded(refused: Fault) -> tuple[int, str]:
    """Status and code."""
    return refused.status, refused.code


# Publishing


def test_a_plain_publish() -> None:
    """The least a publish can say."""
    assert published() == Publication(name="e", data=b'"d"', data_bytes=1, channels=("c",))


@pytest.mark.parametrize(
    ("data", "delivered"),
    [
        (b'"text"', "text"),
        (b'"\\u00e9\\n"', "é\n"),
        (b'{"a": [1, 2 ] ,"b":" x "}', '{"a":[1,2],"b":" x "}'),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"1.50", "1.50"),
        (b'{"n": 1E2, "s": "\\u0041 \\" "}', '{"n":1E2,"s":"\\u0041 \\" "}'),
        (b"null", "null"),
        (b"false", "false"),
    ],
)
def test_data_is_delivered_as_a_string(data: bytes, delivered: str) -> None:
    """Strings as they are, other values as compact JSON whose numbers keep their spelling."""
    body = b'{"name":"e","channel":"c","data":%b}' % data
    publication = requests.parse_publication(body, None, LIMITS)
    assert json.loads(publication.data) == delivered
    assert publication.data_bytes == len(delivered.encode())


def test_missing_data_is_the_string_null() -> None:
    """Absent data arrives as `"null"`."""
    assert published(data=None).data == b'"null"'


def test_channels_are_taken_once_each_and_win_over_channel() -> None:
    """`channels` names the targets; a repeated one is one target."""
    assert published(channels=["b", "a", "b"]).channels == ("b", "a")


def test_everything_optional_of_a_publish() -> None:
    """Every optional member reaches the publication."""
    publication = published(
        socket_id="1.2",
        info="subscription_count, user_count,",
        idempotency_key="k",
        message_id="m",
        tags={"a": "b"},
        delta=True,
        extras={
            "headers": {"h": 1.5, "t": "x", "b": True},
            "ephemeral": True,
            "idempotency_key": "x",
            "ai": {"transport": {"status": "streaming", "id": "7"}},
            "own": {"deep": [1]},
        },
    )
    assert publication.socket_id == "1.2"
    assert publication.info == {"subscription_count", "user_count"}
    assert (publication.idempotency_key, publication.message_id) == ("k", "m")
    assert publication.tags == b'{"a":"b"}'
    assert (publication.extras_key, publication.is_ephemeral) == ("x", True)
    assert publication.transport_status == "streaming"
    extras = json.loads(publication.extras or b"")
    assert extras["own"] == {"deep": [1]}
    assert "idempotency_key" not in extras


def test_both_spellings_of_the_key_in_extras() -> None:
    """`idempotencyKey` and the Python SDK's `idempotency_key` mean the same."""
    for spelling in ("idempotencyKey", "idempotency_key"):
        publication = published(extras={spelling: "k"})
        assert (publication.extras_key, publication.extras) == ("k", b"{}")


def test_numbers_in_extras_keep_their_spelling() -> None:
    """Extras are stored as they came, white space between tokens apart."""
    body = b'{"name":"e","channel":"c","extras":{ "own" : 1.10 , "big":123456789012345678901 }}'
    publication = requests.parse_publication(body, None, LIMITS)
    assert publication.extras == b'{"own":1.10,"big":123456789012345678901}'


def test_the_key_of_the_body_wins_over_the_header() -> None:
    """The header's key counts only if the body has none."""
    assert requests.parse_publication(event(), "h", LIMITS).idempotency_key == "h"
    both = requests.parse_publication(event(idempotency_key="b"), "h", LIMITS)
    assert both.idempotency_key == "b"


@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({"name": None}, 400, "invalid_input"),
        ({"name": ""}, 400, "invalid_input"),
        ({"name": 5}, 400, "invalid_input"),
        ({"name": "x" * 201}, 400, "limit_exceeded"),
        ({"name": "é" * 101}, 400, "limit_exceeded"),
        ({"channel": None}, 400, "missing_channel_info"),
        ({"channel": None, "channels": []}, 400, "missing_channel_info"),
        ({"channels": []}, 400, "missing_channel_info"),
        ({"channels": [f"c{n}" for n in range(101)]}, 400, "limit_exceeded"),
        ({"channel": "a b"}, 400, "invalid_input"),
        ({"channel": "x" * 201}, 400, "invalid_input"),
        ({"channels": ["ok", "not/ok"]}, 400, "invalid_input"),
        ({"data": "x" * 102_401}, 413, "payload_too_large"),
        ({"data": {"x": "y" * 102_400}}, 413, "payload_too_large"),
        ({"socket_id": "x"}, 400, "invalid_input"),
        ({"info": ["subscription_count"]}, 400, "invalid_input"),
        ({"idempotency_key": ""}, 400, "invalid_input"),
        ({"idempotency_key": "x" * 129}, 400, "invalid_input"),
        ({"message_id": ""}, 400, "invalid_input"),
        ({"message_id": "é" * 65}, 400, "invalid_input"),
        ({"tags": {"a": 1}}, 400, "invalid_input"),
        ({"extras": []}, 400, "invalid_input"),
        ({"extras": {"headers": {"a": {}}}}, 400, "invalid_input"),
        ({"extras": {"headers": {"a": None}}}, 400, "invalid_input"),
        ({"extras": {"headers": []}}, 400, "invalid_input"),
        ({"extras": {"ephemeral": "yes"}}, 400, "invalid_input"),
        ({"extras": {"echo": 1}}, 400, "invalid_input"),
        ({"extras": {"idempotencyKey": ""}}, 400, "invalid_input"),
        ({"extras": {"ai": []}}, 400, "invalid_input"),
        ({"extras": {"ai": {"codec": {"a": 1}}}}, 400, "invalid_input"),
        ({"extras": {"ai": {"transport": {"a": {}}}}}, 400, "invalid_input"),
    ],
)
def test_a_publish_that_is_refused(members: dict[str, Any], status: int, code: str) -> None:
    """Each fault of a publish has the status and code of its class."""
    assert coded(refusal(published, **members)) == (status, code)


def test_an_unknown_transport_status_has_its_own_code() -> None:
    """Only streaming, complete and cancelled can be published."""
    refused = refusal(published, extras={"ai": {"transport": {"status": "paused"}}})
    assert coded(refused) == (400, "ai_invalid_transport_header")
    assert refused.ai_code == 104000


def test_exactly_at_the_limits() -> None:
    """The limits themselves are allowed."""
    publication = published(
        name="x" * 200, channels=[f"{n:0200}" for n in range(100)], data="y" * 102_400
    )
    assert len(publication.channels) == 100
    assert published(message_id="x" * 128, idempotency_key="x" * 128).message_id == "x" * 128


def test_when_the_answer_is_detailed() -> None:
    """`info`, a `message_id` or an `ai-` name make the answer tell serials."""
    assert not published().is_answered_in_detail
    assert published(info="x").is_answered_in_detail
    assert published(message_id="m").is_answered_in_detail
    assert published(name="ai-text").is_answered_in_detail


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"name":"e","name":"f","channel":"c"}',
        b'{"name":"e","channel":"c","data":{"a":1,"a":2}}',
        b'{"name":"e","channel":"c","unknown":{"a":1,"a":2}}',
        b'{"name":"e","channel":"c","data":NaN}',
        b'{"name":"e","channel":"c","data":"\\ud800"}',
        b'{"name":"e","channel":"c","data":"\xff"}',
        b'{"name":"e","channel":"c","data":1e999}',
        b'{"name":"e","channel":"c","data":' + b"[" * 65 + b"]" * 65 + b"}",
        b"\xef\xbb\xbf" + event(),
        event() + b"x",
    ],
)
def test_json_with_more_than_one_meaning_is_refused(body: bytes) -> None:
    """What readers could take differently is 400, wherever in the body it stands."""
    assert coded(refusal(requests.parse_publication, body, None, LIMITS)) == (400, "invalid_input")
    assert coded(refusal(requests.parse_mutation, "append", "c", "s", body))[0] == 400


def test_a_batch_keeps_its_order_and_its_keys() -> None:
    """Items are parsed in order, each with its own key."""
    body = b'{"batch":[%b,%b]}' % (event(name="a", idempotency_key="k"), event(name="b"))
    first, second = requests.parse_batch(body, LIMITS)
    assert (first.name, first.idempotency_key) == ("a", "k")
    assert (second.name, second.idempotency_key) == ("b", None)


def test_a_batch_names_the_item_to_blame() -> None:
    """A refused item is named by its index."""
    body = b'{"batch":[%b,%b]}' % (event(), event(channel=None))
    refused = refusal(requests.parse_batch, body, LIMITS)
    assert (refused.code, refused.index) == ("missing_channel_info", 1)


def test_a_batch_of_eleven_is_refused() -> None:
    """Ten events are the most of a batch."""
    body = b'{"batch":[%b]}' % b",".join([event()] * 11)
    refused = refusal(requests.parse_batch, body, LIMITS)
    assert (coded(refused), refused.index) == ((400, "limit_exceeded"), None)


# Mutations


def test_an_append() -> None:
    """An append carries its fragment as a JSON string and its size in bytes."""
    assert mutation("append", {"data": "é"}) == Mutation(
        verb="append",
        channel="c",
        message_serial="s",
        patch=Patch(data='"é"'.encode()),
        data_bytes=2,
    )


@pytest.mark.parametrize(
    "body",
    [{}, {"data": None}, {"data": 5}, {"data": {"a": 1}}, {"data": ["x"]}, {"data": True}],
)
def test_an_append_needs_a_string(body: dict[str, Any]) -> None:
    """Missing or non-string data is 400."""
    refused = refusal(mutation, "append", body)
    assert str(refused) == "append request data must be a string"


def test_an_empty_append_is_refused_unless_it_ends_a_stream() -> None:
    """Only the append that says complete or cancelled may be empty (channels D16)."""
    assert str(refusal(mutation, "append", {"data": ""})) == "append request data must not be empty"
    for part in ("transport", "codec"):
        for status in ("complete", "cancelled"):
            ending = mutation("append", {"data": "", "extras": {"ai": {part: {"status": status}}}})
            assert ending.ends_stream
    streaming = {"data": "", "extras": {"ai": {"transport": {"status": "streaming"}}}}
    assert str(refusal(mutation, "append", streaming)) == "append request data must not be empty"


def test_the_three_states_of_a_field() -> None:
    """Absent and null keep, a value replaces (also an empty one), clear_fields clears."""
    kept = mutation("update", {"name": None, "data": None, "description": "why"})
    assert kept.patch == Patch()
    replaced = mutation("update", {"name": "", "data": "", "extras": {}})
    assert replaced.patch == Patch("", b'""', b"{}")
    cleared = mutation("update", {"clear_fields": ["data", "name", "extras"]})
    assert cleared.patch == Patch(Change.CLEAR, Change.CLEAR, Change.CLEAR)
    mixed = mutation("delete", {"clear_fields": ["name"], "data": 0})
    assert mixed.patch == Patch(name=Change.CLEAR, data=b"0")


def test_replaced_data_keeps_its_spelling() -> None:
    """JSON data of an update is compacted text: no number passes through a double."""
    given = mutation("update", b'{"data": {"a" : 1.10, "b": 12345678901234567890123 } }')
    assert given.patch.data == b'{"a":1.10,"b":12345678901234567890123}'
    assert given.data_bytes == len(given.patch.data)


def test_everything_optional_of_a_mutation() -> None:
    """Actor, attribution, description, metadata and operation id reach the mutation."""
    given = mutation(
        "delete",
        b'{"client_id":"ana","socket_id":"1.2","description":"d","metadata":[1.0, 2],"op_id":"o"}',
    )
    assert (given.client_id, given.socket_id, given.description) == ("ana", "1.2", "d")
    assert (given.metadata, given.op_id) == (b"[1.0,2]", "o")


@pytest.mark.parametrize("action", ["update", "delete"])
def test_rules_of_clear_fields(action: MutationVerb) -> None:
    """Unknown, repeated and contradicting members of clear_fields are each refused in words."""
    assert coded(refusal(mutation, action, {"clear_fields": ["serial"]})) == (400, "invalid_input")
    twice = refusal(mutation, action, {"clear_fields": ["data", "data"]})
    assert str(twice) == "clear_fields must not contain duplicates"
    both = refusal(mutation, action, {"data": "x", "clear_fields": ["data"]})
    assert str(both) == f"{action} request cannot both replace and clear the same field"


@pytest.mark.parametrize(
    "body",
    [{}, {"socket_id": "1.2"}, {"clear_fields": []}, {"data": None, "metadata": None}, {"x": 1}],
)
def test_an_update_must_say_something(body: dict[str, Any]) -> None:
    """An update without a patch and without operation metadata is 400."""
    words = "update request must include at least one patch field or operation metadata"
    assert str(refusal(mutation, "update", body)) == words


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"data": False},
        {"extras": {}},
        {"clear_fields": ["name"]},
        {"client_id": "a"},
        {"description": ""},
        {"metadata": 0},
        {"op_id": "o"},
    ],
)
def test_what_suffices_for_an_update(body: dict[str, Any]) -> None:
    """Each patch field and each piece of operation metadata alone makes an update."""
    mutation("update", body)


def test_a_delete_may_be_empty_and_ignores_a_name() -> None:
    """A delete keeps everything by itself; a name in it means nothing (channels D17)."""
    assert mutation("delete", {}).patch == Patch()
    assert mutation("delete", {"name": 5}).patch == Patch()
    assert mutation("delete", {"name": "x", "clear_fields": ["name"]}).patch.name is Change.CLEAR


@pytest.mark.parametrize("op_id", ["", "x" * 65, "é" * 33])
def test_an_op_id_has_1_to_64_bytes(op_id: str) -> None:
    """The length of op_id counts in bytes."""
    refused = refusal(mutation, "append", {"data": "x", "op_id": op_id})
    assert str(refused) == "op_id must be 1..=64 bytes"
    assert mutation("append", {"data": "x", "op_id": "y" * 64}).op_id == "y" * 64


@pytest.mark.parametrize(
    "body",
    [
        {"data": "x", "socket_id": "abc"},
        {"data": "x", "socket_id": 5},
        {"data": "x", "client_id": 5},
        {"data": "x", "description": {}},
        {"data": "x", "op_id": 1},
        {"data": "x", "extras": "x"},
        {"data": "x", "extras": {"ai": {"transport": {"status": 1}}}},
    ],
)
def test_wrongly_typed_members_of_a_mutation(body: dict[str, Any]) -> None:
    """A member of the wrong type or form is 400 invalid_input."""
    assert coded(refusal(mutation, "append", body)) == (400, "invalid_input")


def test_a_mutation_may_set_any_transport_status() -> None:
    """The check of the transport status is one of publishing only."""
    given = mutation("update", {"extras": {"ai": {"transport": {"status": "paused"}}}})
    assert (given.transport_status, given.ends_stream) == ("paused", False)


# Queries and administration


def test_the_versions_query() -> None:
    """Defaults, clamping, both directions and the cursor."""
    assert requests.parse_versions({}, 100) == requests.VersionsQuery(100, "newest_first", None)
    asked = {"limit": "1000", "direction": "oldest_first", "cursor": "s", "auth_key": "k"}
    given = requests.parse_versions(asked, 100)
    assert given == requests.VersionsQuery(100, "oldest_first", "s")
    assert requests.parse_versions({"limit": "9" * 5000}, 100).limit == 100


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.5", "٣"])
def test_a_versions_limit_must_be_positive(limit: str) -> None:
    """Zero and what is no whole number are refused in the contract's words."""
    refused = refusal(requests.parse_versions, {"limit": limit}, 100)
    assert str(refused) == "versions limit must be greater than 0"


@pytest.mark.parametrize(
    "query", [{"direction": "backwards"}, {"cursor": ""}, {"cursor": "a b"}, {"cursor": "x" * 129}]
)
def test_other_faults_of_the_versions_query(query: dict[str, str]) -> None:
    """A direction or a cursor that cannot be one is 400."""
    assert coded(refusal(requests.parse_versions, query, 100)) == (400, "invalid_input")


def test_the_history_query() -> None:
    """The parameters of history are read, and their faults become 400."""
    query = requests.parse_history({"limit": "5", "direction": "forwards"}, 100)
    assert query == HistoryQuery(limit=5, direction="oldest_first")
    refused = refusal(requests.parse_history, {"start_serial": "9", "end_serial": "1"}, 100)
    assert coded(refused) == (400, "invalid_input")


@pytest.mark.parametrize(
    ("serial", "words"),
    [
        ("", "message_serial must not be empty"),
        ("x" * 129, "message_serial must be at most 128 bytes"),
        ("é" * 65, "message_serial must be at most 128 bytes"),
        ("a b", "message_serial must not contain whitespace"),
        ("a\u00a0b", "message_serial must not contain whitespace"),
    ],
)
def test_the_syntax_of_serials(serial: str, words: str) -> None:
    """What cannot be a serial is refused in the contract's words."""
    assert str(refusal(requests.check_serial, "message_serial", serial)) == words
    requests.check_serial("message_serial", "x" * 128)


CONFIRMED = {"confirm_channel": "c", "confirm_operation": "reset", "reason": "r"}
PURGED = {**CONFIRMED, "confirm_operation": "purge", "mode": "all"}


def test_a_confirmed_reset() -> None:
    """A reset names channel, operation and reason."""
    body = json.dumps({**CONFIRMED, "requested_by": "me"}).encode()
    assert requests.parse_reset(body, "c") == requests.HistoryReset("r", "me")


@pytest.mark.parametrize(
    "change",
    [{"confirm_channel": "d"}, {"confirm_operation": "purge"}, {"reason": " "}, {"reason": 5}],
)
def test_an_unconfirmed_reset(change: dict[str, Any]) -> None:
    """Nothing is reset by mistake."""
    body = json.dumps({**CONFIRMED, **change}).encode()
    assert coded(refusal(requests.parse_reset, body, "c")) == (400, "invalid_input")


def test_a_purge_with_its_bound() -> None:
    """Each mode takes exactly its own bound."""
    whole = json.dumps(PURGED).encode()
    assert requests.parse_purge(whole, "c") == requests.HistoryPurge("all", None, "r", None)
    bounded = json.dumps({**PURGED, "mode": "before_serial", "before_serial": 5}).encode()
    assert requests.parse_purge(bounded, "c") == requests.HistoryPurge(
        "before_serial", 5, "r", None
    )


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "some"},
        {"before_serial": 5},
        {"mode": "before_serial"},
        {"mode": "before_serial", "before_time_ms": 5},
        {"mode": "before_serial", "before_serial": 5, "before_time_ms": 5},
        {"mode": "before_time_ms", "before_time_ms": -1},
        {"mode": "before_time_ms", "before_time_ms": 2**63},
        {"mode": "before_time_ms", "before_time_ms": "5"},
    ],
)
def test_a_purge_with_another_bound(change: dict[str, Any]) -> None:
    """A missing, foreign or impossible bound is 400."""
    body = json.dumps({**PURGED, **change}).encode()
    assert coded(refusal(requests.parse_purge, body, "c")) == (400, "invalid_input")


def test_revocations() -> None:
    """A revocation names a token or a client, within the length of both."""
    assert requests.parse_revocation(b'{"jti":"j"}') == requests.RevocationRequest("j", None)
    assert requests.parse_revocation(b'{"client_id":"a"}') == requests.RevocationRequest(None, "a")
    for body in (b"{}", b'{"jti":""}', b'{"client_id":"%b"}' % (b"x" * 129), b'{"jti":1}'):
        assert coded(refusal(requests.parse_revocation, body)) == (400, "invalid_input")


def test_the_idempotency_header() -> None:
    """The header is 1..128 bytes of UTF-8."""
    assert requests.parse_header_key(None) is None
    assert requests.parse_header_key(b"k") == "k"
    for value in (b"", b"x" * 129, b"\xff"):
        assert coded(refusal(requests.parse_header_key, value)) == (400, "invalid_input")


def test_an_optional_body() -> None:
    """Where a body is optional, none and an empty object mean the same."""
    assert requests.parse_socket(b"") is None
    assert requests.parse_socket(b"{}") is None
    assert requests.parse_socket(b'{"socket_id":"1.2"}') == "1.2"
    assert coded(refusal(requests.parse_socket, b"[]")) == (400, "invalid_input")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_compact_changes_nothing_but_white_space(value: Any) -> None:
    """Compacting indented JSON gives the compact JSON of the same value."""
    indented = json.dumps(value, indent=3, ensure_ascii=False).encode()
    wanted = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    assert compact(indented) == wanted
    assert compact(wanted) == wanted


@given(VALUES)
def test_published_data_is_what_any_client_would_make_of_it(value: Any) -> None:
    """The delivered string is the value, or reads back as the value."""
    body = msgspec.json.encode({"name": "e", "channel": "c", "data": value})
    delivered = json.loads(requests.parse_publication(body, None, LIMITS).data)
    assert delivered == value if isinstance(value, str) else json.loads(delivered) == value


@pytest.mark.parametrize(
    "read",
    [
        lambda body: requests.parse_publication(body, None, LIMITS),
        lambda body: requests.parse_batch(body, LIMITS),
        lambda body: requests.parse_mutation("update", "c", "s", body, LIMITS.max_message_values),
        requests.parse_revocation,
    ],
)
def test_a_body_of_too_many_values_is_not_read(read: Callable[[bytes], object]) -> None:
    """It says what to change, whatever else is wrong with it (channels 8.1)."""
    found = refusal(read, b"[" + b"1," * LIMITS.max_message_values)
    assert (found.status, found.code) == (413, "payload_too_large")
    assert found.error.endswith("(setting channels.max_message_values)")
    assert refusal(read, b"[" + b"1," * (LIMITS.max_message_values - 2)).status == 400


# Bodies that are read once.

_TEXT = st.text(st.sampled_from('ab"\\\\:,{}\u00e9\n\U0001f30a'), max_size=6)
_NAMES = ("name", "channel", "data", "socket_id", "op_id", "info", "extras", "other")


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Fault as refused:
        return refused.body()


@given(
    st.lists(st.tuples(st.sampled_from(_NAMES), _TEXT | st.none() | st.just([])), max_size=4),
    st.sampled_from(["", " ", "x", "\\"]),
    st.booleans(),
    st.sampled_from(["append", "update", "delete"]),
    st.integers(1, 4),
)
def test_a_body_has_one_meaning_however_often_it_is_read(
    members: list[tuple[str, Any]], end: str, escapes: bool, verb: MutationVerb, most: int
) -> None:
    """The short way of reading a body and the long one agree: also of one with a key twice."""
    fields = [
        f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=escapes)}" for name, value in members
    ]
    body = ("{" + ",".join(fields) + "}" + end).encode()
    limits = Channels(max_message_values=most)
    calls: list[Callable[[], object]] = [
        lambda: requests.parse_publication(body, None, LIMITS),
        lambda: requests.parse_publication(body, None, limits),
        lambda: requests.parse_mutation(verb, "c", "s", body),
        lambda: requests.parse_mutation(verb, "c", "s", body, most),
    ]
    found = [_outcome(call) for call in calls]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(requests, "_texts", lambda *_: None)
        assert found == [_outcome(call) for call in calls]


def test_a_body_of_texts_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escaped quotation marks and backslashes at an end are no ends of strings."""
    monkeypatch.setattr(requests, "_strict", None)
    data = 'a "b" \\" \\\\'
    assert published(data=data).data == json.dumps(data).encode()
    assert mutation("append", {"data": data, "op_id": "1"}).op_id == "1"


@given(st.text(max_size=5))
def test_white_space_of_a_serial_is_that_of_unicode(serial: str) -> None:
    """No serial has any."""
    outcome = _outcome(lambda: requests.check_serial("serial", serial))
    assert (outcome is None) == (bool(serial) and not any(map(str.isspace, serial)))
