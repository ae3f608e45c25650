"""Malformed frames and requests by the thousand: the right refusal, and nothing else happens.

20,000 altogether: frames whose answer is known, frames with random damage, HTTP requests whose
answer is known, and requests that schemathesis makes of the OpenAPI document.
"""

import asyncio
import json
import logging
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from websockets.asyncio.client import connect

from support.channels_peer import (
    APP,
    PLAIN,
    ChannelsNode,
    Peer,
    channel_path,
    channels_server,
    handshake,
    message_path,
)
from support.channels_raw import Answer, Json, RawClient, signed_target

FRAMES = 9_000
DAMAGED = 2_500
REQUESTS = 8_000
CASES = 500
"""Of schemathesis, at least."""
WINDOW = 50
SOCKETS = 4
CLIENTS = 4

ROOM, PRIVATE = "fuzz-room", "private-fuzz"
CODES = {
    400: {"invalid_input", "missing_channel_info", "limit_exceeded", "ai_invalid_transport_header"},
    401: {"auth_failed"},
    404: {"not_found", "app_not_found"},
    405: {"method_not_allowed"},
    413: {"payload_too_large"},
    422: {"feature_disabled"},
    431: {"headers_too_large"},
}
ERRORS = {4000, 4009, 4300, 4301, 4302}
LEAK = re.compile(
    r"(?i:Traceback|File \"|\.py\b|site-packages|sqlite|asyncpg|postgres|msgspec|Error\()"
    r"|SELECT |INSERT |UPDATE |DELETE |channels_message|/tmp/|/work/|/home/|/usr/|0x[0-9a-f]{6}"
)
"""What an answer must never hold: code, SQL and paths."""
WRONG: list[Any] = [None, True, 7, -1.5, "text", [], {}, [1], {"a": 1}, [[]], [None]]
POISON = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e400", "9" * 4301, "01", "1.", ".5", "+1"),
    *('"\\ud800"', '"\\udfff\\ud800"', '"a\\ud83d"', '"\\x"', '"\t"', "'a'", "nul", "//"),
    *('{"k":1,"k":1}', '{"k":1,"\\u006b":2}', '{"a":{"b":[{"c":1,"c":1}]}}', "[1,]", "{,}"),
    *("[" * 65 + "]" * 65, '{"a":' * 200 + "1" + "}" * 200, "[" * 3000),
]


def poisoned(rng: random.Random, message: Json) -> str:
    """JSON text with something in it that is none, or that two readers read differently."""
    broken = {**message, rng.choice([*message, "extra"]): "@@"}
    return json.dumps(broken).replace('"@@"', rng.choice(POISON), 1)


def cut(rng: random.Random, message: Json) -> str:
    """JSON text that ends too early, or too late."""
    text = json.dumps(message)
    if rng.random() < 0.2:
        return text + rng.choice(["}", "{}", " null", ",", "\0"])
    return text[: rng.randrange(1, len(text))]


def no_object(rng: random.Random, message: Json) -> str:
    """JSON that is something else, or no JSON at all."""
    texts = ["null", "5", '"text"', "[]", json.dumps([message]), json.dumps(json.dumps(message))]
    letters = '{}[]":,0123456789eE+-.\\untrue\u00e9\U0001f600 \0'
    noise = "\x01" + "".join(rng.choices(letters, k=rng.randrange(60)))
    return rng.choice([*texts, noise])


BROKEN: list[Callable[[random.Random, Json], str]] = [poisoned, cut, no_object]


# Frames.


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
    message, expected = rng.choice([_shapeless, _subscribe, _client_event, _past, _identity])(
        rng, is_v2
    )
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


def check_frame(frame: Json, expected: int | str, *, is_v2: bool) -> None:
    """An answer is well formed, says nothing of the inside and is the one that was due."""
    prefix = "sockudo" if is_v2 else "pusher"
    assert ("message_id" in frame) is is_v2
    assert not LEAK.search(json.dumps(frame)), frame
    if isinstance(expected, str):
        assert frame["event"] == f"{prefix}:{expected}", frame
        return
    assert frame["event"] == f"{prefix}:error", (frame, expected)
    assert frame.keys() - {"message_id"} == {"event", "data"}
    assert frame["data"].keys() == {"code", "message"}
    assert frame["data"]["code"] == expected, frame
    assert 0 < len(frame["data"]["message"]) < 300


def shown(frame: Frame) -> object:
    """What to print of a frame."""
    return frame.data[:200], frame.expected


async def send_known(node: ChannelsNode, number: int, count: int) -> Counter[str]:
    """So many frames over one socket, which stays open and answers each as it must."""
    rng = random.Random(number)
    is_v2 = number % 2 == 0
    seen: Counter[str] = Counter()
    async with node.v2() if is_v2 else node.v1() as peer:
        for start in range(0, count, WINDOW):
            window = [known_frame(rng, is_v2=is_v2) for _ in range(min(WINDOW, count - start))]
            for attempt in window:
                await peer.socket.send(attempt.data)
            for attempt in window:
                for expected in attempt.expected:
                    frame = await peer.receive()
                    try:
                        check_frame(frame, expected, is_v2=is_v2)
                    except AssertionError as error:
                        raise AssertionError(shown(attempt)) from error
                seen[str(attempt.expected[0]) if attempt.expected else "ignored"] += 1
            await peer.quiet()
    return seen


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
            ]
        )
    )
    letters = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice(['"', "{", "}", ":", ",", "\\", "0", "-", "\u00e9", "\0", "", "a"])
    return "".join(letters)


async def send_damaged(node: ChannelsNode, number: int, count: int) -> Counter[str]:
    """Whatever a damaged frame means: the socket stays open and every answer is a known one."""
    rng = random.Random(number)
    seen: Counter[str] = Counter()
    known = {
        *("sockudo:error", "sockudo:subscription_error", "sockudo:resume_success", "sockudo:pong"),
        *("sockudo:resume_failed", "sockudo:channel_history", "sockudo:rewind_complete"),
        *("sockudo_internal:subscription_succeeded", "sockudo:message.append", "chat.message"),
    }
    for start in range(0, count, WINDOW):
        async with node.v2() as peer:
            for _ in range(min(WINDOW, count - start)):
                await peer.socket.send(damaged_frame(rng))
                seen["damaged"] += 1
            await peer.send("ping", {})
            event = ""
            while event != "sockudo:pong":
                frame = await peer.receive()
                event = frame["event"]
                assert event in known, frame
                assert not LEAK.search(json.dumps(frame)), frame
                if event == "sockudo:error":
                    assert frame["data"]["code"] in ERRORS, frame
    return seen


async def end_sockets(node: ChannelsNode) -> Counter[str]:
    """What does close a socket: too much, or what is no text."""
    rng = random.Random(3)
    seen: Counter[str] = Counter()
    for number in range(40):
        async with connect(node.url("protocol=2"), compression=None, close_timeout=2) as socket:
            peer = Peer(socket, APP, 2)
            await handshake(peer)
            if number % 2:
                await socket.send("x" * (65_537 + rng.randrange(5000)))
                assert await peer.closed() == 1009
            else:
                await socket.send(rng.choice([b"\xff\xfe", b'{"event":"\xc0"}']), text=True)
                assert await peer.closed() == 1007
            seen["closed"] += 1
    for query in ("protocol=x", "protocol=2&format=xml", "protocol=2&append_mode=%00"):
        with pytest.raises(Exception, match="HTTP 400"):
            async with connect(node.url(query)):
                pass
        seen["closed"] += 1
    return seen


# Requests.


class Attempt(NamedTuple):
    """The bytes of a request and the status it must be answered with."""

    request: bytes
    status: int


class Requests:
    """Makes requests that must be refused."""

    def __init__(self, serial: str, now: float) -> None:
        self.serial = serial
        self._now = now
        """Signing costs little, asking for the time each time would make this irreproducible."""

    def bodies(self) -> list[tuple[str, Json]]:
        """Paths and bodies of good requests."""
        message = message_path(ROOM, self.serial)
        confirmed = {"confirm_channel": ROOM, "reason": "r", "requested_by": "me"}
        event = {"name": "n", "channel": ROOM, "data": "x", "extras": {"headers": {"a": 1}}}
        return [
            ("/events", event),
            ("/events", {"name": "n", "channels": [ROOM, PRIVATE], "data": {"a": 1}}),
            ("/batch_events", {"batch": [event, event]}),
            (f"{message}/append", {"data": "x", "op_id": "o"}),
            (f"{message}/update", {"data": "x", "clear_fields": ["name"], "metadata": {}}),
            (f"{message}/delete", {"description": "d"}),
            (f"{channel_path(ROOM)}/history/reset", {**confirmed, "confirm_operation": "reset"}),
            (
                f"{channel_path(ROOM)}/history/purge",
                {**confirmed, "confirm_operation": "purge", "mode": "all"},
            ),
            ("/revocations", {"jti": "t"}),
        ]

    def gets(self) -> list[tuple[str, Json]]:
        """Paths and queries of good requests."""
        message = message_path(ROOM, self.serial)
        return [
            ("/channels", {"filter_by_prefix": "a"}),
            (channel_path(ROOM), {"info": "subscription_count"}),
            (f"{channel_path(ROOM)}/history", {"limit": 5, "direction": "oldest_first"}),
            (f"{channel_path(ROOM)}/history/state", {}),
            (message, {}),
            (f"{message}/versions", {"limit": 5, "direction": "newest_first"}),
            (f"{message}/summary", {}),
        ]

    def make(self, rng: random.Random) -> Attempt:
        """One of them."""
        ways = (self._body, self._body, self._typed, self._signature, self._place, self._query)
        return rng.choice((*ways, self._line))(rng)

    def _http(self, method: str, target: str, body: bytes | None, headers: str = "") -> bytes:
        head = f"{method} {target} HTTP/1.1\r\nhost: test\r\n{headers}"
        if body is not None:
            head += f"content-length: {len(body)}\r\n"
        return f"{head}\r\n".encode("utf-8", "surrogateescape") + (body or b"")

    def _signed(self, method: str, path: str, body: bytes | None, **params: Any) -> bytes:
        path = f"/apps/{APP.id}{path}"
        target = signed_target(method, path, body, params, now=self._now)
        return self._http(method, target, body)

    def _body(self, rng: random.Random) -> Attempt:
        """No JSON, or no object."""
        path, body = rng.choice(self.bodies())
        text = rng.choice(BROKEN)(rng, body).encode()
        if rng.random() < 0.1:
            text = json.dumps(body).encode() + rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80"])
        return Attempt(self._signed("POST", path, text), 400)

    def _typed(self, rng: random.Random) -> Attempt:
        """The right shape with something in it that cannot be."""
        path, body = rng.choice(self.bodies())
        body = deepcopy(body)
        action = path.rsplit("/", 1)[1]
        numbers = [5, True, [], {}, [1]]
        bad: list[tuple[str, list[Any]]]
        if action in ("append", "update", "delete"):
            bad = [
                ("op_id", ["", "o" * 65, *numbers]),
                ("socket_id", ["", "1", "1.", "a.b", "1.2.3", f"{10**11}.1", *numbers]),
                ("client_id", numbers),
                ("description", numbers),
                ("extras", [5, "x", [], {"headers": {"a": []}}, {"headers": 5}, {"ai": 5}]),
                ("extras", [{"echo": 1}, {"ai": {"transport": {"status": 5}}}, {"ephemeral": 0}]),
            ]
            if action == "append":
                bad.append(("data", ["", None, 5, {}, [], True]))
            else:
                bad.append(("clear_fields", [["x"], ["extras"] * 2, 5, "data", [1]]))
        elif action == "events":
            bad = [
                ("name", ["", "n" * 201, None, *numbers]),
                ("channels", [[], [""], ["a b"], ["a"] * 101, "room", [5], {}]),
                ("message_id", ["", "m" * 129, *numbers]),
                ("idempotency_key", ["", "m" * 129, *numbers]),
                ("socket_id", ["x", "1", *numbers]),
                ("tags", [5, [], {"a": 1}, "x"]),
                ("extras", [5, {"headers": {"a": None}}, {"idempotencyKey": ""}]),
                ("extras", [{"ai": {"transport": {"status": "paused"}}}]),
            ]
        elif action == "batch_events":
            event = body["batch"][0]
            bad = [
                ("batch", [None, 5, {}, [5], [event] * 11, [{**event, "name": ""}]]),
                ("batch", [[event, {**event, "channel": "a b"}], [{}], [{"name": "n"}]]),
            ]
        elif action in ("reset", "purge"):
            bad = [
                ("confirm_channel", ["other", None, "", 5]),
                ("confirm_operation", ["", "Reset", None, 5]),
                ("reason", ["", "  ", None, 5]),
            ]
            if action == "purge":
                bad.append(("mode", ["", "some", None, "before_serial"]))
        else:
            bad = [("jti", ["", "t" * 129, None, 5])]
        field, values = rng.choice(bad)
        body[field] = rng.choice(values)
        return Attempt(self._signed("POST", path, json.dumps(body).encode()), 400)

    def _signature(self, rng: random.Random) -> Attempt:
        """A good request that is not signed as it must be."""
        is_post = rng.random() < 0.6
        path, content = rng.choice(self.bodies() if is_post else self.gets())
        method = "POST" if is_post else "GET"
        body = json.dumps(content).encode() if is_post else None
        params = {} if is_post else content
        path = f"/apps/{APP.id}{path}"
        target = signed_target(method, path, body, params, now=self._now)
        status = 401
        match rng.randrange(9):
            case 0:
                at = target.index("auth_signature=") + 15 + rng.randrange(64)
                other = "0" if target[at] != "0" else "1"
                target = target[:at] + other + target[at + 1 :]
            case 1:
                name = rng.choice(["auth_key", "auth_timestamp", "auth_version", "auth_signature"])
                target = re.sub(rf"{name}=[^&]*&?", "", target)
            case 2:
                stamp = self._now + rng.choice([-700, 700, -(10**9), 10**12])
                target = signed_target(method, path, body, params, now=stamp)
            case 3:
                target = signed_target(method, path, body, params, now=self._now, app=PLAIN)
            case 4:
                target = target.replace(f"auth_key={APP.key}", f"auth_key={rng.randrange(10**6)}")
                status = 404
            case 5:
                target, status = path, 400
            case 6:
                target += "&" + rng.choice(["x=1", "limit=1000", "a", "%C3%A9=1"])
                status = 400 if "limit=1000" in target and "limit=5" in target else 401
            case 7:
                target += rng.choice(["&%ff=1", "&a=%80", "&auth_version=1.0"])
                status = 400
            case _ if body is not None:
                body += b" "
            case _:
                md5 = {"body_md5": "d41d8cd98f00b204e9800998ecf8427e"}
                target = signed_target(method, path, None, {**params, **md5}, now=self._now)
        return Attempt(self._http(method, target, body), status)

    def _place(self, rng: random.Random) -> Attempt:
        """Channels, messages and paths that are not there or cannot be."""
        tag = self.serial.split(":")[1]
        kind = rng.randrange(4)
        if kind == 0:
            name = rng.choice(["a b", "a/b", "\u00e9", "a" * 201, "\0", "*", "a\nb", "%41", "'--"])
            rest = rng.choice(["", "/history", "/history/state", f"/messages/{quote(self.serial)}"])
            return Attempt(
                self._signed("GET", f"/channels/{quote(name, safe='')}{rest}", None), 400
            )
        if kind == 1:
            serial = rng.choice(["s" * 129, "a b", "\t", "a\u2003b", "\n", "\u00e9" * 65])
            path = message_path(ROOM, serial) + rng.choice(["", "/versions", "/summary"])
            return Attempt(self._signed("GET", path, None), 400)
        if kind == 2:
            serial = rng.choice(
                [
                    *("x", "0", "-1", ":", "::", "a:b:c", "'; DROP TABLE log", "\0", "%", "\u00e9"),
                    *(f"{'0' * 20}:{tag}:{n:020d}" for n in (0, 1, 2**63 - 1, 2**63, 10**20 - 1)),
                    *(f"{'9' * 20}:{tag}:{self.serial[-20:]}", self.serial[:-1], self.serial + "0"),
                    *("\u0661" * 20 + f":{tag}:{'0' * 20}", self.serial.upper() + "x"),
                ]
            )
            if " " in serial:
                serial = serial.replace(" ", "_")
            path = message_path(ROOM, serial)
            if rng.random() < 0.5:
                path += rng.choice(["", "/versions", "/summary"])
                return Attempt(self._signed("GET", path, None), 404)
            path += rng.choice(["/append", "/update", "/delete"])
            return Attempt(self._signed("POST", path, b'{"data":"x","op_id":"o"}'), 404)
        if rng.random() < 0.3:
            path, _ = rng.choice(self.gets())
            return Attempt(self._signed(rng.choice(["PUT", "PATCH", "DELETE"]), path, b"{}"), 405)
        path = rng.choice(
            [
                *("/", "/nothing", "/channels/", "/channels//history", "/event", "/events/x"),
                *("/channels/%ff", "/channels/%C3", f"{message_path(ROOM, self.serial)}/other"),
                *("/../healthz", "/channels/a/messages", "/channels/a/messages/"),
            ]
        )
        return Attempt(self._signed("GET", path, None), 404)

    def _query(self, rng: random.Random) -> Attempt:
        """Parameters that mean nothing."""
        message = f"{message_path(ROOM, self.serial)}/versions"
        history = f"{channel_path(ROOM)}/history"
        text = ["x", "-1", "1.5", "\u0661", "1e3", "", "\0", "0x1", " 1", "9" * 30]
        bad: list[tuple[str, str, list[str]]] = [
            (message, "limit", ["0", *text[:-1]]),
            (message, "direction", ["backwards", "", "NEWEST_FIRST", "\0"]),
            (message, "cursor", ["", "s" * 129, "a b", "x", f"{'0' * 20}:x:{'9' * 20}"]),
            (history, "limit", ["0", *text]),
            (history, "direction", ["", "up", "\0"]),
            (history, "cursor", ["", "x", "e30", "=" * 9, "eyJ2IjoxfQ", "\u00e9", "A" * 17_000]),
            *(
                (history, name, text)
                for name in ("start_serial", "end_serial", "start_time_ms", "end_time_ms")
            ),
            ("/channels", "info", ["user_count"]),
            (channel_path(ROOM), "info", ["user_count"]),
        ]
        path, name, values = rng.choice(bad)
        params: Json = {name: rng.choice(values)}
        if rng.random() < 0.1:
            path, params = history, {"start_serial": 5, "end_serial": 4}
        return Attempt(self._signed("GET", path, None, **params), 400)

    def _line(self, rng: random.Random) -> Attempt:
        """Requests that HTTP itself does not know."""
        line = rng.choice(
            [
                *("GET", "GET / HTTP/9.9", "\0 / HTTP/1.1"),
                *("NONSENSE / HTTP/1.1", "get / HTTP/1.1", "{} {} {}", "GET / HTTP/1.1 x"),
            ]
        )
        headers = rng.choice(
            ["host: x", "content-length: x", "content-length: -1", "a\0: b", ": b"]
        )
        if line == "GET / HTTP/1.1" or rng.random() < 0.5:
            line, headers = "POST /x HTTP/1.1", rng.choice(["content-length: x", "a b: c", "\0: c"])
        return Attempt(f"{line}\r\n{headers}\r\n\r\n".encode(), 400)


def check_answer(answer: Answer, what: object) -> None:
    """Every refusal is the envelope, with the status it came with, and tells nothing else."""
    assert answer.status != 500, what
    assert answer.headers["content-type"].startswith("application/json"), (answer, what)
    body = answer.json
    assert not LEAK.search(answer.body.decode()), (answer, what)
    assert (
        {"error", "code", "status"}
        <= body.keys()
        <= {"error", "code", "status", "ai_code", "index"}
    )
    assert body["status"] == answer.status, (answer, what)
    assert body["code"] in CODES[answer.status], (answer, what)
    assert isinstance(body["error"], str)
    assert 0 < len(body["error"]) < 600


async def send_requests(node: ChannelsNode, serial: str, number: int, count: int) -> Counter[str]:
    """So many refused requests over one connection at a time."""
    rng = random.Random(1000 + number)
    requests = Requests(serial, time.time())
    client = RawClient(lambda: node.port)
    seen: Counter[str] = Counter()
    for _ in range(count):
        attempt = requests.make(rng)
        try:
            answer = await client.send_bytes(attempt.request)
        except Exception as error:
            raise AssertionError(attempt.request[:300]) from error
        assert answer.status == attempt.status, (answer, attempt.request[:400])
        check_answer(answer, attempt.request[:400])
        seen[f"HTTP {answer.status}"] += 1
    client.close()
    return seen


async def send_too_much(node: ChannelsNode) -> Counter[str]:
    """Bodies and heads beyond their limits."""
    client = RawClient(lambda: node.port)
    seen: Counter[str] = Counter()
    large = json.dumps({"name": "n", "channel": ROOM, "data": "x" * 102_401})
    for body in (large, "x" * 10_485_761):
        target = signed_target("POST", f"/apps/{APP.id}/events", body.encode(), {}, now=time.time())
        answer = await client.send("POST", target, body.encode())
        assert answer.status == 413
        check_answer(answer, "too large")
        seen["HTTP 413"] += 1
    answer = await client.send("GET", f"/apps/{APP.id}/channels?{'x' * 40_000}")
    assert answer.status == 431
    check_answer(answer, "head")
    seen["HTTP 431"] += 1
    client.close()
    return seen


# The test of both.


async def live(peer: Peer, done: asyncio.Event) -> int:
    """A neighbour that goes about its business, and hears nothing that is not for it."""
    beats = 0
    while not done.is_set():
        await peer.quiet()
        beats += 1
        await asyncio.sleep(0.05)
    return beats


@asynccontextmanager
async def prepared(tmp_path: Path) -> AsyncIterator[tuple[ChannelsNode, str]]:
    """A server with a message to attack, and its serial."""
    async with channels_server(tmp_path) as node:
        ack = await node.api.publish(ROOM, "text")
        await node.api.mutate("append", ROOM, ack["message_serial"], data=" more", op_id="first")
        yield node, ack["message_serial"]


async def stored(node: ChannelsNode) -> tuple[Any, ...]:
    """Everything that a refused request must leave alone."""
    store = node.server.store
    floors = await store.rows("channels_channel", (f"channels/{APP.id}/{ROOM}", 2**62))
    return await store.head(), await store.dedupe_count(), tuple(map(tuple, floors))


async def test_nothing_malformed_gets_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """19,500 broken frames and requests: each its own refusal, log and neighbours as they were."""
    caplog.set_level(logging.CRITICAL, "uvicorn.error")  # it tells of every malformed request
    async with (
        prepared(tmp_path) as (node, serial),
        node.v2() as neighbour,
        node.v1() as old_neighbour,
    ):
        for peer in (neighbour, old_neighbour):
            await peer.subscribe(ROOM)
            await peer.subscribe(PRIVATE)
        before = await stored(node)
        done = asyncio.Event()
        async with asyncio.TaskGroup() as neighbouring:
            beats = [
                neighbouring.create_task(live(peer, done)) for peer in (neighbour, old_neighbour)
            ]
            async with asyncio.TaskGroup() as attacking:
                tasks = [
                    *(
                        attacking.create_task(send_known(node, n, FRAMES // SOCKETS))
                        for n in range(SOCKETS)
                    ),
                    attacking.create_task(send_damaged(node, 5, DAMAGED)),
                    *(
                        attacking.create_task(send_requests(node, serial, n, REQUESTS // CLIENTS))
                        for n in range(CLIENTS)
                    ),
                    attacking.create_task(end_sockets(node)),
                    attacking.create_task(send_too_much(node)),
                ]
            done.set()
        assert min(beat.result() for beat in beats) > 3
        seen = sum((task.result() for task in tasks), Counter[str]())
        assert seen.total() >= FRAMES + DAMAGED + REQUESTS
        assert seen.keys() >= {*map(str, ERRORS), "ignored", "resume_failed", "HTTP 405"}
        assert await stored(node) == before, "nothing was stored"
        assert len(node.surface.service.hub.clients(APP.id)) == 2, "no socket is left"
        item = await node.api.item(ROOM, serial)
        assert item["data"] == "text more"
        await node.api.publish(ROOM, "after", name="after")
        for peer in (neighbour, old_neighbour):
            assert (await peer.expect("after", ROOM))["data"] == "after"
        answer = await node.client.get(f"{node.server.url}/healthz")
        assert answer.json()["ready"] is True
        print(dict(seen))  # noqa: T201


# What schemathesis makes of the document.


def load_schemathesis() -> Any:
    """The library, whose imports warn of things that are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import schemathesis
        import schemathesis.checks
        import schemathesis.openapi
    return schemathesis


class Signature:
    """A `requests` authentication: signs what is about to be sent."""

    def __call__(self, request: Any) -> Any:
        """Replace the parameters of the signature by correct ones."""
        parts = urlsplit(request.url)
        params = {
            name: value
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
            if not name.startswith("auth_") and name != "body_md5"
        }
        body = request.body
        if isinstance(body, str):
            request.body = body = body.encode()
        if request.method == "POST" and body is None:
            body = b""
        target = signed_target(request.method, parts.path, body, params, now=time.time())
        request.url = f"{parts.scheme}://{parts.netloc}{target}"
        return request


class Explorer:
    """Runs schemathesis against the server, from a thread of its own."""

    def __init__(self, node: ChannelsNode, document: Json, serial: str, examples: int) -> None:
        self.seen: Counter[str] = Counter()
        self._node = node
        self._document = document
        self._serial = serial
        self._examples = examples

    def run(self) -> None:
        """Every operation of the app's API, with good and with bad data."""
        library = load_schemathesis()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schema = library.openapi.from_dict(self._document)
            library.auths.unregister()
            for found in schema.get_all_operations():
                operation = found.ok()
                if operation.path.startswith("/apps/"):
                    for mode in library.GenerationMode:
                        self._attack(library, operation, mode)

    def _attack(self, library: Any, operation: Any, mode: Any) -> None:
        import requests
        from schemathesis.specs.openapi.checks import (
            content_type_conformance,
            response_schema_conformance,
            status_code_conformance,
        )

        session = requests.Session()
        checks = [
            library.checks.not_a_server_error,
            content_type_conformance,
            response_schema_conformance,
            status_code_conformance,
        ]

        @seed(7)
        @settings(
            max_examples=self._examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attack(case: Any) -> None:
            self._fill_in(case)
            before = self._node.server.committer.tail.position
            response = case.call(
                base_url=self._node.server.url, session=session, auth=Signature(), timeout=10
            )
            case.validate_response(response, checks=checks)
            found = {name.lower(): value[0] for name, value in response.headers.items()}
            answer = Answer(response.status_code, found, response.content)
            if answer.status >= 300:
                check_answer(answer, (case, response.request.url))
                assert self._node.server.committer.tail.position == before, "refused, yet stored"
            self.seen[f"{mode.value} {answer.status}"] += 1

        attack()
        session.close()

    def _fill_in(self, case: Any) -> None:
        """Let half of the requests find what they are about."""
        path = case.path_parameters or {}
        if not isinstance(path, dict):
            return
        path["app_id"] = APP.id
        if self.seen.total() % 2:
            for name, value in (("channel", ROOM), ("message_serial", self._serial)):
                if name in path:
                    path[name] = value


async def test_the_document_describes_what_the_server_does(tmp_path: Path) -> None:
    """500 signed requests out of the OpenAPI document: no 5xx, answers as the document says."""
    async with prepared(tmp_path) as (node, serial), node.v2() as neighbour:
        document = (await node.client.get(f"{node.server.url}/openapi.json")).json()
        operations = sum(
            len(methods) for path, methods in document["paths"].items() if path.startswith("/apps/")
        )
        tester = Explorer(node, document, serial, CASES // operations // 2 + 1)
        await asyncio.to_thread(tester.run)
        assert tester.seen.total() >= CASES * 0.9, tester.seen
        assert tester.seen["positive 200"] > 50
        await neighbour.quiet()
        assert (await node.client.get(f"{node.server.url}/healthz")).json()["ready"] is True
        print(dict(tester.seen))  # noqa: T201
