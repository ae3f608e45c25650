"""What the halves of channels say to each other survives the link."""

import msgspec
import pytest

from support.link.said_messages import all_have_examples, comes_as_said
from tidelog.base.data.incarnation import Incarnation
from tidelog.channels import messages
from tidelog.channels.messages import VOCABULARY, Event, Refused, SocketFacts, Target
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.capabilities import Actor, Capabilities
from tidelog.channels.protocol.requests import (
    Asked,
    ForgetTarget,
    MutationResult,
    parse_mutation,
    parse_publication,
)
from tidelog.channels.protocol.revocations import Revocation
from tidelog.channels.settings import Channels
from tidelog.link.message import Failed, Message

TEXT = "i\0\U0001f600"
FULL = parse_publication(
    msgspec.json.encode(
        {
            "name": "ai-output",
            "data": {"k": [1, -0.5, None, TEXT]},
            "channels": ["a", "private-b"],
            "info": "subscription_count,user_count",
            "idempotency_key": "k",
            "message_id": TEXT,
            "socket_id": "1.2",
            "tags": {"t": "v"},
            "extras": {"ai": {"transport": {"status": "streaming"}}, "ephemeral": True},
        }
    ),
    None,
    Channels(),
)
BARE = parse_publication(b'{"name":"n","channel":"a","data":""}', None, Channels())
UPDATE = parse_mutation(
    "update", "a", "m", b'{"name":"keep","clear_fields":["data"],"op_id":"o","metadata":[1]}'
)
APPEND = parse_mutation("append", "a", "m", b'{"data":"x","extras":{"k":1},"client_id":"c"}')
ACTOR = Actor("c", Capabilities(is_token=True, grants={"message_append_own": ("a*",)}))
JOIN = messages.Join("channels/a/b", "u", b'{"n":1}')
REFUSED = Refused.of(fault.backpressure().at(3))

EXAMPLES: tuple[Message, ...] = (
    REFUSED,
    messages.Hello(follows_all=True),
    messages.Attach("channels/a/b"),
    messages.Detach(("channels/a/b",)),
    messages.Look("channels/a/b"),
    messages.CatchUp(),
    messages.Publish(
        "a",
        (
            Event(FULL, (Target("a", "versioned", is_limited=True),), "c"),
            Event(BARE, (Target("a", "live", False, "setting"),), None, "u", True, "run"),
        ),
        True,
        "key",
    ),
    messages.Mutate("a", UPDATE, ACTOR),
    messages.Mutate("a", APPEND, None, REFUSED),
    messages.Summarize("channels/a/b", b"{}"),
    messages.Forget("a", ForgetTarget("c", "m"), Asked("why", "who")),
    messages.Forget("a", ForgetTarget(actor="c"), None),
    messages.EraseHistory("channels/a/b", None, Asked("why")),
    messages.EraseHistory("channels/a/b", 2**63 - 1, Asked("why")),
    messages.CloseStream("a", "b", "m", 60_000),
    messages.Revoke("a", (("jti", "t"), ("client_id", "c"))),
    JOIN,
    messages.Attach("channels/a/b", JOIN),
    messages.Leave("channels/a/b", "u"),
    messages.UpdateMember("channels/a/b", "u", b"2"),
    messages.Recount("channels/a/b", 3),
    messages.Count(("channels/a/b",)),
    messages.Occupied("channels/a/", with_users=True),
    messages.ListMembers("channels/a/b"),
    messages.Identify("a", "1.2"),
    messages.Known(7, SocketFacts(2, ACTOR)),
    messages.Known(7, None),
    messages.Disconnect("a", "u", 4009),
    Failed("StoreUnavailable", "no"),
    messages.Welcome(9, "LOG", (Incarnation("a", 0, 1, 1), Incarnation("b", 5, 2, 2))),
    messages.Done(),
    messages.Attached(9, 1, 2, 3, 4, 5, 6),
    messages.CaughtUp(9),
    messages.Entries(
        9,
        [
            messages.Entry(8, 1, "channels/a/b", 3, "event", "e", b'{"k":1}'),
            messages.Entry(9, 1, "channels/a/b", 4, "event", "e", None),
        ],
    ),
    messages.Floors("channels/a/b", 1, 2, 3),
    messages.Published(b'{"ok":true}', 9),
    messages.Mutated(MutationResult("v", 1, 2, is_duplicate=True), 0),
    messages.Forgotten(is_complete=True),
    messages.HistoryErased(0, 1, is_complete=False),
    messages.StreamClosed(is_closed=True),
    messages.Revoked((Revocation("a", "jti", "t", 5),)),
    messages.Live("channels/a/b", "i", TEXT, b'"x"', b"{}", None, "c", "1.2", True, 5),
    messages.Summary("channels/a/b", b"{}"),
    messages.Erased(("channels/a/b",), (1, 2), 3, "channels/a/", "c"),
    messages.Distrust(),
    messages.Admitted({"u": b"1", "v": None}),
    messages.Full(),
    messages.Attached(9, 1, 2, 3, 4, 5, 6, messages.Admitted({"u": None})),
    messages.Attached(9, 1, 2, 3, 4, 5, 6, messages.Full()),
    messages.MemberAdded("channels/a/b", "u", None),
    messages.MemberRemoved("channels/a/b", "u"),
    messages.MemberUpdated("channels/a/b", "u", b"2"),
    messages.Present("channels/a/b", {"u": b"1"}),
    messages.Counts((("channels/a/b", 3, 2),)),
    messages.WhoHas(7, "a", "1.2"),
    messages.Identified(SocketFacts(1, ACTOR)),
    messages.Identified(None),
    messages.CloseUser("a", "u", 4009),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_message_comes_as_it_was_said(message: Message) -> None:
    """Also what is nested in it: a name that is spelled like a change is still a name."""
    comes_as_said(message, VOCABULARY)


def test_every_message_has_its_direction_and_its_example() -> None:
    """One that is missing in the vocabulary could be said in one process only."""
    all_have_examples(messages, VOCABULARY, EXAMPLES)


def test_a_refusal_is_the_same_fault_on_the_other_side() -> None:
    """Status, code, text, the index of a batch's item and headers."""
    for refused in (
        fault.rate_limited(7).at(2),
        fault.payload_too_large("much", fault.AI_LIMIT),
        fault.not_found("m", "c"),
    ):
        assert Refused.of(refused).fault() == refused


def test_only_what_has_a_key_may_be_asked_twice() -> None:
    """All of it, and not what a socket sent: another request of it may be one that nobody knows."""
    keyed, bare = Event(FULL, ()), Event(BARE, ())
    sent = Event(FULL, (), is_client_event=True)
    found = [messages.Publish("a", (keyed, each)).may_repeat for each in (keyed, bare, sent)]
    assert found == [True, False, False]
    assert messages.Publish("a", (bare,), is_batch=True, key="k").may_repeat
    assert [messages.Mutate("a", each).may_repeat for each in (UPDATE, APPEND)] == [True, False]
    others = [each for each in EXAMPLES if not isinstance(each, messages.Publish | messages.Mutate)]
    assert not any(each.may_repeat for each in others)
