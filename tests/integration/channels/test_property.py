"""Random programs of many actors against a server that is restarted under them.

What a message looks like is derived here a second time, from requests and from versions; every view
that the server gives of it must agree. `TIDELOG_TEST_SOAK_EXAMPLES` raises how many programs there
are, `TIDELOG_TEST_SOAK_STEPS` how long they are and `TIDELOG_TEST_SOAK_SEED` where they begin.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.asyncio.client import connect

from support.channel_bodies import MAKERS
from support.channels_peer import (
    APP,
    V2_QUERY,
    ChannelsNode,
    channel_auth,
    channel_path,
    channels_server,
    message_path,
    unique,
)
from support.channels_raw import (
    ABSENT,
    LOST,
    PAUSE_SECONDS,
    Follower,
    Json,
    RawClient,
    View,
    after,
    latest_of,
    of_frame,
    of_item,
    signed_target,
)
from tidelog.channels import states
from tidelog.testing.clock import FakeClock

PROGRAMS = max(1, int(os.environ.get("TIDELOG_TEST_SOAK_EXAMPLES", "20")) // 10)
STEPS = int(os.environ.get("TIDELOG_TEST_SOAK_STEPS", "50"))
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
ACTORS = 6
RESTARTS = 3
MAX_JOINERS = 16
MAX_TEXT = 300
MAX_APPENDS = 25
MAX_OPEN = 3
WINDOW_SECONDS = 25

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
        assert _serials(body) == _serials(first), (op, body, first)
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
        client = self.client()
        for _ in range(steps):
            self.clock.advance(rng.choice([0, 0, 1, 10]))
            kind = rng.random()
            if kind < 0.1 and self.retryable:
                await self.again(client, rng.choice(self.retryable))
            elif kind < 0.2 and reads:
                await self._look(client, rng)
            else:
                await self.do(client, self.new(rng))
        client.close()

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
        assert _folded(known) == latest

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
    """Make a request that must be refused; answers the serial it shall name."""
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


def _serials(answer: Json) -> tuple[Any, ...]:
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


def _status(extras: Json) -> str | None:
    status: str | None = extras.get("ai", {}).get("transport", {}).get("status")
    return status


def _check_step(op: Op, before: View | None, version: View) -> None:
    """A version is what its request makes of its predecessor (5.4, 5.5)."""
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
        assert _status(before.extras) not in ("complete", "cancelled"), "appended after the end"
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


def _folded(versions: list[View]) -> View:
    state: View | None = None
    for version in versions:
        state = after(state, version)
    assert state is not None
    return state


def _check_requests(world: World, channel: str, versions: list[View]) -> None:
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
            assert _serials(acknowledged) == _serials(version._asdict())
        serial = version.message_serial
        before = latest.get(serial)
        latest[serial] = now = after(before, version)
        _check_step(op, before, now)
        appends[serial] += version.action == "append"
        is_open[serial] = _status(version.extras) == "streaming"
        assert sum(is_open.values()) <= MAX_OPEN
        if isinstance(now.data, str) and now.data != ABSENT and version.action != "delete":
            assert len(now.data.encode()) <= MAX_TEXT
    assert all(count <= MAX_APPENDS for count in appends.values())
    missing = {
        tag for tag in world.acknowledged if tag not in seen and world.ops[tag].channel == channel
    }
    assert not missing


# Views.


class Joiner:
    """A late subscriber: the past by rewind, then live, for as long as its task runs."""

    def __init__(self, world: World, channel: str, *, is_full: bool) -> None:
        self.channel = channel
        self.is_full = is_full
        self.views: list[View] = []
        self.historical: int | None = None
        """Frames of the past; None until all of them are there."""
        self.held = 0
        """Frames that went live while it read the past."""
        self._world = world

    async def run(self) -> None:
        """Until cancelled."""
        mode = "full" if self.is_full else "delta"
        url = f"{self._world.url()}/app/{APP.key}?{V2_QUERY}&append_mode={mode}"
        async with connect(url, compression=None, max_size=None, close_timeout=0.2) as socket:
            opened = json.loads(await socket.recv())
            data = {"channel": self.channel, "rewind": {"count": 500}}
            if self.channel.startswith("private-"):
                socket_id = json.loads(opened["data"])["socket_id"]
                data["auth"] = channel_auth(socket_id, self.channel)
            await socket.send(json.dumps({"event": "sockudo:subscribe", "data": data}))
            async for message in socket:
                self._take(json.loads(message))

    def _take(self, frame: Json) -> None:
        if frame["event"] == "sockudo:rewind_complete":
            told = frame["data"]
            assert told["complete"], told
            assert told["historical_count"] + told["live_count"] == len(self.views), told
            self.historical = told["historical_count"]
            self.held = told["live_count"]
        elif "extras" in frame:
            self.views.append(of_frame(frame))

    async def check(self, task: asyncio.Task[None], folded: dict[str, View], head: int) -> None:
        """It holds what everybody holds, and was sent nothing twice and nothing too late."""
        async with asyncio.timeout(20):
            while self.historical is None or self._highest() < head:
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)
        past, live = self.views[: self.historical], self.views[self.historical :]
        assert [v.history_serial for v in past] == list(range(1, len(past) + 1))
        serials = [v.delivery_serial for v in live]
        assert serials == sorted(set(serials))
        shown = {v.message_serial: v.delivery_serial for v in past}
        assert all(v.delivery_serial > shown.get(v.message_serial, 0) for v in live), "twice"
        assert latest_of(self.views, is_full=self.is_full) == folded

    def _highest(self) -> int:
        return max((view.delivery_serial for view in self.views), default=0)


async def check_channel(
    world: World, client: RawClient, channel: str, everybody: "Everybody"
) -> None:
    """All views of a channel that nobody writes to any more."""
    followers = [pair for pair in everybody.followers if pair[0].channel == channel]
    rows = await world.history(client, channel, limit=7)
    assert [row["serial"] for row in rows] == list(range(1, len(rows) + 1))
    everything: list[View] = []
    folded: dict[str, View] = {}
    for row in rows:
        shown = of_item(row["message"])
        serial = shown.message_serial
        versions = await world.versions(client, channel, serial, limit=40)
        item = (await client.get(message_path(channel, serial)))["item"]
        assert item == row["message"]
        folded[serial] = _folded(versions)
        assert folded[serial] == shown, "GET is the fold of the versions"
        summary = await client.get(f"{message_path(channel, serial)}/summary")
        assert summary["versions"] == len(versions)
        assert summary["appends"] == sum(v.action == "append" for v in versions)
        everything += versions
    everything.sort(key=lambda version: version.delivery_serial)
    head = len(everything)
    assert [v.delivery_serial for v in everything] == list(range(1, head + 1))
    serials = [v.version_serial for v in everything]
    assert serials == sorted(set(serials))
    _check_requests(world, channel, everything)
    ids: list[list[str]] = []
    for follower, task in followers:
        await follower.reach(head, task)
        views = [of_frame(frame) for frame in follower.frames]
        assert [v.delivery_serial for v in views] == list(range(1, head + 1))
        assert latest_of(views, is_full=follower.is_full) == folded
        if not follower.is_full:
            assert views == everything, "frames and versions say the same"
        ids.append([frame["message_id"] for frame in follower.frames])
    assert len(set(ids[0])) == head, "message ids are unique"
    assert all(other == ids[0] for other in ids)
    last = {of_frame(f).message_serial: f["message_id"] for f in followers[0][0].frames}
    assert [row["message_id"] for row in rows] == [
        last[row["message"]["message_serial"]] for row in rows
    ]
    for joiner, task in everybody.join(world, channel):
        await joiner.check(task, folded, head)
    await check_open_streams(world, channel, folded)


async def check_open_streams(world: World, channel: str, folded: dict[str, View]) -> None:
    """The server counts the open streams that there are."""
    assert world.node is not None
    known = world.node.surface.service._states
    state = await known.load_channel(f"channels/{APP.id}/{channel}")
    assert state.open_streams == sum(_status(v.extras) == "streaming" for v in folded.values())
    known.release(state)


@pytest.fixture
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every boundary of folding, collapsing, reading and forgetting is crossed all the time."""
    monkeypatch.setattr(states, "UNFOLDED_VERSIONS", 5)
    monkeypatch.setattr(states, "UNFOLDED_BYTES", 48)
    monkeypatch.setattr(states, "_COLLAPSE_AT", 3)
    monkeypatch.setattr(states, "_COLLAPSE_TO", 1)
    monkeypatch.setattr(states, "VERSIONS_PER_READ", 4)
    monkeypatch.setattr(states, "MAX_IDLE_MESSAGES", 4)
    monkeypatch.setattr(states, "MAX_IDLE_CHANNELS", 1)


class Everybody:
    """The subscribers of a program."""

    def __init__(self, world: World) -> None:
        made = [
            Follower(world.url, channel, is_full=is_full, restless=restless)
            for channel in world.channels
            for is_full in (False, True)
            for restless in (None, random.Random(world.rng.random()))
        ]
        self.followers = [(each, asyncio.create_task(each.run())) for each in made]
        self.joiners: list[tuple[Joiner, asyncio.Task[None]]] = []
        self.held = 0
        """Frames that went live while a joiner read the past."""

    async def attached(self) -> None:
        """All followers have subscribed."""
        for follower, task in self.followers:
            await follower.reach(0, task)

    def join(self, world: World, channel: str) -> list[tuple[Joiner, asyncio.Task[None]]]:
        """Two more late joiners; answers all those of the channel."""
        for is_full in (False, True):
            joiner = Joiner(world, channel, is_full=is_full)
            self.joiners.append((joiner, asyncio.create_task(joiner.run())))
        return [pair for pair in self.joiners if pair[0].channel == channel]

    async def leave(self) -> None:
        """The late joiners are not needed any more."""
        await _end([task for _, task in self.joiners])
        self.held += sum(joiner.held for joiner, _ in self.joiners)
        self.joiners.clear()

    async def end(self) -> None:
        """None of the followers has found anything wrong."""
        await _end([task for _, task in self.followers])


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome


async def run_program(world: World) -> Counter[str]:
    """Actors write through restarts; then every view is compared, and again after one more."""
    everybody = Everybody(world)
    actors: list[asyncio.Task[None]] = []
    for number in range(RESTARTS):
        async with world.running():
            if not actors:
                await everybody.attached()
                actors = [asyncio.create_task(world.act(n, STEPS)) for n in range(ACTORS)]
            async with asyncio.timeout(60):
                while len(world.acknowledged) < ACTORS * STEPS * (number + 1) // 8:
                    assert not any(actor.done() for actor in actors)
                    await asyncio.sleep(0.002)
    async with world.running():
        async with asyncio.timeout(60):
            while not all(actor.done() for actor in actors):
                if len(everybody.joiners) < MAX_JOINERS:
                    everybody.join(world, world.rng.choice(world.channels))
                await asyncio.sleep(0.01)
            await asyncio.gather(*actors)
        await check_all(world, everybody)
    async with world.running():
        await check_all(world, everybody)
    await everybody.end()
    seen = Counter(op.action for tag, op in world.ops.items() if tag in world.acknowledged)
    seen += Counter(refused=len(world.is_refused), retried=world.retries, lost=world.lost)
    seen["held"] = everybody.held
    for follower, _ in everybody.followers:
        seen["replayed"] += follower.replayed
        seen.update(f"from {source}" for source in follower.sources)
    return seen


async def check_all(world: World, everybody: Everybody) -> None:
    """Every view of every channel, and retries."""
    client = world.client()
    for channel in world.channels:
        await check_channel(world, client, channel, everybody)
    assert world.node is not None
    head = await world.node.server.store.head()
    for tag in world.rng.sample(world.retryable, min(20, len(world.retryable))):
        await world.again(client, tag)
    assert await world.node.server.store.head() == head, "a retry changes nothing"
    await everybody.leave()
    client.close()


@pytest.mark.usefixtures("small_thresholds")
async def test_every_view_is_the_fold_of_the_versions(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Versions, GET, history, delta, full, resumed and rewound views agree, through restarts."""
    clock = FakeClock()
    seen: Counter[str] = Counter()
    for seed in range(SEED, SEED + PROGRAMS):
        clock.advance(1000)
        world = World(seed, store_location, tmp_path / "data", clock)
        seen += await run_program(world)
    assert min(seen[a] for a in ("create", "update", "delete", "append")) > 5, seen
    assert min(seen[a] for a in ("refused", "retried", "lost", "replayed")) > 0, seen
    print(f"{engine}: {PROGRAMS} programs, {dict(seen)}")  # noqa: T201


# Retention.


async def resumed(world: World, channel: str, position: Json) -> tuple[list[View], Json]:
    """What a resume from a position brings, and how it ended."""
    url = f"{world.url()}/app/{APP.key}?{V2_QUERY}"
    views: list[View] = []
    async with connect(url, compression=None, max_size=None, close_timeout=0.2) as socket:
        await socket.recv()
        data = {"channel_positions": {channel: position}}
        await socket.send(json.dumps({"event": "sockudo:resume", "data": data}))
        async with asyncio.timeout(20):
            while True:
                frame = json.loads(await socket.recv())
                if frame["event"] == "sockudo:resume_success":
                    return views, json.loads(frame["data"])
                if frame["event"] != "sockudo:resume_failed":
                    views.append(of_frame(frame))


async def check_purged(world: World, everybody: Everybody, channel: str, cutoff: int) -> list[View]:
    """What is older than the cutoff is gone, all else is as it was; answers what remains."""
    client = world.client()
    head = max(
        a["delivery_serial"]
        for t, a in world.acknowledged.items()
        if world.ops[t].channel == channel
    )
    followers = [pair for pair in everybody.followers if pair[0].channel == channel]
    for follower, task in followers:
        await follower.reach(head, task)
    views = [of_frame(frame) for frame in followers[0][0].frames]
    assert [v.delivery_serial for v in views] == list(range(1, head + 1))
    folded = latest_of(views)
    for follower, _ in followers:
        seen = [of_frame(frame) for frame in follower.frames]
        assert latest_of(seen, is_full=follower.is_full) == folded
    kept = [v for v in views if v.extras["headers"]["sockudo_version_timestamp_ms"] >= cutoff]
    floor = head - len(kept)
    assert [v.delivery_serial for v in kept] == list(range(floor + 1, head + 1))
    alive = {v.message_serial: folded[v.message_serial] for v in kept}
    for serial in folded:
        path = message_path(channel, serial)
        if serial in alive:
            item = (await client.get(path))["item"]
            assert of_item(item) == folded[serial], "the latest state outlives its old versions"
            versions = await world.versions(client, channel, serial, limit=5)
            assert versions == [v for v in kept if v.message_serial == serial]
            continue
        if serial in world.gone:
            continue  # looked at before
        world.gone.add(serial)
        for method, rest, body in (
            ("GET", "", None),
            ("GET", "/versions", None),
            ("GET", "/summary", None),
            ("POST", "/append", {"data": "x", "op_id": "late"}),
            ("POST", "/update", {"data": "x"}),
        ):
            answer = await client.request(method, path + rest, body)
            assert (answer.status, answer.json["code"]) == (404, "not_found"), answer
    in_order = sorted(alive.values(), key=lambda view: view.history_serial)
    rows = await world.history(client, channel, limit=6)
    assert [of_item(row["message"]) for row in rows] == in_order
    stream_id = followers[0][0].frames[0]["stream_id"]
    again, told = await resumed(world, channel, {"serial": floor, "stream_id": stream_id})
    assert again == kept
    assert told["failed"] == []
    if floor:
        again, told = await resumed(world, channel, {"serial": floor - 1, "stream_id": stream_id})
        assert again == []
        assert [failed["code"] for failed in told["failed"]] == ["position_expired"]
    await check_open_streams(world, channel, alive)
    client.close()
    world.messages[channel] = [
        serial for serial in world.messages[channel] if serial in alive or world.rng.random() < 0.2
    ]
    return kept


@pytest.mark.usefixtures("small_thresholds")
async def test_purging_old_versions_changes_nothing_else(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Purges under load: text and newer versions stay, the floor rises, whole chains are 404."""
    seen: Counter[str] = Counter()
    for seed in range(SEED, SEED + max(1, PROGRAMS // 2)):
        world = World(seed, store_location, tmp_path / "data", FakeClock())
        world.clock.advance(seed * 10**6)
        world.is_purging = True
        everybody = Everybody(world)
        for phase in range(5):
            world.retryable.clear()
            async with world.running(
                retention_window_seconds=WINDOW_SECONDS, purge_batch_size=7
            ) as node:
                await everybody.attached()
                retention = node.surface.service.retention
                actors = [
                    asyncio.create_task(world.act(100 * phase + n, STEPS // 4, reads=False))
                    for n in range(4)
                ]
                purged = 0
                while not all(actor.done() for actor in actors):
                    purged += await retention.tick()
                    await asyncio.sleep(0.005)
                await asyncio.gather(*actors)
                purged += await retention.tick()
                seen["purged"] += purged
                cutoff = world.clock.now_ms() - WINDOW_SECONDS * 1000
                kept = 0
                for channel in world.channels:
                    remaining = await check_purged(world, everybody, channel, cutoff)
                    kept += len(remaining)
                    alive = {view.message_serial for view in remaining}
                    created = [t for t in world.tags.values() if world.ops[t].channel == channel]
                    seen["kept chains"] += len(alive)
                    seen["versions"] += len(created)
                assert await retention.tick() == 0, "nothing is purged twice"
                receipts = sum(
                    world.ops[world.tags[v]].is_keyed for v in world.tags if _time(v) >= cutoff
                )
                assert await node.server.store.dedupe_count() == receipts
            world.clock.advance(10_000)
        await everybody.end()
        seen["refused"] += len(world.is_refused)
        seen["gone"] += world.refused[404]
    assert min(seen.values()) > 0, seen
    print(f"{engine}: {dict(seen)}")  # noqa: T201


def _time(version_serial: str) -> int:
    return int(version_serial[:20])


async def test_a_message_in_use_has_one_state(store_location: str, tmp_path: Path) -> None:
    """However little may be cached, two who use a message at once share its state."""
    async with channels_server(tmp_path, store_location, max_cached_text_bytes=1) as node:
        ack = await node.api.publish("room", "text")
        known = node.surface.service._states
        place = (f"channels/{APP.id}/room", int(ack["message_serial"][-20:]))
        first, second = await asyncio.gather(known.load_message(*place), known.load_message(*place))
        third = await known.load_message(*place)
        assert first is not None
        assert first is second is third
        assert first.pins == 3


async def test_an_open_stream_is_one_however_it_is_spelled(tmp_path: Path) -> None:
    """Escapes in the name of the status change nothing: a stream is counted once and can end."""
    async with channels_server(tmp_path) as node:
        client = RawClient(lambda: node.port)
        ack = await node.api.publish("room", "text")
        path = f"/apps/{APP.id}{message_path('room', ack['message_serial'])}"
        known = node.surface.service._states
        state = await known.load_channel(f"channels/{APP.id}/room")
        for status, is_open in (("streaming", 1), ("streaming", 1), ("complete", 0)):
            body = b'{"extras":{"ai":{"transport":{"st\\u0061tus":"%s"}}}}' % status.encode()
            target = signed_target("POST", f"{path}/update", body, {}, now=time.time())
            assert (await client.send("POST", target, body)).status == 200
            assert state.open_streams == is_open
        answer = await node.api.try_mutate("append", "room", ack["message_serial"], data="x")
        assert answer.status_code == 400
        known.release(state)
        client.close()
