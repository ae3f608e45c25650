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
from pathlib import Path
from typing import Self

import pytest
from websockets.asyncio.client import connect

from support.channels.peer import (
    APP,
    V2_QUERY,
    ChannelsNode,
    channel_auth,
    channels_server,
    message_path,
)
from support.channels.raw import (
    Follower,
    Json,
    RawClient,
    View,
    latest_of,
    of_frame,
    of_item,
    signed_target,
)
from support.channels.world import World, check_requests, fold_of, status_of
from tidelog.channels import stored
from tidelog.channels.decide import state
from tidelog.channels.front.reads import version_data
from tidelog.channels.front.sockets import connection, delivery, subscribing
from tidelog.channels.protocol import growing_text
from tidelog.testing.clock import FakeClock

PROGRAMS = max(1, int(os.environ.get("TIDELOG_TEST_SOAK_EXAMPLES", "10")) // 10)
STEPS = int(os.environ.get("TIDELOG_TEST_SOAK_STEPS", "50"))
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
ACTORS = 6
RESTARTS = 3
MAX_JOINERS = 16
WINDOW_SECONDS = 25

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
        async with asyncio.timeout(60):
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
        folded[serial] = fold_of(versions)
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
    check_requests(world, channel, everything)
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
    for joiner, task in everybody.join(channel):
        await joiner.check(task, folded, head)
    await check_open_streams(world, channel, folded)


async def check_open_streams(world: World, channel: str, folded: dict[str, View]) -> None:
    """The server counts the open streams that there are."""
    assert world.node is not None
    known = world.node.surface.owner.states
    state = await known.load_channel(f"channels/{APP.id}/{channel}")
    assert state.open_streams == sum(status_of(v.extras) == "streaming" for v in folded.values())
    known.release(state)


@pytest.fixture
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every boundary of folding, reading, sending and forgetting is crossed all the time."""
    monkeypatch.setattr(state, "UNFOLDED_VERSIONS", 5)
    monkeypatch.setattr(state, "UNFOLDED_BYTES", 48)
    monkeypatch.setattr(growing_text, "COLLAPSE_AT", 3)
    monkeypatch.setattr(growing_text, "COLLAPSE_TO", 1)
    monkeypatch.setattr(stored, "VERSIONS_PER_READ", 4)
    monkeypatch.setattr(state, "MAX_IDLE_MESSAGES", 4)
    monkeypatch.setattr(state, "MAX_IDLE_CHANNELS", 1)
    monkeypatch.setattr(version_data, "KNOWN_BYTES", 60)
    monkeypatch.setattr(delivery, "PACED_BYTES", 40)
    monkeypatch.setattr(delivery, "MADE_BYTES", 1000)
    monkeypatch.setattr(connection, "PUSHED_FRAMES", 3)
    monkeypatch.setattr(subscribing, "PUSHED_FRAMES", 3)


class Everybody:
    """The actors and subscribers of a program; none of them outlives the block."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.actors: list[asyncio.Task[None]] = []
        self.followers: list[tuple[Follower, asyncio.Task[None]]] = []
        self.joiners: list[tuple[Joiner, asyncio.Task[None]]] = []
        self.held = 0
        """Frames that went live while a joiner read the past."""

    async def __aenter__(self) -> Self:
        for channel in self._world.channels:
            for is_full in (False, True):
                for restless in (None, random.Random(self._world.rng.random())):
                    follower = Follower(
                        self._world.url, channel, is_full=is_full, restless=restless
                    )
                    self.followers.append((follower, asyncio.create_task(follower.run())))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """If all went well so far, nobody has found anything wrong."""
        everywhere = [*self.followers, *self.joiners]
        outcomes = await _end([*(task for _, task in everywhere), *self.actors])
        if kind is None:
            _check_cancelled(outcomes[: len(everywhere)])

    async def attached(self) -> None:
        """All followers have subscribed."""
        for follower, task in self.followers:
            await follower.reach(0, task)

    def act(self, actors: int, steps: int, *, first: int = 0, reads: bool = True) -> None:
        """More actors begin."""
        for number in range(first, first + actors):
            work = self._world.act(number, steps, reads=reads)
            self.actors.append(asyncio.create_task(work))

    def is_acting(self) -> bool:
        """Whether an actor has not done all it shall; raises what one of them found wrong."""
        done = [actor for actor in self.actors if actor.done()]
        for actor in done:
            actor.result()
        return len(done) < len(self.actors)

    async def done(self, steps: int) -> None:
        """So many steps were done; some actors may have ended."""
        while self._world.steps < steps:
            self.is_acting()
            await asyncio.sleep(0.002)

    def join(self, channel: str) -> list[tuple[Joiner, asyncio.Task[None]]]:
        """Two more late joiners; returns all those of the channel."""
        for is_full in (False, True):
            joiner = Joiner(self._world, channel, is_full=is_full)
            self.joiners.append((joiner, asyncio.create_task(joiner.run())))
        return [pair for pair in self.joiners if pair[0].channel == channel]

    async def leave(self) -> None:
        """The late joiners are not needed any more."""
        _check_cancelled(await _end([task for _, task in self.joiners]))
        self.held += sum(joiner.held for joiner, _ in self.joiners)
        self.joiners.clear()


async def _end(tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def _check_cancelled(outcomes: list[BaseException | None]) -> None:
    """They went on until they were told to end: none has found anything wrong."""
    for outcome in outcomes:
        assert isinstance(outcome, asyncio.CancelledError), outcome


async def run_program(world: World) -> Counter[str]:
    """Actors write through restarts; then every view is compared, and again after one more."""
    async with Everybody(world) as everybody:
        for number in range(RESTARTS):
            async with world.running():
                if not everybody.actors:
                    await everybody.attached()
                    everybody.act(ACTORS, STEPS)
                async with asyncio.timeout(60):
                    await everybody.done(ACTORS * STEPS * (number + 1) // 5)
        async with world.running():
            async with asyncio.timeout(60):
                while everybody.is_acting():
                    if len(everybody.joiners) < MAX_JOINERS:
                        everybody.join(world.rng.choice(world.channels))
                    await asyncio.sleep(0.01)
            await check_all(world, everybody)
        async with world.running():
            await check_all(world, everybody)
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
    """What a subscriber's resume from a position brings, and how it ended."""
    url = f"{world.url()}/app/{APP.key}?{V2_QUERY}"
    views: list[View] = []
    async with connect(url, compression=None, max_size=None, close_timeout=0.2) as socket:
        socket_id = json.loads(json.loads(await socket.recv())["data"])["socket_id"]
        data: Json = {"channel": channel, "auth": channel_auth(socket_id, channel)}
        await socket.send(json.dumps({"event": "sockudo:subscribe", "data": data}))
        await socket.recv()
        data = {"channel_positions": {channel: position}}
        await socket.send(json.dumps({"event": "sockudo:resume", "data": data}))
        async with asyncio.timeout(60):
            while True:
                frame = json.loads(await socket.recv())
                if frame["event"] == "sockudo:resume_success":
                    return views, json.loads(frame["data"])
                if frame["event"] != "sockudo:resume_failed":
                    views.append(of_frame(frame))


async def check_purged(world: World, everybody: Everybody, channel: str, cutoff: int) -> list[View]:
    """What is older than the cutoff is gone, all else is as it was; returns what remains."""
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


async def purge_and_check(world: World, everybody: Everybody, node: ChannelsNode) -> Counter[str]:
    """Purge while actors act, and once more; then look at everything."""
    seen: Counter[str] = Counter()
    retention = node.surface.owner.retention
    while everybody.is_acting():
        seen["purged"] += await retention.tick()
        await asyncio.sleep(0.005)
    seen["purged"] += await retention.tick()
    cutoff = world.clock.now_ms() - WINDOW_SECONDS * 1000
    for channel in world.channels:
        remaining = await check_purged(world, everybody, channel, cutoff)
        seen["kept chains"] += len({view.message_serial for view in remaining})
        seen["versions"] += sum(world.ops[t].channel == channel for t in world.tags.values())
    assert await retention.tick() == 0, "nothing is purged twice"
    receipts = sum(world.ops[world.tags[v]].is_keyed for v in world.tags if _time(v) >= cutoff)
    assert await node.server.store.dedupe_count() == receipts
    return seen


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
        async with Everybody(world) as everybody:
            for phase in range(5):
                world.retryable.clear()
                async with world.running(
                    retention_window_seconds=WINDOW_SECONDS, purge_batch_size=7
                ) as node:
                    await everybody.attached()
                    everybody.act(4, STEPS // 4, first=100 * phase, reads=False)
                    seen += await purge_and_check(world, everybody, node)
                world.clock.advance(10_000)
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
        known = node.surface.owner.states
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
        known = node.surface.owner.states
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
