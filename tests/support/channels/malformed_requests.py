"""Requests to the HTTP API of channels that must be refused, each with the status that is due."""

import json
import random
import re
from copy import deepcopy
from typing import Any, NamedTuple
from urllib.parse import quote

from support.channels.attacked import PRIVATE, ROOM
from support.channels.peer import APP, PLAIN, channel_path, message_path
from support.channels.raw import Json, signed_target
from support.malformed_json import BROKEN


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
                md5 = {"body_md5": "d41d8cd98f00b204e9800998ecf8427f"}
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
