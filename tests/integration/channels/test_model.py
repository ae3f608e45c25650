"""Random programs against a model of channels that fits on a page.

Kept, replaced, cleared and appended data, several requests at once, erasure of every kind,
retention and restarts meet in one log; after every few steps each view of a channel is compared
with what the model says. `TIDELOG_TEST_SOAK_EXAMPLES`, `TIDELOG_TEST_SOAK_STEPS` and
`TIDELOG_TEST_SOAK_SEED` say how many programs there are, how long they are and where they begin.
"""

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.asyncio.client import ClientConnection, connect

from support.channels.bodies import MAKERS
from support.channels.peer import (
    APP,
    V2_QUERY,
    ChannelsNode,
    channel_path,
    channels_server,
    message_path,
    unique,
)
from support.channels.raw import ABSENT, Answer, Json, RawClient, View, of_frame, of_item
from tidelog.channels import stored
from tidelog.channels.decide import state
from tidelog.channels.front.reads import message_reader, version_data
from tidelog.channels.front.sockets import connection, delivery, subscribing
from tidelog.channels.protocol import growing_text
from tidelog.channels.upkeep import erasing
from tidelog.cli.verification import verify_store
from tidelog.testing.clock import FakeClock

PROGRAMS = max(1, int(os.environ.get("TIDELOG_TEST_SOAK_EXAMPLES", "20")) // 20)
STEPS = int(os.environ.get("TIDELOG_TEST_SOAK_STEPS", "50")) * 2
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
WINDOW_SECONDS = 60
CHECK_EVERY = 8


# The model.


class Change(NamedTuple):
    """A version as the model knows it."""

    serial: int
    """Of its delivery."""
    message: str
    version: str
    history_serial: int
    at: int
    action: str
    name: str | None
    fragment: Any
    """What it says itself: of an append what it added."""
    data: Any
    """All of the data after it."""

    def seen(self, *, is_full: bool) -> View:
        """What a client is shown of it."""
        data = self.data if is_full or self.action != "append" else self.fragment
        serials = (self.message, self.version, self.history_serial, self.serial)
        return View(*serials, self.action, self.name, data, {})


def shown(view: View) -> View:
    """What is compared of what a server says."""
    return view._replace(extras={})


class Model:
    """One channel."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        """All that ever happened, by delivery serial."""
        self.gone: set[str] = set()
        """Messages that are erased or wholly too old."""
        self.cutoff = 0
        """Versions before this time are gone."""
        self.floor = 0
        """What is up to here cannot be replayed."""
        self.resets = 0

    def latest(self) -> dict[str, Change]:
        """The messages that are there, in their order."""
        return {c.message: c for c in self.changes if c.message not in self.gone}

    def versions(self, message: str) -> list[Change]:
        """Those of a message that are there."""
        return [c for c in self.changes if c.message == message and c.at >= self.cutoff]

    def apply(self, action: str, body: Json, ack: Json, at: int) -> None:
        """A request was acknowledged."""
        before = self.latest().get(ack["message_serial"])
        name = body.get("name")
        data = fragment = body.get("data")
        if action == "create":
            if not isinstance(data, str):
                data = fragment = json.dumps(data, separators=(",", ":"))
        else:
            assert before is not None
            cleared = body.get("clear_fields") or ()
            if action == "append":
                name, data = before.name, data if before.data == ABSENT else before.data + data
            else:
                if action == "delete" or name is None:
                    name = before.name
                name = None if "name" in cleared else name
                data = before.data if data is None else data
                data = fragment = ABSENT if "data" in cleared else data
        serials = (ack["delivery_serial"], ack["message_serial"], ack["version_serial"])
        assert ack["delivery_serial"] == len(self.changes) + 1
        self.changes.append(
            Change(*serials, ack["history_serial"], at, action, name, fragment, data)
        )

    def erase(self, messages: set[str]) -> None:
        """Messages are erased."""
        self.gone |= messages
        self.floor = max([self.floor, *(c.serial for c in self.changes if c.message in messages)])

    def expire(self, cutoff: int) -> None:
        """Versions before a time go."""
        self.cutoff = max(self.cutoff, cutoff)
        self.gone |= {m for m, last in self.latest().items() if last.at < self.cutoff}
        old = [c.serial for c in self.changes if c.at < self.cutoff]
        self.floor = max([self.floor, *old])


# A program.


class Program:
    """One random program on one store."""

    def __init__(self, seed: int, location: str, data_dir: Path) -> None:
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.clock.advance(seed * 10**6)
        self.models = {unique("room"): Model(), unique("ai:x;y"): Model()}
        self.seen: Counter[str] = Counter()
        self.node: ChannelsNode
        self.client: RawClient
        self._tag = 0
        self._location = location
        self._data_dir = data_dir

    async def run(self, steps: int) -> Counter[str]:
        """All of it, with restarts."""
        while self.seen["steps"] < steps:
            async with channels_server(
                self._data_dir,
                self._location,
                clock=self.clock,
                connection_recovery={
                    "max_buffer_size": 100_000,
                    "buffer_ttl_seconds": self.rng.choice([0.001, 3600.0]),
                },
                versioned_messages={
                    "retention_window_seconds": WINDOW_SECONDS,
                    "purge_batch_size": 7,
                },
                history={"retention_seconds": 0, "max_page_size": 500},
                max_cached_text_bytes=self.rng.choice([1, 2500, 2**20]),
            ) as node:
                self.node = node
                self.client = RawClient(lambda: node.port, now=lambda: self.clock.now_ms() / 1000)
                for channel in self.models:
                    await self._check(channel)
                for _ in range(self.rng.randint(20, 80)):
                    self.seen["steps"] += 1
                    await self._step()
                store = node.server.store
                verdict = await verify_store(store)
                assert verdict.is_sound, verdict
                self.client.close()
            self.seen["restarts"] += 1
        return self.seen

    async def _step(self) -> None:
        rng = self.rng
        self.clock.advance(rng.choice([0, 0, 1, 10, 1000]))
        channel = rng.choice(list(self.models))
        kind = rng.random()
        if kind < 0.80:
            await self._write(channel)
        elif kind < 0.85:
            await self._forget(channel)
        elif kind < 0.87:
            await self._purge(channel)
        elif kind < 0.90:
            await self._expire()
        else:
            self.node.surface.owner.states.forget_idle_messages()
        if rng.random() < 1 / CHECK_EVERY:
            await self._check(channel)

    async def _post(self, path: str, body: Json) -> Answer:
        answer = await self.client.request("POST", path, body)
        assert answer.status < 500, answer
        return answer

    async def _write(self, channel: str) -> None:
        """Some requests at once: mostly of one batch."""
        count = self.rng.choice([1, 1, 1, 4])
        clients = [
            RawClient(lambda: self.node.port, now=lambda: self.clock.now_ms() / 1000)
            for _ in range(count)
        ]
        work = [self._request(channel, client) for client in clients]
        done = [each for each in await asyncio.gather(*work) if each is not None]
        model, at = self.models[channel], self.clock.now_ms()
        for action, body, ack in sorted(done, key=lambda each: each[2]["delivery_serial"]):
            model.apply(action, body, ack, max(at, int(ack["version_serial"][:20])))
            self.seen[action] += 1
            self.seen["kept"] += action in ("update", "delete") and body.get("data") is None
        for client in clients:
            client.close()

    async def _request(self, channel: str, client: RawClient) -> tuple[str, Json, Json] | None:
        known = list(self.models[channel].latest())[-4:]
        action = self.rng.choice(["create", *("append", "append", "update", "update", "delete")])
        if not known:
            action = "create"
        self._tag += 1
        body = MAKERS[action](self.rng, str(self._tag))
        if action == "create":
            body["channel"] = channel
            answer = await client.request("POST", "/events", body)
            assert answer.status == 200, answer
            return action, body, answer.json["channels"][channel]
        serial = self.rng.choice(known)
        if self.rng.random() < 0.1:
            [other] = self.models.keys() - {channel}
            path = f"{message_path(other, serial)}/{action}"
            answer = await client.request("POST", path, body)
            assert answer.status == 404, answer
            self.seen["asked for elsewhere"] += 1
            return None
        answer = await client.request("POST", f"{message_path(channel, serial)}/{action}", body)
        if answer.status != 200:
            assert (answer.status, action) in ((400, "append"), (413, "append")), (answer, body)
            return None
        return action, body, answer.json

    # What takes away.

    async def _forget(self, channel: str) -> None:
        model = self.models[channel]
        known = list(model.latest())
        if not known:
            return
        message = self.rng.choice(known[-6:])
        target = {"reason": "r", "channel": channel, "message_serial": message}
        answer = await self._post("/forget", target)
        assert answer.json == {"ok": True, "complete": True}, answer
        model.erase({message})
        self.seen["forgotten"] += 1

    async def _purge(self, channel: str) -> None:
        """Some or all of the history; or it begins again."""
        model = self.models[channel]
        latest = model.latest()
        how = self.rng.choice(["some", "some", "some", "all", "forget", "reset"])
        body: Json = {"confirm_channel": channel, "confirm_operation": "purge", "reason": "r"}
        path = f"{channel_path(channel)}/history/"
        gone = set(latest)
        if how == "forget":
            answer = await self._post("/forget", {"reason": "r", "channel": channel})
        elif how == "reset":
            answer = await self._post(path + "reset", {**body, "confirm_operation": how})
            model.resets += 1
        elif how == "all" or not latest:
            answer = await self._post(path + "purge", {**body, "mode": "all"})
        else:
            bound = self.rng.choice(list(latest.values())).history_serial
            body |= {"mode": "before_serial", "before_serial": bound}
            answer = await self._post(path + "purge", body)
            gone = {message for message, last in latest.items() if last.history_serial < bound}
            how = "before"
        assert answer.status == 200, answer
        assert answer.json["complete"], answer
        if "purged_messages" in answer.json:
            assert answer.json["purged_messages"] == len(gone)
        model.erase(gone)
        if how != "before":
            model.floor = len(model.changes)
        self.seen[f"purged {how}"] += 1

    async def _expire(self) -> None:
        self.clock.advance(self.rng.choice([0, 5000, 20_000]))
        await self.node.surface.owner.retention.tick()
        cutoff = self.clock.now_ms() - WINDOW_SECONDS * 1000
        for model in self.models.values():
            model.expire(cutoff)
        self.seen["expired"] += 1

    # Views.

    async def _check(self, channel: str) -> None:
        model = self.models[channel]
        latest = model.latest()
        history = await self._history(channel)
        rows = [of_item(row["message"]) for row in history]
        expected = sorted(latest.values(), key=lambda change: change.history_serial)
        assert [shown(row) for row in rows] == [c.seen(is_full=True) for c in expected]
        state = (await self.client.get(f"{channel_path(channel)}/history/state"))["stream"]
        assert state["retained"]["retained_messages"] == len(latest)
        creates = [c.history_serial for c in model.changes if c.action == "create"]
        assert state["next_serial"] == max(creates, default=0) + 1
        for message, last in latest.items():
            await self._check_message(channel, message, last)
        for message in self.rng.sample(sorted(model.gone), min(2, len(model.gone))):
            for rest in ("", "/versions", "/summary"):
                answer = await self.client.request("GET", message_path(channel, message) + rest)
                assert answer.status == 404, answer
        for is_full in (False, True):
            await self._check_resume(channel, state["stream_id"], is_full=is_full)
        await self._check_rewind(channel, expected)
        self.seen["checks"] += 1

    async def _history(self, channel: str) -> list[Json]:
        path, rows = f"{channel_path(channel)}/history", list[Json]()
        order = self.rng.choice(["oldest_first", "newest_first"])
        cursor: dict[str, str] = {}
        while True:
            limit = self.rng.choice([1, 3, 100])
            page = await self.client.get(path, limit=limit, direction=order, **cursor)
            rows += page["items"]
            if not page["has_more"]:
                return rows if order == "oldest_first" else rows[::-1]
            cursor = {"cursor": page["next_cursor"]}

    async def _check_message(self, channel: str, message: str, last: Change) -> None:
        model, path = self.models[channel], message_path(channel, message)
        item = (await self.client.get(path))["item"]
        assert shown(of_item(item)) == last.seen(is_full=True)
        expected = model.versions(message)
        found: list[View] = []
        order = self.rng.choice(["oldest_first", "newest_first"])
        cursor: dict[str, str] = {}
        while True:
            limit = self.rng.choice([1, 3, 100])
            page = await self.client.get(f"{path}/versions", limit=limit, direction=order, **cursor)
            found += [of_item(each) for each in page["items"]]
            if not page["has_more"]:
                break
            cursor = {"cursor": page["next_cursor"]}
        if order == "newest_first":
            found.reverse()
        assert [shown(each) for each in found] == [c.seen(is_full=False) for c in expected]
        summary = await self.client.get(f"{path}/summary")
        ever = [c for c in model.changes if c.message == message]
        assert summary["versions"] == len(ever)
        assert summary["appends"] == sum(c.action == "append" for c in ever)

    async def _check_resume(self, channel: str, stream_id: str, *, is_full: bool) -> None:
        model = self.models[channel]
        head = len(model.changes)
        serial = self.rng.choice([model.floor, head, self.rng.randint(0, head)])
        position = {channel: {"serial": serial, "stream_id": stream_id}}
        frames: list[Json] = []
        async with self._socket("full" if is_full else "delta") as socket:
            await _send(socket, "subscribe", {"channel": channel})
            await _until(socket, "sockudo_internal:subscription_succeeded")
            await _send(socket, "resume", {"channel_positions": position})
            frames, told = await _until(socket, "sockudo:resume_success")
        outcome = json.loads(told["data"])
        if serial < model.floor:
            assert [each["code"] for each in outcome["failed"]] == ["position_expired"], outcome
            self.seen["too late"] += 1
            return
        assert outcome["failed"] == [], (outcome, model.floor, serial)
        seen = [shown(of_frame(frame)) for frame in frames]
        assert seen == [c.seen(is_full=is_full) for c in model.changes[serial:]]
        self.seen["resumed"] += len(seen)

    async def _check_rewind(self, channel: str, expected: list[Change]) -> None:
        async with self._socket("delta") as socket:
            await _send(socket, "subscribe", {"channel": channel, "rewind": {"count": 500}})
            await _until(socket, "sockudo_internal:subscription_succeeded")
            frames, told = await _until(socket, "sockudo:rewind_complete")
        rewound = [shown(of_frame(f)) for f in frames if "extras" in f]
        assert rewound == [c.seen(is_full=True) for c in expected], told

    def _socket(self, mode: str) -> connect:
        url = f"ws://127.0.0.1:{self.node.port}/app/{APP.key}?{V2_QUERY}&append_mode={mode}"
        return connect(url, compression=None, max_size=None, close_timeout=0.2)


async def _send(socket: ClientConnection, event: str, data: Json) -> None:
    await socket.send(json.dumps({"event": f"sockudo:{event}", "data": data}))


async def _until(socket: ClientConnection, event: str) -> tuple[list[Json], Json]:
    """The next frame of a name, and those before it that are no system frames."""
    frames: list[Json] = []
    async with asyncio.timeout(60):
        while (frame := json.loads(await socket.recv()))["event"] != event:
            if "serial" in frame:
                frames.append(frame)
    return frames, frame


@pytest.fixture
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every boundary of reading, folding, sending and erasing is crossed all the time."""
    for module, name, value in (
        (state, "UNFOLDED_VERSIONS", 5),
        (state, "UNFOLDED_BYTES", 48),
        (state, "ENDED_VERSIONS", 3),
        (growing_text, "COLLAPSE_AT", 3),
        (growing_text, "COLLAPSE_TO", 1),
        (stored, "VERSIONS_PER_READ", 4),
        (state, "MAX_IDLE_MESSAGES", 4),
        (state, "MAX_IDLE_CHANNELS", 1),
        (message_reader, "VERSIONS_PER_READ", 3),
        (version_data, "KNOWN_BYTES", 60),
        (message_reader, "PAGE_BYTES", 200),
        (delivery, "PACED_BYTES", 40),
        (delivery, "MADE_BYTES", 1000),
        (connection, "PUSHED_FRAMES", 3),
        (subscribing, "PUSHED_FRAMES", 3),
        (erasing, "PRUNE_ENTRIES", 3),
        (erasing, "MESSAGES_PER_STEP", 2),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("small_thresholds")
async def test_every_view_is_what_the_model_says(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Through writes, erasure, retention and restarts."""
    seen: Counter[str] = Counter()
    for seed in range(SEED, SEED + PROGRAMS):
        print(f"seed {seed}")  # noqa: T201
        seen += await Program(seed, store_location, tmp_path / "data").run(STEPS)
    kinds = ("kept", "forgotten", "expired", "resumed", "asked for elsewhere")
    assert min(seen[kind] for kind in kinds) > 0, seen
    print(f"{engine}: {PROGRAMS} programs, {dict(seen)}")  # noqa: T201
