"""A server that comes and goes, what random actors asked of it, and what must have come of it.

What a message looks like is derived here a second time, from requests and from versions; the tests
compare every view that the server gives with it.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

from support.channels.bodies import MAKERS
from support.channels.peer import ChannelsNode, channel_path, channels_server, message_path, unique
from support.channels.raw import ABSENT, LOST, PAUSE_SECONDS, Json, RawClient, View, after, of_item
from tidelog.testing.clock import FakeClock

MAX_TEXT = 300
MAX_APPENDS = 25
MAX_OPEN = 3

ACTIONS = ("create", "append", "update", "delete")
WEIGHTS = (2, 9, 3, 2)


class Op(NamedTuple):
    """A request; its tag stands in the version it makes, so that every version can be traced."""

    tag: str
    channel: str
    action: str
    serial: str
    """Of the message; empty for a create."""
    body: Json
    is_keyed: bool
    is_invalid: bool
    """Nothing can make it acceptable."""


class ServerGone(Exception):  # noqa: N818 - what happened, not an error of the test
    """It is shutting down."""


class World:
    """A server that comes and goes, what was asked of it and what it acknowledged."""

    def __init__(self, seed: int, location: str, data_dir: Path, clock: FakeClock) -> None:
        self.rng = random.Random(seed)
        self.channels = [unique("room"), unique("private-ai:x;y")]
        self.clock = clock
        self.ops: dict[str, Op] = {}
        self.acknowledged: dict[str, Json] = {}
        self.refused: Counter[int] = Counter()
        self.is_refused: set[str] = set()
        self.tags: dict[str, str] = {}
        """Version serial to the tag of the request that made it."""
        self.steps = 0
        """What actors have done, whatever came of it."""
        self.retries = 0
        self.lost = 0
        self.messages: dict[str, list[str]] = {channel: [] for channel in self.channels}
        self.retryable: list[str] = []
        self.is_purging = False
        """Whether a message may be gone."""
        self.gone: set[str] = set()
        """Messages that were purged."""
        self.up = asyncio.Event()
        self.node: ChannelsNode | None = None
        self.options: Json = {
            "ai_transport": {
                "max_accumulated_message_bytes": MAX_TEXT,
                "max_appends_per_message": MAX_APPENDS,
                "max_open_streaming_messages_per_channel": MAX_OPEN,
            },
            "history": {"retention_seconds": 0, "max_page_size": 500},
            "max_cached_text_bytes": self.rng.choice([1, 2500, 2**20]),
        }
        self._seed = seed
        self._location = location
        self._data_dir = data_dir

    def port(self) -> int:
        """Where the server is, if it is anywhere."""
        if self.node is None:
            raise ConnectionError("the server is down")
        return self.node.port

    def url(self) -> str:
        """The same for sockets."""
        return f"ws://127.0.0.1:{self.port()}"

    def client(self) -> RawClient:
        """A client that finds the server wherever it is."""
        return RawClient(self.port, now=lambda: self.clock.now_ms() / 1000)

    @asynccontextmanager
    async def running(self, **versioned: Any) -> AsyncIterator[ChannelsNode]:
        """The server for the length of the block; how much it keeps in memory varies."""
        recovery = {
            "max_buffer_size": 100_000,
            "buffer_ttl_seconds": self.rng.choice([0.001, 3600.0]),
        }
        async with channels_server(
            self._data_dir,
            self._location,
            clock=self.clock,
            connection_recovery=recovery,
            versioned_messages=versioned,
            **self.options,
        ) as node:
            self.node = node
            self.up.set()
            try:
                yield node
            finally:
                self.up.clear()
                self.node = None

    # Requests.

    def new(self, rng: random.Random) -> Op:
        """Something an actor could want, mostly possible."""
        channel = rng.choice(self.channels)
        known = self.messages[channel]
        tag = f"{self._seed}-{len(self.ops)}"
        action = rng.choices(ACTIONS, WEIGHTS)[0]
        if not known:
            action = "create"
        is_keyed = rng.random() < 0.7
        is_invalid = rng.random() < 0.08
        serial = "" if action == "create" else rng.choice(known[-5:])
        body = MAKERS[action](rng, tag)
        if action == "create":
            body["channel"] = channel
            if is_keyed:
                body["message_id"] = f"m-{tag}"
        elif is_keyed:
            body["op_id"] = f"o-{tag}"
        if is_invalid:
            serial = _spoil(rng, action, body, serial)
        op = Op(tag, channel, action, serial, body, is_keyed, is_invalid)
        self.ops[tag] = op
        return op

    async def post(self, client: RawClient, op: Op) -> tuple[int, Json] | None:
        """Status and answer; None if nobody will ever know."""
        path = "/events"
        if op.action != "create":
            path = f"{message_path(op.channel, op.serial)}/{op.action}"
        while True:
            await self.up.wait()
            try:
                answer = await client.request("POST", path, op.body)
            except LOST:
                answer = None
            if answer is not None and answer.status != 503:
                body = answer.json
                if op.action == "create" and answer.status == 200:
                    body = body["channels"][op.channel]
                return answer.status, body
            self.lost += 1
            if not op.is_keyed:
                return None
            await asyncio.sleep(PAUSE_SECONDS)

    async def do(self, client: RawClient, op: Op) -> None:
        """Ask, and note what is said."""
        answered = await self.post(client, op)
        if answered is None:
            return
        status, body = answered
        if status != 200:
            assert status in (400, 404, 413), (op, body)
            assert status != 404 or op.is_invalid or self.is_purging, (op, body)
            assert body["status"] == status
            assert body.keys() <= {"error", "code", "status", "ai_code"}
            self.refused[status] += 1
            self.is_refused.add(op.tag)
            return
        assert not op.is_invalid, (op, body)
        self.acknowledged[op.tag] = body
        if op.action == "create":
            assert body["message_serial"] == body["version_serial"]
            self.messages[op.channel].append(body["message_serial"])
        else:
            assert body["message_serial"] == op.serial
        if op.is_keyed:
            self.retryable.append(op.tag)

    async def again(self, client: RawClient, tag: str) -> None:
        """A retry gets the original's answer; another payload under its key is refused."""
        op, first = self.ops[tag], self.acknowledged[tag]
        answered = await self.post(client, op)
        assert answered is not None
        status, body = answered
        assert status == 200, (op, body)
        assert serials_of(body) == serials_of(first), (op, body, first)
        if op.action != "create":
            assert body["status"] == "duplicate"
        other = {**op.body, "data": f"not {tag}", "clear_fields": []}
        answered = await self.post(client, op._replace(body=other))
        assert answered is not None
        assert answered[0] == 400, answered
        assert "already used" in answered[1]["error"]
        self.retries += 1

    async def act(self, number: int, steps: int, *, reads: bool = True) -> None:
        """One actor: mostly writes, sometimes repeats itself or reads."""
        rng = random.Random(f"{self._seed}/{number}")
        with closing(self.client()) as client:
            for _ in range(steps):
                self.clock.advance(rng.choice([0, 0, 1, 10]))
                kind = rng.random()
                if kind < 0.1 and self.retryable:
                    await self.again(client, rng.choice(self.retryable))
                elif kind < 0.2 and reads:
                    await self._look(client, rng)
                else:
                    await self.do(client, self.new(rng))
                self.steps += 1

    async def _look(self, client: RawClient, rng: random.Random) -> None:
        """While others write: what GET shows is the fold of the versions up to it."""
        channel = rng.choice(self.channels)
        if not self.messages[channel]:
            return
        serial = rng.choice(self.messages[channel])
        await self.up.wait()
        try:
            answer = await client.request("GET", message_path(channel, serial))
            if answer.status == 503:
                return
            latest = of_item(answer.json["item"])
            versions = await self.versions(client, channel, serial, rng.choice([3, 100]))
        except (*LOST, ServerGone):
            return  # the end of the program checks it all
        known = [v for v in versions if v.delivery_serial <= latest.delivery_serial]
        assert fold_of(known) == latest

    # Reading.

    async def versions(
        self, client: RawClient, channel: str, serial: str, limit: int = 100
    ) -> list[View]:
        """All versions of a message, the oldest first, page by page."""
        path = f"{message_path(channel, serial)}/versions"
        views: list[View] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await client.request(
                "GET", path, limit=limit, direction="oldest_first", **cursor
            )
            if answer.status == 503:
                raise ServerGone
            assert answer.status == 200, answer
            page = answer.json
            views += [of_item(item) for item in page["items"]]
            for item in page["items"]:
                self._note_tag(item)
            if not page["has_more"]:
                return views
            assert len(page["items"]) == limit
            cursor = {"cursor": page["next_cursor"]}

    def _note_tag(self, item: Json) -> None:
        tag = item["version"].get("description", "")
        if item["action"] == "create":
            tag = item["name"].removeprefix("n-")
        self.tags[item["version"]["serial"]] = tag

    async def history(self, client: RawClient, channel: str, limit: int) -> list[Json]:
        """All rows, the oldest first, page by page."""
        path = f"{channel_path(channel)}/history"
        rows: list[Json] = []
        cursor: dict[str, str] = {}
        while True:
            page = await client.get(path, limit=limit, direction="oldest_first", **cursor)
            rows += page["items"]
            if not page["has_more"]:
                return rows
            cursor = {"cursor": page["next_cursor"]}


def _spoil(rng: random.Random, action: str, body: Json, serial: str) -> str:
    """Make a request that must be refused; returns the serial it shall name."""
    if action == "create":
        body.update(rng.choice([{"name": ""}, {"data": "x" * (MAX_TEXT + 1)}, {"name": "n" * 201}]))
        return serial
    kind = rng.randrange(4 if action == "append" else 3)
    if kind == 0:
        return f"1{serial[1:]}"  # another time: there is no such message
    if kind == 1:
        body["op_id"] = rng.choice(["", "o" * 65])
    elif action == "append":
        body["data"] = rng.choice(["", None, 5, {"a": 1}, "x" * (MAX_TEXT + 1)])
        body.pop("extras", None)
    else:
        body["data"] = "both"
        body["clear_fields"] = rng.choice([["data"], ["extras", "extras"], ["channel"]])
        if kind == 2 and body["clear_fields"] == ["extras", "extras"]:
            body.pop("extras", None)
    return serial


def serials_of(answer: Json) -> tuple[Any, ...]:
    """Which version an answer is about."""
    names = ("message_serial", "version_serial", "history_serial", "delivery_serial")
    return tuple(answer[name] for name in names)


# The model: what requests make of a message.


def _own(extras: Json) -> Json:
    """Extras without the runtime headers."""
    own = dict(extras)
    headers = {
        k: v for k, v in (own.pop("headers", None) or {}).items() if not k.startswith("sockudo_")
    }
    return {**own, "headers": headers} if headers else own


def status_of(extras: Json) -> str | None:
    """Of the stream that a message is, if it is one."""
    status: str | None = extras.get("ai", {}).get("transport", {}).get("status")
    return status


def _check_step(op: Op, before: View | None, version: View) -> None:
    """A version is what its request makes of its predecessor (channels 5.4, 5.5)."""
    body = op.body
    assert version.action == op.action
    if op.action == "create":
        data = body.get("data")
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        assert (version.name, version.data) == (body["name"], text)
        assert _own(version.extras) == _own(body.get("extras") or {})
        return
    assert before is not None
    assert before.message_serial == version.message_serial == op.serial
    cleared = body.get("clear_fields") or ()
    patch = dict(body)
    if op.action == "delete":
        patch.pop("name", None)
    name, data = before.name, before.data
    if op.action == "append":
        assert status_of(before.extras) not in ("complete", "cancelled"), "appended after the end"
        assert before.data == ABSENT or isinstance(before.data, str)
        data = ("" if before.data == ABSENT else before.data) + body["data"]
    else:
        name = None if "name" in cleared else patch.get("name") or name
        if patch.get("name") == "":
            name = ""
        data = ABSENT if "data" in cleared else data if patch.get("data") is None else body["data"]
    extras = _own(before.extras) if body.get("extras") is None else _own(body["extras"])
    assert version.name == name
    assert version.data == data, (op, before)
    assert _own(version.extras) == ({} if "extras" in cleared else extras)


def fold_of(versions: list[View]) -> View:
    """A message after all of these."""
    state: View | None = None
    for version in versions:
        state = after(state, version)
    assert state is not None
    return state


def check_requests(world: World, channel: str, versions: list[View]) -> None:
    """Every version stems from one request; acknowledged ones are there, refused ones are not."""
    latest: dict[str, View] = {}
    seen: set[str] = set()
    appends: Counter[str] = Counter()
    is_open: dict[str, bool] = {}
    for version in versions:
        tag = world.tags[version.version_serial]
        assert tag not in seen, "done twice"
        seen.add(tag)
        assert tag not in world.is_refused, world.ops[tag]
        op = world.ops[tag]
        assert op.channel == channel
        acknowledged = world.acknowledged.get(tag)
        if acknowledged is not None:
            assert serials_of(acknowledged) == serials_of(version._asdict())
        serial = version.message_serial
        before = latest.get(serial)
        latest[serial] = now = after(before, version)
        _check_step(op, before, now)
        appends[serial] += version.action == "append"
        is_open[serial] = status_of(version.extras) == "streaming"
        assert sum(is_open.values()) <= MAX_OPEN
        if isinstance(now.data, str) and now.data != ABSENT and version.action != "delete":
            assert len(now.data.encode()) <= MAX_TEXT
    assert all(count <= MAX_APPENDS for count in appends.values())
    missing = {
        tag for tag in world.acknowledged if tag not in seen and world.ops[tag].channel == channel
    }
    assert not missing
