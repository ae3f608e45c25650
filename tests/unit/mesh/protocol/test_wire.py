"""Frames keep what they say on the way (mesh 9.1)."""

import json

import msgspec
import pytest

from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.fingerprint import (
    MAX_VALUES,
    RequestRefused,
    make_envelope,
    read_envelope,
    read_object,
)


def test_a_send_carries_the_stored_payload_unchanged() -> None:
    """The bytes of the outbox row are in the frame as they are, and mean the same."""
    envelope = make_envelope(
        destination_kind="topic", destination_ref="alerts", body=b"\xff\0", meta={"b": 1, "a": 2}
    )
    payload = envelope.payload()
    frame = wire.send_frame(7, "id-1", envelope.fingerprint(), payload, supersedes="id-0")
    assert frame.endswith(payload[1:])
    sent = wire.read_daemon_frame(frame)
    assert isinstance(sent, wire.SendRequest)
    assert (sent.ref, sent.fault) == (7, None)
    assert read_envelope(sent.fields).fingerprint() == envelope.fingerprint()
    assert sent.fields["request_fingerprint"] == envelope.fingerprint().hex()
    assert sent.fields["supersedes"] == "id-0"


def test_a_send_with_faulty_meta_can_still_be_answered() -> None:
    """Its `ref` is known, so it gets an answer instead of the end of the connection."""
    sent = wire.read_daemon_frame(b'{"type":"send","ref":3,"meta":{"a":NaN}}')
    assert isinstance(sent, wire.SendRequest)
    assert sent.ref == 3
    assert sent.fault is not None
    assert sent.fault.code == "meta_not_canonicalizable"


@pytest.mark.parametrize(
    "frame",
    [
        wire.DaemonHello(member_pubkey="ab", signature="cd", daemon_version="1"),
        wire.FeatureRequest(require=["a"], optional=["b"]),
        wire.FeatureFailure(kind="feature_unavailable", feature="a", detail="d"),
        wire.ClientAck(broker_message_id="b", client_message_id="c", claim_id="k"),
        wire.HistoryRequest(ref=1, after=5, limit=10),
        wire.Subscribe(ref=1, topic="t"),
        wire.Unsubscribe(ref=1, topic="t"),
        wire.Topics(ref=1),
    ],
)
def test_a_daemons_frame_is_read_as_written(frame: wire.TypedDaemonFrame) -> None:
    """Unknown members do not matter."""
    text = wire.encode(frame)
    assert wire.read_daemon_frame(text) == frame
    assert wire.read_daemon_frame(text[:-1] + b',"new":1}') == frame


@pytest.mark.parametrize(
    "frame",
    [
        wire.BrokerHello(challenge="c", server_time="t", broker_version="v"),
        wire.Welcome(mesh_id="m", member_id="i", name="n", history_seq=4),
        wire.FeatureResponse(supported={"a": {}}, missing_required=[]),
        wire.Ack(ref=1, code=201, broker_message_id="b", history_id=4, duplicate=False),
        wire.Deliver(
            broker_message_id="b",
            history_id=1,
            mesh="ops",
            sender_pubkey="ab",
            sender_name="n",
            priority="next",
            body="x",
            created_at="t",
            claim_id="k",
            meta=msgspec.Raw(b'{"a":1}'),
        ),
        wire.HistoryPage(ref=1, items=[msgspec.Raw(b"{}")], next_after=3, has_more=False),
        wire.PeerJoin(member_pubkey="ab", name="n"),
        wire.PeerLeave(member_pubkey="ab", name="n"),
    ],
)
def test_a_brokers_frame_is_read_as_written(frame: wire.BrokerFrame) -> None:
    """Raw JSON in it stays the text it was."""
    text = wire.encode(frame)
    read = wire.read_broker_frame(text)
    assert read is not None
    assert wire.encode(read) == text


def test_an_unknown_frame_of_the_broker_is_skipped() -> None:
    """A newer broker may say more than this daemon knows."""
    assert wire.read_broker_frame('{"type":"news"}') is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"type":"ack"}', b'{"type":5}', b"\xff"])
def test_what_is_no_frame_of_a_broker_is_refused(text: bytes) -> None:
    """A frame without its members is not guessed at."""
    with pytest.raises(wire.FrameInvalid):
        wire.read_broker_frame(text)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "news"},
        {"type": "send"},
        {"type": "send", "ref": 0},
        {"type": "send", "ref": True},
        {"type": "subscribe", "ref": "1", "topic": "t"},
        {},
    ],
)
def test_what_is_no_frame_of_a_daemon_is_refused(frame: dict[str, object]) -> None:
    """The broker closes on it."""
    with pytest.raises(wire.FrameInvalid):
        wire.read_daemon_frame(json.dumps(frame).encode())
    with pytest.raises(wire.FrameInvalid):
        wire.read_daemon_frame(b'{"type":"subscribe","meta":{"a":NaN}}')


def test_the_largest_body_fits_into_a_frame() -> None:
    """However JSON has to escape it."""
    envelope = make_envelope(destination_kind="queue", destination_ref="q" * 512, body=b"\0" * 1024)
    frame = wire.send_frame(2**31, "x" * 128, envelope.fingerprint(), envelope.payload(), "y" * 128)
    assert len(frame) <= wire.max_frame_bytes(1024)


def test_what_a_daemon_takes_a_broker_reads() -> None:
    """A request of as many values as a daemon takes fits a frame; one with more ends it."""
    request = {"to": "topic:t", "body": "b", "meta": {"many": [0] * (MAX_VALUES - 5)}}
    fields = read_object(json.dumps(request).encode(), MAX_VALUES)
    with pytest.raises(RequestRefused, match="more than 100000 JSON values"):
        read_object(json.dumps({**request, "more": 0}).encode(), MAX_VALUES)
    envelope = make_envelope(
        destination_kind="topic", destination_ref="t", body=b"b", meta=fields["meta"]
    )
    payload = envelope.payload()
    assert read_envelope(read_object(payload)) == envelope
    frame = wire.read_daemon_frame(wire.send_frame(1, "id", b"f" * 32, payload, "earlier"))
    assert isinstance(frame, wire.SendRequest)
    assert frame.fault is None
    with pytest.raises(wire.FrameInvalid, match="JSON values"):
        wire.read_daemon_frame(b'{"type":"send","ref":1,"meta":[' + b"[]," * (MAX_VALUES + 100))
