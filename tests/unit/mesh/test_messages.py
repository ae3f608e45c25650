"""What the halves of the mesh say to each other survives the link."""

import pytest

from support.link.said_messages import all_have_examples, comes_as_said
from tidelog.base.data.incarnation import Incarnation
from tidelog.link.message import Failed, Message
from tidelog.mesh import messages
from tidelog.mesh.messages import VOCABULARY, Acknowledgement, Budget
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.fingerprint import read_envelope
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Reply

MESH = Mesh("m", "tides", "retention_scoped", 365, None, 1, 6000, 60_000, 7, "prefer_oldest")
MEMBER = Member("id", "Ana \U0001f600", "ab" * 32)
SENT = {
    "envelope_version": 1,
    "destination_kind": "topic",
    "destination_ref": "alerts\ue000",
    "meta": {"n": [1, 2**53 - 1, -0.5, None]},
    "body": "aGk=",
    "body_encoding": "base64",
    "priority": "low",
}

TARGET = messages.Target("m", "tides", "https://hooks.example/key", "a secret of sixteen")

EXAMPLES: tuple[Message, ...] = (
    messages.Hello(),
    messages.Accept(
        Budget("m", 1_000_000, 100), MEMBER, "c", read_envelope(SENT), bytes(32), ("a", "b"), "old"
    ),
    messages.Claim("m", MEMBER, 64, 30_000),
    messages.Claim("m", MEMBER, 1, 300_000, "thumbs"),
    messages.Acknowledge([Acknowledgement("m", MEMBER.public_hex, "message", "claim")]),
    messages.Release("m", MEMBER.public_hex, [("message", "claim")]),
    messages.Complete("m", "id", "thumbs", "claim.id", ["one", "two"]),
    messages.UseToken("m/k/j", 2**40),
    messages.Attempted("endpoint", "message", "claim", None, "timeout"),
    messages.PostsEnded("claim"),
    messages.Arrive(3, MESH, MEMBER, "process"),
    messages.Left(3),
    messages.CreateMesh(MESH),
    messages.ChangeMesh(MESH, {"rate_limit": 9, "message_retention_days": None}),
    messages.Invite("m", bytes(32), 86_400_000),
    messages.RemoveInvite("m", bytes(32)),
    messages.Join("m", bytes(32), MEMBER.public_hex, "Ana"),
    messages.EndMembership("m", MEMBER.public_hex, is_revoked=True),
    messages.CreateTopic("m", MEMBER, "alerts"),
    messages.SetSubscription("m", MEMBER, "alerts", is_wanted=False),
    messages.RemoveTopic("m", None, "alerts"),
    messages.CreateQueue("m", MEMBER, "thumbs"),
    messages.RemoveQueue("m", MEMBER, "thumbs"),
    messages.AddWebhook("m", "", "https://hooks.example/x", "a secret of sixteen"),
    messages.RemoveWebhook("m", "endpoint"),
    Failed("StoreUnavailable", "no"),
    messages.Welcome((Incarnation("a", 0, 1, 1), Incarnation("b", 5, 2, 2))),
    messages.Replied(replies.accepted("c", "message", 2**53)),
    messages.Replied(Reply(200, {"items": [{"a": None}], "has_more": False}, 3)),
    messages.Leased("claim", 2**40, (("one", 1), ("two", 2))),
    messages.Completed(["one"]),
    messages.TokenUsed(is_new=False),
    messages.Arrived(),
    messages.Wake([("m", MEMBER.public_hex)], [("m", "message")]),
    messages.LookAgain(),
    messages.Post("endpoint", TARGET, messages.Leased("claim", 2**40, (("one", 1),))),
    messages.Noted(goes_on=False),
    messages.StopPosting(),
    messages.End(3, 4003, "replaced_by_newer_connection"),
    messages.PeerSeen("m", MEMBER.public_hex, "Ana", is_present=True),
    messages.Revoked("m", MEMBER.public_hex),
    messages.MeshChanged("m", "tides"),
    messages.Missed(),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_message_comes_as_it_was_said(message: Message) -> None:
    """Also what is nested in it: bytes stay bytes, texts keep every character."""
    comes_as_said(message, VOCABULARY)


def test_every_message_has_its_direction_and_its_example() -> None:
    """One that is missing in the vocabulary could be said in one process only."""
    all_have_examples(messages, VOCABULARY, EXAMPLES)


def test_a_secret_is_not_shown() -> None:
    """What is logged of a question does not have it."""
    asked = messages.AddWebhook("m", "alerts", "https://hooks.example/key", "a secret of sixteen")
    assert repr(asked) == "AddWebhook('m', 'alerts')"
    assert repr(TARGET) == "Target('m')"
