"""Malformed messages by the thousand: the right refusal each time, and nothing else happens."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from support.sync.peer import (
    EVENT,
    TREE,
    Peer,
    act,
    connected,
    envelope,
    note,
    open_peer,
    outcome,
    push,
    sync_server,
    token,
)

MESSAGES = 4_000 * int(os.environ.get("TIDELOG_TEST_SOAK_FUZZ", "1"))
"""`scripts/soak` sends more."""
CONNECTIONS = 4
WINDOW = 64
HTTP_MESSAGES = 600
CLOSES = {
    "auth_failed": 4401,
    "protocol_version_unsupported": 4406,
    "profile_unsupported": 4407,
}
OPEN = {"bad_request", "forbidden"}
STATUSES = {
    "bad_request": 400,
    "auth_failed": 401,
    "forbidden": 403,
    "protocol_version_unsupported": 426,
}
REJECTED = "a result that rejects"


class Attempt(NamedTuple):
    """A frame and what must be answered to it: an error code, or `REJECTED`."""

    data: str | bytes
    expected: str


Place = tuple[Any, ...]


def valid(rng: random.Random) -> dict[str, Any]:
    """A message that an active connection would be answered kindly to."""
    items: list[dict[str, Any]] = [
        note(f"i{rng.randrange(9)}", "p", data={"a": [1, {"b": "text"}]}),
        push("t", "n", parent="_root", position={"after": "x"}),
        act("u", "set", value={"k": [1, None, True]}),
    ]
    sync = {"partitions": ["p", "q"], "since_committed_id": 3, "limit": 60}
    kind, payload = rng.choice(
        [
            ("heartbeat", {}),
            ("sync", sync),
            ("sync", {**sync, "subscription_partitions": ["p"]}),
            ("submit_events", {"events": [items[0]]}),
            ("submit_events", {"events": rng.sample(items, 2)}),
        ]
    )
    return dict(json.loads(envelope(kind, payload, msg_id=f"m{rng.randrange(10**6)}")))


def required(message: dict[str, Any]) -> list[tuple[Place, set[type]]]:
    """Places that must be there, and the types that may be."""
    number = {int, float}
    places: list[tuple[Place, set[type]]] = [
        (("type",), {str}),
        (("msg_id",), {str}),
        (("timestamp",), number),
        (("payload",), {dict}),
        (("protocol_version",), {str}),
    ]
    payload = message["payload"]
    if message["type"] == "sync":
        places += [(("payload", "partitions"), {list})]
        places += [(("payload", "since_committed_id"), number)]
    for index in range(len(payload.get("events", ()))):
        at = ("payload", "events", index)
        places += [
            (("payload", "events"), {list}),
            ((*at, "id"), {str}),
            ((*at, "partitions"), {list}),
            ((*at, "event"), {dict}),
            ((*at, "event", "type"), {str}),
            ((*at, "event", "payload"), {dict}),
        ]
    return places


def typed(message: dict[str, Any]) -> list[tuple[Place, set[type]]]:
    """Places that may be absent or whose elements have a type."""
    places = required(message)
    if message["type"] == "sync":
        places += [(("payload", "limit"), {int, float}), (("payload", "partitions", 0), {str})]
        places += [(("payload", "subscription_partitions"), {list})]
    for index in range(len(message["payload"].get("events", ()))):
        places += [(("payload", "events", index), {dict})]
        places += [(("payload", "events", index, "partitions", 0), {str})]
    return places


def holder(message: Any, place: Place) -> Any:
    """The container of a place."""
    for key in place[:-1]:
        message = message[key]
    return message


WRONG: list[Any] = [None, True, False, 7, -1.5, "text", [], {}, [1], {"a": 1}, [[]], [None]]


def drop(rng: random.Random, message: dict[str, Any]) -> None:
    """Leave out something required."""
    place, _ = rng.choice(required(message))
    del holder(message, place)[place[-1]]


def rename(rng: random.Random, message: dict[str, Any]) -> None:
    """Call something required by another name."""
    place, _ = rng.choice(required(message))
    members, name = holder(message, place), place[-1]
    other = rng.choice([f"{name}s", name.upper(), f" {name}", name[:-1], f"{name}\0", "x"])
    members[other] = members.pop(name)


def retype(rng: random.Random, message: dict[str, Any]) -> None:
    """Give something a type it cannot have."""
    place, types = rng.choice(typed(message))
    values = [value for value in WRONG if type(value) not in types]
    if types == {list}:
        values += [[1], [None], [{}]]
    holder(message, place)[place[-1]] = rng.choice(values)


def misvalue(rng: random.Random, message: dict[str, Any]) -> None:
    """The right type with a value that no message can have."""
    choices: list[tuple[Place, Any]] = [
        (("type",), rng.choice(["", "Sync", "connected", "event_broadcast", "\0", "x" * 300])),
        (("msg_id",), ""),
        (("protocol_version",), rng.choice(["", "1", "1.0 ", "one.zero", "1.0\n", "1.0.0"])),
        (("type",), "connect"),
    ]
    payload = message["payload"]
    if message["type"] == "sync":
        choices += [
            (("payload", "partitions"), rng.choice([[], [""], ["p" * 129]])),
            (("payload", "since_committed_id"), rng.choice([-1, 0.5, -(10**30)])),
            (("payload", "limit"), 1.5),
            (("payload", "subscription_partitions"), rng.choice([[""], ["\u00e9" * 65]])),
        ]
    if "events" in payload:
        item = payload["events"][0]
        choices += [
            (("payload", "events"), rng.choice([[], [item] * 2, [item] * 101, [item, 5]])),
            (("payload", "events", 0, "id"), rng.choice(["", "x" * 129, "\U0001f600" * 33])),
            (("payload", "events", 0, "partition"), rng.choice(["other", 5, None, ""])),
        ]
    place, value = rng.choice(choices)
    holder(message, place)[place[-1]] = value


def poison(rng: random.Random, message: dict[str, Any]) -> str:
    """Text with something in it that is no JSON, or not strictly."""
    places: list[Place] = []

    def walk(value: Any, place: Place) -> None:
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in children:
            places.append((*place, key))
            if isinstance(child, dict | list):
                walk(child, (*place, key))

    walk(message, ())
    place = rng.choice(places)
    holder(message, place)[place[-1]] = "@@"
    depth = rng.choice([65, 200, 3000])
    bad = [
        *("NaN", "Infinity", "-Infinity", "1e999", "-1e400", "9" * 4301, "01", "1.", ".5", "+1"),
        *('"\\ud800"', '"\\udfff\\ud800"', '"a\\ud83d"', '"\\x"', '"\t"', "'a'", "nul", "//"),
        *('{"k":1,"k":1}', '{"k":1,"\\u006b":2}', '{"a":{"b":[{"c":1,"c":1}]}}', "[1,]", "{,}"),
        *("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth),
    ]
    return json.dumps(message).replace('"@@"', rng.choice(bad), 1)


def twice(rng: random.Random, message: dict[str, Any]) -> str:
    """A member of the envelope given twice."""
    text = json.dumps(message)
    name = rng.choice(list(message))
    return f'{{"{name}":{json.dumps(message[name])},{text[1:]}'


def cut(rng: random.Random, message: dict[str, Any]) -> str:
    """Text that ends too early, or too late."""
    text = json.dumps(message)
    if rng.random() < 0.2:
        return text + rng.choice(["}", "{}", " null", ",", "\0"])
    return text[: rng.randrange(len(text))]


def noise(rng: random.Random, message: dict[str, Any]) -> str | bytes:
    """Anything at all, and good messages as the wrong kind of frame."""
    if rng.random() < 0.3:
        return json.dumps(message).encode()
    if rng.random() < 0.5:
        return rng.randbytes(rng.randrange(200))
    letters = '{}[]":,0123456789eE+-.\\untrue\u00e9\U0001f600 \0'
    return "\x01" + "".join(rng.choice(letters) for _ in range(rng.randrange(100)))


CHANGES: list[Callable[[random.Random, dict[str, Any]], None]] = [drop, rename, retype, misvalue]
WRITINGS: list[Callable[[random.Random, dict[str, Any]], str | bytes]] = [poison, twice, cut, noise]


def other_fault(rng: random.Random, message: dict[str, Any]) -> Attempt:
    """A message that is refused for what it wants."""
    payload = message["payload"]
    match rng.randrange(6):
        case 0:
            message["protocol_version"] = rng.choice(["2.0", "1.1", "0.0", "99999999999.0"])
            return Attempt(json.dumps(message), "protocol_version_unsupported")
        case 1:
            payload["client_id"] = rng.choice(["other", "", 5, None, []])
            return Attempt(json.dumps(message), "auth_failed")
        case 2:
            items = [note("x"), {**note("y"), "client_id": "other"}]
            return Attempt(envelope("submit_events", {"events": items}), "auth_failed")
        case 3:
            names = rng.sample(["p", "x", "\0", "P"], 3)
            sync = {"partitions": names, "since_committed_id": 0}
            return Attempt(envelope("sync", sync), "forbidden")
        case _:
            return Attempt(envelope("submit_events", {"events": [rejected_item(rng)]}), REJECTED)


def rejected_item(rng: random.Random) -> dict[str, Any]:
    """An item of the right shape that no profile takes."""
    item = note("r")
    event: dict[str, Any] = item["event"]
    match rng.randrange(6):
        case 0:
            item["partitions"] = rng.choice([[], ["p", ""], ["p" * 129], ["x"], ["p", "x"]])
        case 1:
            event["type"] = rng.choice(["init", "", "Event", "\0"])
        case 2:
            event["payload"]["data"] = [[2**53], {"a": -(10**100)}]
        case 3:
            event["payload"] = rng.choice([{}, {"schema": "any"}, {"schema": 5, "data": 1}])
        case 4:
            event["payload"]["meta"] = rng.choice([None, 5, []])
        case _:
            event["payload"][rng.choice(["x", "", "\0", "target"])] = 1
    return item


def attempts(seed: int, count: int) -> list[Attempt]:
    """So many refused messages, reproducibly."""
    rng = random.Random(seed)
    made: list[Attempt] = []
    for _ in range(count):
        message = valid(rng)
        kind = rng.random()
        if kind < 0.08:
            made.append(other_fault(rng, message))
        elif kind < 0.55:
            rng.choice(CHANGES)(rng, message)
            made.append(Attempt(json.dumps(message), "bad_request"))
        elif kind < 0.9:
            made.append(Attempt(rng.choice(WRITINGS)(rng, message), "bad_request"))
        else:
            rng.choice(CHANGES)(rng, message)
            made.append(Attempt(rng.choice(WRITINGS)(rng, deepcopy(message)), "bad_request"))
    return made


def check(message: dict[str, Any], attempt: Attempt) -> None:
    """An answer is well formed and the one that was due."""
    shown = attempt.data[:300]
    assert message.keys() == {"type", "msg_id", "timestamp", "payload", "protocol_version"}
    payload = message["payload"]
    if attempt.expected == REJECTED:
        assert message["type"] == "submit_events_result", (payload, shown)
        assert [result["status"] for result in payload["results"]] == ["rejected"], shown
        assert payload["results"][0]["errors"], shown
        return
    assert message["type"] == "error", (payload, shown)
    assert payload.keys() <= {"code", "message", "details"}
    assert payload["code"] == attempt.expected, (payload, shown)
    assert isinstance(payload["message"], str)
    assert 0 < len(payload["message"]) < 300
    assert isinstance(payload.get("details", {}).get("request_msg_id", ""), str)


def narrow(client_id: str) -> str:
    """A token that opens p and q only."""
    return token(client_id, prefixes=[], allowed_partitions=["p", "q"])


async def play(url: str, client_id: str, plan: list[Attempt]) -> Counter[str]:
    """Send everything, in windows, over as many connections as it takes."""
    seen: Counter[str] = Counter()
    position = 0
    while position < len(plan):
        async with open_peer(url) as peer:
            payload = {
                "token": narrow(client_id),
                "client_id": client_id,
                "supported_profiles": [EVENT],
            }
            await peer.send("connect", payload)
            await peer.expect("connected")
            ids = {peer.received[0]["msg_id"]}
            closing = False
            while position < len(plan) and not closing:
                window: list[Attempt] = []
                while len(window) < WINDOW and position < len(plan) and not closing:
                    window.append(plan[position])
                    closing = plan[position].expected in CLOSES
                    position += 1
                for attempt in window:
                    await peer.socket.send(attempt.data)
                for attempt in window:
                    message = await peer.receive()
                    check(message, attempt)
                    assert message["msg_id"] not in ids
                    ids.add(message["msg_id"])
                    seen[attempt.expected] += 1
                peer.received.clear()
            if closing:
                assert await peer.close_code() == CLOSES[plan[position - 1].expected]
            else:
                assert await peer.is_quiet()
    return seen


async def strangers(url: str, seed: int) -> Counter[str]:
    """Handshakes that fail, and messages before any handshake."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for number in range(150):
        good = {"token": narrow("s"), "client_id": "s"}
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"token": rng.choice([None, 5, [], {}])}, "bad_request"),
            ({"client_id": rng.choice([None, 5, "", {}])}, "bad_request"),
            ({"supported_profiles": rng.choice([None, 5, "x", [1], {}])}, "bad_request"),
            ({"last_committed_id": rng.choice([-1, "1", 0.5, True, []])}, "bad_request"),
            ({"required_profile": rng.choice([None, 1, []])}, "bad_request"),
            ({"token": rng.choice(["", ".", "a.b.c", "\0", token("other")])}, "auth_failed"),
            ({"client_id": "other"}, "auth_failed"),
            ({"supported_profiles": rng.choice([[], ["x"]])}, "profile_unsupported"),
            ({"required_tree_policy": "loose"}, "profile_unsupported"),
        ]
        change, expected = wrong[number % len(wrong)]
        async with open_peer(url) as peer:
            early = valid(rng)
            if early["type"] == "heartbeat":
                early["type"] = "disconnect"
            for attempt in (
                Attempt(json.dumps(early), "bad_request"),
                Attempt(envelope("connect", {**good, **change}), expected),
            ):
                await peer.socket.send(attempt.data)
                check(await peer.receive(), attempt)
                seen[attempt.expected] += 1
            if expected in CLOSES:
                assert await peer.close_code() == CLOSES[expected]
            else:
                assert await peer.is_quiet()
    return seen


async def by_http(url: str, plan: list[Attempt]) -> Counter[str]:
    """The same over HTTP, where the error has a status."""
    seen: Counter[str] = Counter()
    headers = {"authorization": f"Bearer {narrow('h')}", "x-sync-profile": EVENT}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, verify=False) as http:
        for number, (data, expected) in enumerate(plan):
            if isinstance(data, bytes):
                data = b"\xff" + data  # noqa: PLW2901 - there are no binary frames over HTTP
            route = "submit" if expected == REJECTED or number % 2 else "sync"
            answer = await http.post(f"/sync/v1/{route}", content=data)
            if expected == "forbidden" and route == "submit":
                expected = "bad_request"  # noqa: PLW2901 - the route takes no syncs
            check(answer.json(), Attempt(data, expected))
            assert answer.status_code == STATUSES.get(expected, 200)
            seen[expected] += 1
    return seen


async def live(peer: Peer, done: asyncio.Event) -> int:
    """A neighbour that goes about its business."""
    beats = 0
    while not done.is_set():
        assert await peer.is_quiet()
        assert (await peer.sync("p"))["sync_to_committed_id"] == 2
        peer.received.clear()
        beats += 1
        await asyncio.sleep(0.05)
    return beats


async def test_nothing_malformed_gets_through(tmp_path: Path) -> None:
    """Thousands of broken messages: each the specified error and effect, the log as it was."""
    async with (
        # One peer stays silent throughout, however long a busy machine takes.
        sync_server(tmp_path, max_in_flight_drafts=100_000, heartbeat_timeout_ms=600_000) as node,
        connected(node.ws_url, "neighbour") as neighbour,
        connected(node.ws_url, "tree", TREE) as tree,
    ):
        await neighbour.submit(note("before"))
        await tree.submit(push("before-too", "n"))
        assert await node.counts() == (2, 2)
        done = asyncio.Event()
        each = MESSAGES // CONNECTIONS
        async with asyncio.TaskGroup() as neighbouring:
            beats = neighbouring.create_task(live(neighbour, done))
            async with asyncio.TaskGroup() as attacking:
                tasks = [
                    *(
                        attacking.create_task(play(node.ws_url, f"c{n}", attempts(n, each)))
                        for n in range(CONNECTIONS)
                    ),
                    attacking.create_task(strangers(node.ws_url, 99)),
                    *(
                        attacking.create_task(by_http(node.server.url, attempts(70 + n, 60)))
                        for n in range(HTTP_MESSAGES // 60)
                    ),
                ]
            done.set()
        assert beats.result() > 3
        counts = [task.result() for task in tasks]
        seen: Counter[str] = sum(counts, Counter())
        assert seen.total() == MESSAGES + HTTP_MESSAGES + 300
        assert seen.keys() == {*CLOSES, *OPEN, REJECTED}
        assert min(seen.values()) > 30, seen
        assert await node.counts() == (2, 2), "nothing was stored"
        assert node.service._subscribers == {}
        assert outcome(await neighbour.submit(note("after"))) == ["committed"]
        assert outcome(await tree.submit(push("t", "m", parent="n"))) == ["committed"]
