"""What the halves of sync say to each other survives the link."""

from typing import Any

import msgspec
import pytest

from support.link.said_messages import all_have_examples, comes_as_said
from tidelog.base.data.incarnation import Incarnation
from tidelog.link.message import Failed, Message
from tidelog.sync import messages
from tidelog.sync.messages import VOCABULARY
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY, TREE_ACTIONS, Model
from tidelog.sync.protocol.wire import Committed, NotProcessed, Rejected

MODEL = Model.parse({"t": {"kind": "tree", "actions": list(TREE_ACTIONS)}}, {"s": True}, 1)


def item(event: dict[str, Any], profile: str = COMPATIBILITY) -> PreparedItem:
    """An event of that profile, prepared."""
    return prepare(
        {"id": "i\0\U0001f600", "partitions": ["p", "q"], "event": event},
        msgspec.json.encode(event),
        client_id="c",
        profile=profile,
        model=MODEL,
        allows=lambda name: name != "no",
    )


VALUE: dict[str, Any] = {"id": "n", "k": [1, 2**53 - 1, -0.5, 1.0, None, True, "\ue000", {"": []}]}
PUSHED = item({"type": "treePush", "payload": {"target": "t", "value": VALUE}})
NOTED = item({"type": "event", "payload": {"schema": "s", "data": VALUE}}, CANONICAL)
TOO_LARGE = item({"type": "event", "payload": {"schema": "s", "data": 2**70}}, CANONICAL)
UNKNOWN = item({"type": "event", "payload": {"schema": "none", "data": 1}}, CANONICAL)

EXAMPLES: tuple[Message, ...] = (
    messages.Hello(MODEL.digest, "my:Rules"),
    messages.Submit((PUSHED, NOTED, TOO_LARGE, UNKNOWN), 100, True, 7, 2),
    messages.Submit((msgspec.structs.replace(PUSHED, check=b'{"role": ["w"]}'),), 1, False),
    messages.Attach(("p", "q"), ("project",)),
    messages.Detach(projects=("project",)),
    messages.Join(3, "c"),
    messages.Left(3),
    messages.ChangeModelVersion(-(2**63)),
    messages.TakeSnapshot("p", is_stored=True),
    messages.PutSnapshot("p", b"{}", 2**63 - 1, 3),
    messages.Retain(2**40),
    Failed("StoreUnavailable", "no"),
    messages.Welcome(9, 8, 3, (Incarnation("a", 0, 1, 1), Incarnation("b", 5, 2, 2))),
    messages.Submitted(
        [
            Committed("a", 5, 6),
            Rejected("b", "validation_failed", (Fault("event", "no"),), 6),
            NotProcessed("c", "prior_item_failed", "b", 6),
        ]
    ),
    messages.NotTaken("QueueFull", "no room"),
    messages.Attached(9),
    messages.Joined(9, is_latest=False),
    messages.Events(9, [messages.Event(9, 1, "i", "c", ["p", "q"], b'{"id":"i"}')]),
    messages.Evict(3),
    messages.ModelVersionChanged(1, 2),
    messages.ModelVersionStored(1),
    messages.Snapshot(9, 3, b"{}"),
    messages.SnapshotRefused("newer", is_newer=True),
    messages.Retained(12),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_message_comes_as_it_was_said(message: Message) -> None:
    """Also what is nested in it: numbers keep their kind, texts every character."""
    comes_as_said(message, VOCABULARY)


def test_every_message_has_its_direction_and_its_example() -> None:
    """One that is missing in the vocabulary could be said in one process only."""
    all_have_examples(messages, VOCABULARY, EXAMPLES)


def test_what_no_decision_looks_at_is_not_sent_twice() -> None:
    """A body is whole; its event crosses only if it may be applied to a state."""
    assert PUSHED.event["payload"]["value"] == VALUE
    bare = {"type": "event", "payload": {}}
    assert NOTED.event == TOO_LARGE.event == UNKNOWN.event == bare
    assert TOO_LARGE.refused is not None
    assert UNKNOWN.invalid
    assert msgspec.json.decode(NOTED.body)["event"]["payload"]["data"] == VALUE


def test_models_that_judge_alike_have_one_digest() -> None:
    """Whatever their version; anything else makes another one."""
    targets = {"t": {"kind": "tree", "actions": list(TREE_ACTIONS)}}
    assert Model.parse(targets, {"s": True}, 7).digest == MODEL.digest
    others = [
        Model.parse(targets, {"s": {"type": "object"}}, 1),
        Model.parse({}, {"s": True}, 1),
        Model.parse(targets, {"s": True}, 1, [CANONICAL]),
    ]
    assert len({MODEL.digest, *(each.digest for each in others)}) == 4
