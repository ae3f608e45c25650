"""The broker's end of a connection, without any I/O."""

import json
from typing import Any

import pytest

from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Reply
from tidelog.mesh.protocol.session import (
    AcceptSend,
    Acknowledge,
    Action,
    Authenticate,
    ChangeSubscription,
    Close,
    ListTopics,
    ReadHistory,
    Ready,
    ReportFailure,
    Send,
    Session,
    ack,
)

MESH = Mesh("m-1", "harbour", "retention_scoped", 30, None, 0, 6000, 60_000)
CHALLENGE = bytes(range(32))
KEY = MemberKey.from_seed(bytes(32))
MEMBER = Member("member-1", "ana", KEY.public_hex)
INLINE_BYTES = 2048


def give(session: Session, **frame: Any) -> list[Action]:
    """A text frame."""
    return session.receive(json.dumps(frame).encode(), is_text=True)


def hello(**changes: Any) -> dict[str, Any]:
    """A right hello, or one that is not."""
    signature = KEY.sign_hello("harbour", CHALLENGE)
    right = {"type": "hello", "member_pubkey": KEY.public_hex, "signature": signature}
    return {**right, **changes}


@pytest.fixture
def session() -> Session:
    """A session that has greeted."""
    session = Session(MESH, CHALLENGE, inline_bytes=INLINE_BYTES)
    [greeting] = session.opening("2026-01-01T00:00:00.000Z", "1.0")
    assert isinstance(greeting, Send)
    assert json.loads(greeting.frame)["challenge"] == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    return session


@pytest.fixture
def ready(session: Session) -> Session:
    """A session that has negotiated."""
    assert give(session, **hello()) == [Authenticate(KEY.public_hex)]
    session.admitted(MEMBER, 7, "h2", 3)
    request = {"type": "feature_negotiation_request", "require": ["client_message_id_dedupe"]}
    assert give(session, **request)[0] == Ready()
    return session


def test_the_way_in(session: Session) -> None:
    """A proved key is looked up; its member is welcomed and told where the history ends."""
    assert give(session, **hello()) == [Authenticate(KEY.public_hex)]
    [welcome] = session.admitted(MEMBER, 7, "h2", 3)
    assert isinstance(welcome, Send)
    assert json.loads(welcome.frame) == {
        "type": "welcome",
        "mesh_id": "m-1",
        "member_id": "member-1",
        "name": "ana",
        "history_seq": 7,
        "incarnation": "h2",
        "began": 3,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": "00" * 64},
        {"signature": "zz"},
        {"signature": ""},
        {"member_pubkey": "x"},
        {"member_pubkey": KEY.public_hex.upper()},
        {"member_pubkey": MemberKey.from_seed(bytes([1] * 32)).public_hex},
    ],
)
def test_a_wrong_hello(session: Session, changes: dict[str, str]) -> None:
    """It closes the connection, and the right one afterwards is not heard."""
    [close] = give(session, **hello(**changes))
    assert isinstance(close, Close)
    assert close.code == wire.UNAUTHENTICATED
    assert give(session, **hello()) == []


def test_a_challenge_is_worth_one_answer(session: Session) -> None:
    """A second hello closes, also while the first is being looked up."""
    give(session, **hello())
    [close] = give(session, **hello())
    assert close == Close(wire.UNAUTHENTICATED, "the challenge was answered already")
    assert session.admitted(MEMBER, 0, "h2", 0) == []


def test_time_for_a_hello(session: Session) -> None:
    """It ends a connection that has proved nothing, and no other."""
    other = Session(MESH, CHALLENGE, inline_bytes=INLINE_BYTES)
    give(other, **hello())
    assert other.timed_out() == []
    [close] = session.timed_out()
    assert isinstance(close, Close)
    assert close.code == wire.UNAUTHENTICATED
    assert session.timed_out() == []


@pytest.mark.parametrize("kind", ["topics", "feature_negotiation_request", "client_ack"])
def test_hello_comes_first(session: Session, kind: str) -> None:
    """Nothing else is understood before it."""
    [close] = give(session, type=kind, ref=1, require=[], broker_message_id="b")
    assert isinstance(close, Close)
    assert close.code == wire.UNAUTHENTICATED


def test_negotiation_comes_before_traffic(session: Session) -> None:
    """A member that has not negotiated, or misses something, cannot send."""
    give(session, **hello())
    session.admitted(MEMBER, 0, "h2", 0)
    [answer] = give(session, type="feature_negotiation_request", require=["x"], optional=["y"])
    assert isinstance(answer, Send)
    assert json.loads(answer.frame) == {
        "type": "feature_negotiation_response",
        "supported": {},
        "missing_required": ["x"],
    }
    assert give(session, type="topics", ref=1)[0] == Close(
        wire.MALFORMED, "feature negotiation comes before traffic"
    )


def test_the_offer_is_the_meshs(ready: Session) -> None:
    """Window and size are told as they are configured; negotiating again changes nothing."""
    names = ["client_message_id_dedupe", "max_payload"]
    [answer] = give(ready, type="feature_negotiation_request", require=names)
    assert isinstance(answer, Send)
    supported = json.loads(answer.frame)["supported"]
    assert supported["client_message_id_dedupe"]["params"]["dedupe_retention_days"] == 30
    assert supported["max_payload"]["params"]["inline_bytes"] == INLINE_BYTES


def test_too_many_features(session: Session) -> None:
    """An answer repeats what is missing, so a request is bounded."""
    give(session, **hello())
    session.admitted(MEMBER, 0, "h2", 0)
    names = [f"f{number}" for number in range(65)]
    [close] = give(session, type="feature_negotiation_request", require=names)
    assert isinstance(close, Close)
    assert close.code == wire.MALFORMED


@pytest.mark.parametrize(
    ("frame", "action"),
    [
        ({"type": "topics", "ref": 3}, ListTopics(3)),
        ({"type": "subscribe", "ref": 3, "topic": "t"}, ChangeSubscription(3, "t", True)),
        ({"type": "unsubscribe", "ref": 3, "topic": "t"}, ChangeSubscription(3, "t", False)),
        ({"type": "history", "ref": 3}, ReadHistory(3, 0, 500)),
        ({"type": "history", "ref": 3, "after": -5, "limit": 0}, ReadHistory(3, 0, 1)),
        ({"type": "history", "ref": 3, "after": 5, "limit": 9999}, ReadHistory(3, 5, 500)),
        (
            {"type": "client_ack", "broker_message_id": "b", "claim_id": "c"},
            Acknowledge(wire.ClientAck(broker_message_id="b", claim_id="c")),
        ),
        (
            {"type": "feature_negotiation_failed", "kind": "k", "feature": "f", "detail": "d"},
            ReportFailure(wire.FeatureFailure(kind="k", feature="f", detail="d")),
        ),
    ],
)
def test_traffic(ready: Session, frame: dict[str, Any], action: Action) -> None:
    """Each frame asks for one thing."""
    assert give(ready, **frame) == [action]


def test_a_send_is_handed_on_as_it_came(ready: Session) -> None:
    """What is wrong with it is answered later, not closed."""
    [action] = give(ready, type="send", ref=9, body=7)
    assert isinstance(action, AcceptSend)
    assert (action.frame.ref, action.frame.fields["body"]) == (9, 7)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b'{"type":"x"}', b'{"type":"topics","ref":0}', b"x" * 40_000],
)
def test_what_is_no_frame(ready: Session, payload: bytes) -> None:
    """It closes the connection."""
    [close] = ready.receive(payload, is_text=True)
    assert isinstance(close, Close)
    assert close.code == wire.MALFORMED
    assert ready.is_closed


def test_binary_is_no_frame(ready: Session) -> None:
    """Frames are text."""
    [close] = ready.receive(b'{"type":"topics","ref":1}', is_text=False)
    assert isinstance(close, Close)
    assert close.code == wire.MALFORMED


def test_it_ends_once(ready: Session) -> None:
    """Whatever comes after the end has no effect."""
    assert ready.end(wire.NOT_A_MEMBER, "revoked") == [Close(wire.NOT_A_MEMBER, "revoked")]
    assert ready.end(wire.NOT_A_MEMBER) == []
    assert give(ready, type="topics", ref=1) == []


def test_an_ack_carries_the_answer() -> None:
    """Status, body and the time to come again, under the ref of the question."""
    frame = json.loads(ack(5, Reply(429, {"error": "rate_limited"}, 7)))
    assert frame == {
        "type": "ack",
        "ref": 5,
        "code": 429,
        "error": "rate_limited",
        "retry_after": 7,
    }
