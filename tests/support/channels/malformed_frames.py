"""Frames of a client that a channels server refuses or ignores, and frames with random damage.

Of the first kind the whole answer is known; of the second nobody knows what they mean.
"""

import json
import random
from typing import Any, NamedTuple

from support.channels.attacked import PRIVATE, ROOM
from support.channels.peer import APP
from support.channels.raw import Json
from support.malformed_json import BROKEN

WRONG: list[Any] = [None, True, 7, -1.5, "text", [], {}, [1], {"a": 1}, [[]], [None]]


class Frame(NamedTuple):
    """A frame, and the events of its answer: codes of error frames, or names without a prefix."""

    data: str | bytes
    expected: tuple[int | str, ...]


def subscribing(**fields: Any) -> Json:
    """A subscribe with these fields."""
    return {"event": "pusher:subscribe", "data": fields}


def known_frame(rng: random.Random, *, is_v2: bool) -> Frame:
    """A frame that is refused, or ignored, in one way only."""
    good = subscribing(channel=ROOM)
    kind = rng.randrange(12)
    if kind < 3:
        return Frame(rng.choice(BROKEN)(rng, good), (4000,))
    if kind == 3:
        data = json.dumps(good).encode()
        return Frame(rng.choice([data, rng.randbytes(rng.randrange(1, 80))]), (4000,))
    makers = [_shapeless, _subscribe, _client_event, _run_event, _past, _identity]
    message, expected = rng.choice(makers)(rng, is_v2)
    if "data" in message and isinstance(message["data"], dict) and rng.random() < 0.3:
        message["data"] = json.dumps(message["data"])
    return Frame(json.dumps(message), expected)


Refusal = tuple[Json, tuple[int | str, ...]]


def _shapeless(rng: random.Random, is_v2: bool) -> Refusal:
    del is_v2
    prefix = rng.choice(["pusher", "sockudo"])
    names = ("subscribe", "unsubscribe")
    ignored = ("x", "", "message.append", "message.update", "subscribed", "Ping", "pong", "ping ")
    no_fields = [value for value in WRONG if not isinstance(value, dict)]
    match rng.randrange(5):
        case 0:
            return {"event": rng.choice([v for v in WRONG if not isinstance(v, str)])}, (4000,)
        case 1:
            return {rng.choice(["Event", "events", "data"]): "pusher:ping"}, (4000,)
        case 2:
            return {"event": f"{prefix}:{rng.choice(names)}", "data": rng.choice(no_fields)}, (
                4000,
            )
        case 3:
            channel = rng.choice([v for v in WRONG if not isinstance(v, str)])
            return {"event": f"{prefix}:{rng.choice(names)}", "data": {"channel": channel}}, (4000,)
        case _:
            event = rng.choice([f"{prefix}:{rng.choice(ignored)}", "chat", "", "client", "\0"])
            return {"event": event, "channel": ROOM, "data": rng.choice(WRONG)}, ()


def _subscribe(rng: random.Random, is_v2: bool) -> Refusal:
    names = [
        "",
        "a b",
        "a/b",
        "\u00e9",
        "a" * 201,
        "a\0b",
        "*",
        "orders.*",
        "a%b",
        "'",
        "\U0001f600",
    ]
    match rng.randrange(4 if is_v2 else 5):
        case 0:
            return subscribing(channel=rng.choice(names)), (4300, "subscription_error")
        case 1:
            auth = rng.choice(
                [*WRONG, "", ":", f"{APP.key}:", f"{APP.key}:{'0' * 64}", "\u00e9" * 9]
            )
            return subscribing(channel=PRIVATE, auth=auth), (4009, "subscription_error")
        case 2:
            data = rng.choice([v for v in WRONG if not isinstance(v, str)])
            fields = {"channel": "presence-x", "channel_data": data, "auth": "a:b"}
            return subscribing(**fields), (4300, "subscription_error")
        case 3:
            user = f"#server-to-user-{rng.choice(['', 'ana', '.'])}"
            return subscribing(channel=user), (4009, "subscription_error")
        case _:
            rewind = rng.choice([1, "5", {"count": 3}, {"seconds": 1.5}])
            return subscribing(channel=ROOM, rewind=rewind), (4300, "subscription_error")


def _client_event(rng: random.Random, is_v2: bool) -> Refusal:
    del is_v2
    channel: Any = rng.choice(
        [None, 5, [], "", ROOM, PRIVATE, "presence-x", "private-encrypted-x", "\0"]
    )
    event = f"client-{rng.choice(['', 'typing', 'x' * 300, chr(0)])}"
    return {"event": event, "channel": channel, "data": rng.choice(WRONG)}, (4301,)


def _run_event(rng: random.Random, is_v2: bool) -> Refusal:
    """Nobody let this socket publish, whatever it says."""
    del is_v2
    event = rng.choice(["ai-input", "ai-cancel", "ai-output", "ai-run-start", "ai-", "ai-\0"])
    channel: Any = rng.choice([None, 5, [], "", ROOM, PRIVATE, "presence-x", "a*b", "\0"])
    frame = {"event": event, "channel": channel, "data": rng.choice(WRONG)}
    frame |= {"message_id": rng.choice(WRONG), "extras": rng.choice(WRONG)}
    return frame, (4301,)


def _past(rng: random.Random, is_v2: bool) -> Refusal:
    event = {
        "event": "sockudo:channel_history",
        "data": {"channel": rng.choice([ROOM, 5, "", None])},
    }
    resume = rng.choice(
        [
            *({}, {"channel_positions": {}}, {"channel_positions": 5}, {"channel_serials": []}),
            {"channel_positions": {ROOM: rng.choice([v for v in WRONG if v != 7])}},
            {"channel_positions": {ROOM: {"serial": rng.choice([-1, "1", 0.5, True, 2**63])}}},
            {"channel_positions": {ROOM: {"serial": 1, "stream_id": 5}}},
            {"channel_serials": {ROOM: rng.choice([None, "1", -1, 2**64])}},
        ]
    )
    lost = {"channel_positions": {ROOM: {"serial": rng.choice([1, 2**63 - 1]), "stream_id": "no"}}}
    match rng.randrange(3):
        case 0:
            return event, (4300,)
        case 1:
            return {"event": "sockudo:resume", "data": resume}, (4302 if is_v2 else 4301,)
        case _:
            ends: tuple[int | str, ...] = ("resume_failed", "resume_success")
            return {"event": "pusher:resume", "data": lost}, ends if is_v2 else (4301,)


def _identity(rng: random.Random, is_v2: bool) -> Refusal:
    match rng.randrange(3):
        case 0:
            fields = {
                "auth": rng.choice([*WRONG, "", f"{APP.key}:{'f' * 64}"]),
                "user_data": rng.choice([*WRONG, '{"id":"ana"}', "x" * 20_000]),
            }
            return {"event": "pusher:signin", "data": fields}, (4009,)
        case 1:
            data = {"token": rng.choice([*WRONG, "a.b.c"])}
            return {"event": "sockudo:auth", "data": data}, (4009 if is_v2 else 4300,)
        case _:
            data = {"channel": rng.choice([ROOM, "presence-x", 5]), "user_info": {}}
            return {"event": "sockudo:presence_update", "data": data}, (4301 if is_v2 else 4300,)


def damaged_frame(rng: random.Random) -> str:
    """A good frame with a few characters changed: nobody knows what it means now."""
    position = {"serial": 0, "stream_id": "0f6e", "last_message_id": "m"}
    text = json.dumps(
        rng.choice(
            [
                subscribing(channel=ROOM, auth="", rewind={"count": 2}),
                subscribing(channel="presence-x", auth="k:00", channel_data='{"user_id":"a"}'),
                {"event": "sockudo:resume", "data": {"channel_positions": {ROOM: position}}},
                {"event": "sockudo:channel_history", "data": {"channel": ROOM, "limit": 5}},
                {"event": "pusher:signin", "data": {"auth": "k:00", "user_data": '{"id":"a"}'}},
                {"event": "pusher:unsubscribe", "data": json.dumps({"channel": ROOM})},
                {"event": "sockudo:presence_update", "channel": "presence-x", "data": {}},
                {"event": "ai-cancel", "channel": ROOM, "data": {"own": True}, "message_id": "m"},
            ]
        )
    )
    letters = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice(['"', "{", "}", ":", ",", "\\", "0", "-", "\u00e9", "\0", "", "a"])
    return "".join(letters)
