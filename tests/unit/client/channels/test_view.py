"""Folding: frames become messages, in every order a server may send them in."""

import random
from typing import Any

import pytest

from tidelog.client.channels import view as channel_view
from tidelog.client.channels.message import BadFrame, Message, read_operation
from tidelog.client.channels.view import MAX_PASSING, ChannelView, Verdict

STREAM = "s-1"


def frame(
    action: str, serial: int, *, of: int | None = None, data: Any = "", **fields: Any
) -> dict[str, Any]:
    """A frame of message `of`, its history serial too; by default a message of its own."""
    place = serial if of is None else of
    event = fields.pop("event", "chat" if action == "create" else f"sockudo:message.{action}")
    extras = {
        **fields.pop("extras", {}),
        "headers": {
            **fields.pop("headers", {}),
            "sockudo_action": f"message.{action}",
            "sockudo_message_serial": f"m{place}",
            "sockudo_version_serial": f"v{serial}",
            "sockudo_version_timestamp_ms": 1000 + serial,
            "sockudo_history_serial": place,
        },
    }
    made = {"event": event, "channel": "room", "stream_id": STREAM, "serial": serial}
    made |= {"message_id": f"id-{serial}", "extras": extras, **fields}
    if data is not None:
        made["data"] = data
    return made


def view(*, limit: int = 100, at: int = 0, **options: Any) -> ChannelView:
    """A view that is subscribed at a place."""
    made = ChannelView("room", limit=limit, **options)
    assert made.attached(STREAM, at, rewinds=False) is Verdict.APPLIED
    return made


def feed(into: ChannelView, *frames: dict[str, Any]) -> list[Verdict]:
    """What becomes of each frame."""
    return [into.receive(read_operation(made)) for made in frames]


def taken(of: ChannelView) -> list[Message]:
    """Everything a reader would be given now."""
    messages = []
    while (message := of.take()) is not None:
        messages.append(message)
    return messages


def test_each_action_folds_as_the_server_folds_it() -> None:
    """An append adds; update and delete say all, so what they do not say is gone."""
    room = view()
    feed(
        room,
        frame("create", 1, data="a", headers={"own": 1}, extras={"x": 1}),
        frame("append", 2, of=1, data="b", name="chat", user_id="ana", extras={"x": 2}),
    )
    [message] = room.messages
    assert (message.serial, message.name, message.data) == ("m1", "chat", "ab")
    assert message.extras == {"x": 2}
    assert (message.action, message.client_id) == ("append", "ana")
    assert (message.version_serial, message.version_timestamp_ms) == ("v2", 1002)
    assert (message.history_serial, message.delivery_serial) == (1, 2)
    feed(room, frame("update", 3, of=1, data={"n": 1}, name="edited"))
    assert room.messages[0].data == {"n": 1}
    feed(room, frame("delete", 4, of=1, data=None))
    [message] = room.messages
    assert (message.is_deleted, message.data, message.name) == (True, None, None)
    feed(room, frame("append", 5, of=1, data="back"))
    [message] = room.messages
    assert (message.data, message.is_deleted, message.is_partial) == ("back", False, False)


def test_the_server_s_headers_are_no_extras() -> None:
    """The publisher's own headers stay."""
    room = view()
    feed(room, frame("create", 1, headers={"tenant": "acme"}), frame("create", 2))
    assert [message.extras for message in room.messages] == [{"headers": {"tenant": "acme"}}, {}]


def test_status_and_json() -> None:
    """What a reader asks a message."""
    room = view()
    for number, status in enumerate(("streaming", "complete", "cancelled"), 1):
        extras = {"ai": {"transport": {"status": status}}}
        feed(room, frame("create", number, data='{"n":1}', extras=extras))
    feed(room, frame("create", 4, extras={"ai": "odd"}))
    assert [message.status for message in room.messages[:3]] == [
        "streaming",
        "complete",
        "cancelled",
    ]
    assert [message.is_complete for message in room.messages] == [False, True, False, True]
    assert room.messages[0].json() == {"n": 1}


def test_full_mode_replaces() -> None:
    """The whole text comes with each append."""
    room = view(is_full=True)
    feed(room, frame("create", 1, data="a"), frame("append", 2, of=1, data="ab"))
    feed(room, frame("append", 4, of=3, data="whole"))  # a gap, seen by the caller
    feed(room, frame("append", 3, of=3, data="whole"))
    assert [message.data for message in room.messages] == ["ab", "whole"]
    assert not room.messages[1].is_partial


def test_continuity_is_judged_by_the_serial() -> None:
    """Known ones change nothing, a jump is a gap, another stream is told apart."""
    room = view(at=5)
    created, added = frame("create", 6, data="a"), frame("append", 7, of=6, data="b")
    applied = [Verdict.APPLIED]
    assert feed(room, created, added) == applied * 2
    assert feed(room, created, added, frame("append", 3, of=1, data="old")) == applied * 3
    assert feed(room, frame("append", 9, of=6, data="d")) == [Verdict.GAP]
    assert room.messages[0].data == "ab"
    assert feed(room, frame("append", 8, of=6, data="c")) == applied
    assert room.messages[0].data == "abc"
    assert room.position is not None
    assert (room.position.serial, room.position.last_message_id) == (8, "id-8")
    assert feed(room, frame("create", 9, stream_id="s-2")) == [Verdict.OTHER_STREAM]
    assert room.attached(STREAM, 8, rewinds=False) is Verdict.APPLIED
    assert room.attached(STREAM, 9, rewinds=False) is Verdict.GAP
    assert room.attached("s-2", 8, rewinds=False) is Verdict.OTHER_STREAM


def test_a_rewind_is_told_from_what_went_live_meanwhile() -> None:
    """States come whole even of appends; live appends behind them are fragments again."""
    room = ChannelView("room", limit=10)
    room.attached(STREAM, 10, rewinds=True)
    feed(
        room,
        frame("create", 3, data="three", event="sockudo:message.create", name="chat"),
        frame("append", 12, of=7, data="seven!", name="chat"),  # newer than the subscription
        frame("append", 11, of=3, data=" more", name="chat"),
        frame("create", 13, data="new"),
    )
    assert not room.messages, "nothing is shown before it is complete"
    room.rewound(2)
    assert [(m.name, m.data) for m in room.messages] == [
        ("chat", "three more"),
        ("chat", "seven!"),
        ("chat", "new"),
    ]
    assert room.position is not None
    assert room.position.serial == 13
    feed(room, frame("append", 14, of=7, data="!"))
    assert room.messages[1].data == "seven!!"


def test_a_state_newer_than_live_frames_is_not_added_to_twice() -> None:
    """The history may be ahead of what is delivered: the position stays with what was delivered."""
    room = ChannelView("room", limit=10)
    room.attached(STREAM, 10, rewinds=True)
    feed(room, frame("append", 12, of=7, data="seven!", name="chat"))
    room.rewound(1)
    assert room.position is not None
    assert room.position.serial == 10
    assert (
        feed(room, frame("create", 11, data="x"), frame("append", 12, of=7, data="!"))
        == [Verdict.APPLIED] * 2
    )
    assert [message.data for message in room.messages] == ["seven!", "x"]


def test_a_rewind_that_breaks_off_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it counts; and one without an end is refused."""
    monkeypatch.setattr(channel_view, "MAX_REWOUND", 100)
    room = ChannelView("room", limit=10)
    room.attached(STREAM, 10, rewinds=True)
    feed(room, frame("create", 3, data="three"))
    room.detached()
    assert room.position is None
    assert not room.messages
    room.attached(STREAM, 10, rewinds=True)
    with pytest.raises(BadFrame, match="without an end"):
        feed(room, *[frame("create", 3)] * 101)


def test_a_beginning_that_is_not_known_is_asked_for_once() -> None:
    """The fragments stay added to whatever the history had at the time."""
    room = view(at=20)
    feed(room, frame("append", 21, of=5, data="c"), frame("append", 22, of=5, data="d"))
    assert room.messages[0].is_partial
    assert room.messages[0].data == "cd"
    asked = [room.unfinished]
    room.was_asked(5)
    asked.append(room.unfinished)
    assert asked == [5, None]
    feed(room, frame("append", 23, of=5, data="e"))
    room.fill(read_operation(frame("append", 22, of=5, data="abcd", name="chat")))
    assert (room.messages[0].data, room.messages[0].is_partial) == ("abcde", False)
    assert room.messages[0].delivery_serial == 23
    room.fill(read_operation(frame("append", 22, of=5, data="abcd")))
    assert room.messages[0].data == "abcde", "only what is partial is filled"
    feed(room, frame("append", 24, of=6, data="z"))
    room.fill(read_operation(frame("append", 26, of=6, data="xyz+!", name="chat")))
    feed(room, frame("append", 25, of=6, data="+"), frame("append", 26, of=6, data="!"))
    assert room.messages[1].data == "xyz+!"


def test_an_update_makes_a_partial_message_whole() -> None:
    """It says all there is."""
    room = view(at=20)
    feed(room, frame("append", 21, of=5, data="c"), frame("update", 22, of=5, data="new"))
    assert room.unfinished is None
    room.fill(read_operation(frame("append", 21, of=5, data="abc")))
    assert (room.messages[0].data, room.messages[0].is_partial) == ("new", False)


def test_a_slow_reader_is_given_each_message_once() -> None:
    """In the order of the first change it has not seen, as the message is when it is taken."""
    room = view()
    feed(room, frame("create", 1, data="a"), frame("create", 2, data="b"))
    for serial in range(3, 1000):
        feed(room, frame("append", serial, of=1, data="."))
    first, second = taken(room)
    assert (len(first.data), second.data) == (998, "b")
    assert not room.has_news
    feed(room, frame("append", 1000, of=2, data="!"))
    assert [message.data for message in taken(room)] == ["b!"]


def test_the_oldest_are_let_go() -> None:
    """By number and by size; changes to them are not shown, nor taken for new messages."""
    room = view(limit=3)
    feed(room, *(frame("create", serial, data="x") for serial in range(1, 6)))
    assert [message.serial for message in room.messages] == ["m3", "m4", "m5"]
    assert room.missed == 2
    taken(room)
    feed(room, frame("append", 6, of=1, data="y"), frame("update", 7, of=2, data="z"))
    assert not taken(room)
    assert room.position is not None
    assert room.position.serial == 7

    small = view(max_bytes=10)
    feed(small, frame("create", 1, data="12345"), frame("create", 2, data="12345"))
    assert len(small.messages) == 2
    feed(small, frame("append", 3, of=2, data="6"))
    assert [message.data for message in small.messages] == ["123456"]
    feed(small, frame("append", 4, of=2, data="789012345"))
    assert len(small.messages) == 1, "one message is kept whatever its size"


def test_events_without_a_place_pass_by() -> None:
    """They wait for a slow reader up to a bound, and are kept nowhere."""
    room = view()
    event = {"event": "tick", "channel": "room", "data": "1", "message_id": "e"}
    feed(room, *([event] * (MAX_PASSING + 5)), frame("create", 1))
    assert room.missed == 5
    assert [message.serial for message in room.messages] == ["m1"]
    seen = taken(room)
    assert len(seen) == MAX_PASSING + 1
    assert (seen[0].name, seen[0].action, seen[0].delivery_serial) == ("tick", "event", None)
    feed(room, event)
    assert len(taken(room)) == 1


def test_events_of_a_history_without_versions_are_kept() -> None:
    """Their message id is their name and their serial their place."""
    room = view()
    plain = {"event": "tick", "channel": "room", "data": "1", "stream_id": STREAM}
    feed(
        room, {**plain, "message_id": "e1", "serial": 1}, {**plain, "message_id": "e2", "serial": 2}
    )
    assert [(m.serial, m.history_serial) for m in room.messages] == [("e1", 1), ("e2", 2)]


def test_a_reset_forgets_everything() -> None:
    """Also what a reader has not seen."""
    room = view()
    feed(room, frame("create", 1), {"event": "e", "channel": "room", "message_id": "x"})
    room.reset()
    assert not room.messages
    assert not taken(room)
    assert room.position is None


@pytest.mark.parametrize(
    "broken",
    [
        {"event": "x", "channel": "room"},
        {**frame("create", 1), "serial": "1"},
        {**frame("create", 1), "extras": {"headers": {"sockudo_action": "message.create"}}},
    ],
)
def test_frames_that_name_nothing_are_refused(broken: dict[str, Any]) -> None:
    """Rather than folded into something."""
    with pytest.raises(BadFrame):
        read_operation(broken)


@pytest.mark.parametrize("seed", range(20))
def test_any_replay_gives_the_state_of_the_operations(seed: int) -> None:
    """Repeats, overlapping replays and a fill at any time: the state is that of one clean run."""
    rng = random.Random(seed)
    frames: list[dict[str, Any]] = []
    for serial in range(1, 60):
        known = sorted({made["extras"]["headers"]["sockudo_history_serial"] for made in frames})
        if not known or rng.random() < 0.2:
            frames.append(frame("create", serial, data=f"<{serial}>"))
        else:
            action = rng.choice(["append"] * 6 + ["update", "delete"])
            frames.append(frame(action, serial, of=rng.choice(known), data=f"[{serial}]"))
    clean = view()
    feed(clean, *frames)
    room = view()
    for _ in range(300):
        assert room.position is not None
        at = room.position.serial
        start = rng.randrange(max(0, at - 10), at + 1)
        feed(room, *frames[start : start + rng.randrange(1, 12)])
        taken(room)
    feed(room, *frames)
    assert room.messages == clean.messages

    joined = view(at=30)
    states = {message.serial: message for message in clean.messages}
    for made in frames[30:]:
        feed(joined, made)
        if rng.random() < 0.3 and (wanted := joined.unfinished) is not None:
            joined.was_asked(wanted)
            upto = rng.randrange(made["serial"], 60)
            then = view()
            feed(then, *frames[:upto])
            [state] = [m for m in then.messages if m.history_serial == wanted]
            filled = frame(state.action, state.delivery_serial or 0, of=wanted, data=state.data)
            joined.fill(read_operation({**filled, "name": state.name}))
    for message in joined.messages:
        if not message.is_partial:
            assert message.data == states[message.serial].data
