"""The frames of both protocols, and the reading of what clients send."""

import contextlib
import json
import os
import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.errors import InvalidJson
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.message_ids import MessageIds, is_system_id
from tidelog.channels.protocol.wire import V1, V2, ProtocolVersion

IDS = MessageIds(os.urandom)
FRAMES = Frames(IDS)
VERSIONS: tuple[ProtocolVersion, ...] = (V1, V2)


def read(frame: bytes, *, is_v2: bool = True) -> dict[str, Any]:
    """A frame without its `message_id`, which is there exactly on V2."""
    message: dict[str, Any] = json.loads(frame)
    assert ("message_id" in message) is is_v2
    if is_v2:
        assert uuid.UUID(message.pop("message_id")).version == 4
    return message


def test_message_ids_are_distinct_version_4_uuids() -> None:
    """Over several blocks of random bytes, no id repeats and each has its one spelling."""
    ids = [IDS.message() for _ in range(2000)]
    assert len(set(ids)) == 2000
    for each in ids:
        assert re.fullmatch(
            r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", each
        )


def test_ids_of_system_frames_are_recognised_and_no_others_are() -> None:
    """They are distinct UUIDs like all others; whoever made them, wherever they come back."""
    ids = [IDS.system() for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert all(uuid.UUID(each).version == 4 and is_system_id(each) for each in ids)
    assert is_system_id("00000000-0000-4000-8600-20e69fbf3e30"), "the same on every node"
    assert not any(is_system_id(IDS.message()) for _ in range(2000))
    one = ids[0]
    flipped = one[:-1] + ("0" if one[-1] != "0" else "1")
    for other in (
        flipped,
        one.upper(),
        one.replace("-", ""),
        one[:18],
        "",
        "m",
        "\u00e9",
        one + "0",
    ):
        assert not is_system_id(other), other
    frame = FRAMES.subscription_succeeded(V2, "c", stream_id="s", serial=3)
    assert is_system_id(json.loads(frame)["message_id"])


@pytest.mark.parametrize(("version", "prefix"), [(V1, "pusher"), (V2, "sockudo")], ids=["V1", "V2"])
def test_system_frames_of_both_protocols(version: ProtocolVersion, prefix: str) -> None:
    """Prefix, place and type of `data` follow the table of channels 1.3."""
    is_v2 = version == V2
    established = read(FRAMES.connection_established(version, "1.2", 120), is_v2=is_v2)
    assert established == {
        "event": f"{prefix}:connection_established",
        "data": '{"socket_id":"1.2","activity_timeout":120}',
    }
    assert read(FRAMES.error(version, 4009, 'n"o'), is_v2=is_v2) == {
        "event": f"{prefix}:error",
        "data": {"code": 4009, "message": 'n"o'},
    }
    assert read(FRAMES.signin_success(version, '{"id":"a"}'), is_v2=is_v2) == {
        "event": f"{prefix}:signin_success",
        "data": {"user_data": '{"id":"a"}'},
    }
    assert read(FRAMES.subscription_error(version, "c", "no"), is_v2=is_v2) == {
        "event": f"{prefix}:subscription_error",
        "channel": "c",
        "data": {"type": "AuthError", "error": "no", "status": 401},
    }
    assert read(FRAMES.cache_miss(version, "cache-c"), is_v2=is_v2) == {
        "event": f"{prefix}:cache_miss",
        "channel": "cache-c",
        "data": "{}",
    }
    assert read(FRAMES.member_added(version, "c", "ana", b'{"n": 1}'), is_v2=is_v2) == {
        "event": f"{prefix}_internal:member_added",
        "channel": "c",
        "data": '{"user_id":"ana","user_info":{"n": 1}}',
    }
    assert read(FRAMES.member_added(version, "c", "ana", None), is_v2=is_v2)["data"] == (
        '{"user_id":"ana","user_info":null}'
    )
    assert read(FRAMES.member_removed(version, "c", "ana"), is_v2=is_v2) == {
        "event": f"{prefix}_internal:member_removed",
        "channel": "c",
        "data": '{"user_id":"ana"}',
    }
    assert json.loads(wire.PONGS[version]) == {"event": f"{prefix}:pong"}
    assert json.loads(wire.PUSHER_PING) == {"event": "pusher:ping"}


def test_subscription_succeeded() -> None:
    """V1 is told the members only; V2 its place in history and on the stream too."""
    place = {"attach_serial": 17, "stream_id": "s", "serial": 0}
    assert read(FRAMES.subscription_succeeded(V1, "c", **place), is_v2=False) == {  # type: ignore[arg-type]
        "event": "pusher_internal:subscription_succeeded",
        "channel": "c",
        "data": "{}",
    }
    assert read(FRAMES.subscription_succeeded(V2, "c", **place)) == {  # type: ignore[arg-type]
        "event": "sockudo_internal:subscription_succeeded",
        "channel": "c",
        "data": '{"attach_serial":17}',
        "stream_id": "s",
        "serial": 0,
    }
    assert read(FRAMES.subscription_succeeded(V2, "c")) == {
        "event": "sockudo_internal:subscription_succeeded",
        "channel": "c",
        "data": "{}",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_presence_snapshot(version: ProtocolVersion) -> None:
    """Ids in the order they joined, a hash with the info as received, and a count."""
    members = {"b": b'{"n":1}', 'a"': None}
    frame = FRAMES.subscription_succeeded(version, "presence-c", members=members, attach_serial=3)
    data = json.loads(read(frame, is_v2=version == V2)["data"])
    assert data["presence"] == {"ids": ["b", 'a"'], "hash": {"b": {"n": 1}, 'a"': None}, "count": 2}
    assert data.get("attach_serial") == (3 if version == V2 else None)
    empty = read(FRAMES.subscription_succeeded(version, "c", members={}), is_v2=version == V2)
    assert json.loads(empty["data"]) == {"presence": {"ids": [], "hash": {}, "count": 0}}


def test_frames_of_v2_only() -> None:
    """Tokens, history and rewind speak in objects, presence updates in text."""
    assert read(FRAMES.auth_success("ana", "t", 9)) == {
        "event": "sockudo:auth_success",
        "data": {"client_id": "ana", "jti": "t", "exp": 9},
    }
    assert read(FRAMES.token_expired(40142, "expired")) == {
        "event": "sockudo:token_expired",
        "data": {"code": 40142, "reason": "expired"},
    }
    assert read(FRAMES.channel_history("c", b'{"items":[]}')) == {
        "event": "sockudo:channel_history",
        "channel": "c",
        "data": {"items": []},
    }
    counts = {
        "historical_count": 3,
        "live_count": 0,
        "complete": True,
        "truncated_by_retention": False,
        "truncated_by_limit": False,
    }
    assert read(FRAMES.rewind_complete("c", **counts)) == {  # type: ignore[arg-type]
        "event": "sockudo:rewind_complete",
        "channel": "c",
        "data": counts,
    }
    assert read(FRAMES.presence_update("c", "ana", b"[1]")) == {
        "event": "sockudo_internal:presence_update",
        "channel": "c",
        "data": '{"user_id":"ana","user_info":[1]}',
    }


def test_resume_frames() -> None:
    """Both carry text; a failure names its channel outside and inside (channels D5)."""
    failed = wire.Failed(
        channel="room-8",
        code="stream_reset",
        reason="stream_id_mismatch",
        expected_stream_id="a",
        current_stream_id="b",
    )
    inside = {
        "channel": "room-8",
        "code": "stream_reset",
        "reason": "stream_id_mismatch",
        "expected_stream_id": "a",
        "current_stream_id": "b",
        "oldest_available_serial": None,
        "newest_available_serial": None,
    }
    frame = read(FRAMES.resume_failed(failed))
    assert (frame["event"], frame["channel"]) == ("sockudo:resume_failed", "room-8")
    assert json.loads(frame["data"]) == inside
    recovered = [
        wire.Recovered("room-7", "hot", 2, wire.ResumedAt("s", 45, "m")),
        wire.Recovered("room-9", "cold", 0, None),
    ]
    frame = read(FRAMES.resume_success(recovered, [failed]))
    assert frame.keys() == {"event", "data"}
    assert json.loads(frame["data"]) == {
        "recovered": [
            {
                "channel": "room-7",
                "source": "hot",
                "replayed": 2,
                "position": {"stream_id": "s", "serial": 45, "last_message_id": "m"},
            },
            {"channel": "room-9", "source": "cold", "replayed": 0, "position": None},
        ],
        "failed": [inside],
    }


def test_an_event_frame_leaves_out_what_is_none() -> None:
    """V1 never sees stream, serial or message id; a given message id is kept."""
    frame = FRAMES.event(
        V1, "e", channel="c", data=b"1", user_id="u", stream_id="s", serial=1, message_id="m"
    )
    assert json.loads(frame) == {"event": "e", "channel": "c", "data": 1, "user_id": "u"}
    assert json.loads(FRAMES.event(V2, "e", message_id="m")) == {
        "event": "e",
        "message_id": "m",
    }


# Inbound.


def test_a_message() -> None:
    """Event, channel and data are read; the data also byte for byte."""
    message = wire.parse(b'{"event":"client-x","channel":"c","data": {"a" : 1.50} }')
    assert (message.event, message.channel, message.data) == ("client-x", "c", {"a": 1.5})
    assert message.raw_data == b'{"a" : 1.50}'
    assert message.fields() == {"a": 1.5}
    bare = wire.parse(b'{"event":"x","channel":5}')
    assert (bare.channel, bare.data, bare.raw_data) == (None, None, b"")


def test_data_inside_a_string() -> None:
    """An object may come as a JSON string, and means the same."""
    message = wire.parse(b'{"event":"x","data":"{\\"a\\": [1]}"}')
    assert message.fields() == {"a": [1]}
    assert message.object_text() == b'{"a": [1]}'


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b'"x"',
        b"{}",
        b'{"event":null}',
        b'{"event":5}',
        b'{"data":{}}',
        b'{"event":"x","event":"y"}',
        b'{"event":"x","data":{"a":1,"a":2}}',
        b'{"event":"x","data":NaN}',
        b'{"event":"x","data":1e999}',
        b'{"event":"x","data":"\\ud800"}',
        b'{"event":"x"} x',
        b'\xef\xbb\xbf{"event":"x"}',
        b'{"event":"x","data":' + b"[" * 100 + b"]" * 100 + b"}",
    ],
)
def test_what_is_no_message(payload: bytes) -> None:
    """Text that is not JSON with one meaning, or has no event, is refused."""
    with pytest.raises(InvalidJson):
        wire.parse(payload)


@pytest.mark.parametrize(
    "data", [b"5", b"[]", b"null", b'"x"', b'"[]"', b'"{\\"a\\":1,\\"a\\":1}"']
)
def test_data_that_is_no_object(data: bytes) -> None:
    """What a system event needs is an object, in either form."""
    message = wire.parse(b'{"event":"x","data":%s}' % data)
    with pytest.raises(InvalidJson):
        message.fields()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(payload: bytes) -> None:
    """Nothing a peer sends raises anything else."""
    with contextlib.suppress(InvalidJson):
        wire.parse(payload)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_raw_data_is_the_data(value: Any) -> None:
    """The bytes kept are the bytes sent, whatever the value."""
    text = json.dumps(value).encode()
    assert wire.parse(b'{"event":"x", "data" :%s}' % text).raw_data == text


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("pusher:ping", "ping"),
        ("sockudo:ping", "ping"),
        ("pusher_internal:ping", None),
        ("client-x", None),
        ("ping", None),
        ("", None),
    ],
)
def test_both_prefixes_are_read(event: str, name: str | None) -> None:
    """Either prefix marks a system event; internal ones are the server's alone."""
    assert wire.system_name(event) == name


def test_values_are_counted_in_the_message_and_in_its_data() -> None:
    """Also where the data is a text that is JSON itself."""
    inner = json.dumps({"channel": "c", "more": [0] * 20})
    plain = json.dumps({"event": "e", "data": json.loads(inner)}).encode()
    with pytest.raises(InvalidJson, match="more than 20 values"):
        wire.parse(plain, 20)
    assert wire.parse(plain, 30).fields()["channel"] == "c"
    texted = json.dumps({"event": "e", "data": inner}).encode()
    with pytest.raises(InvalidJson, match="more than 20 values"):
        wire.parse(texted, 20).fields()
    assert wire.parse(texted, 30).fields()["channel"] == "c"
