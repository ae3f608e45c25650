"""`kill -9` of the real process during a hundred token streams, with subscribers that resume."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from support.channels.peer import APP, channel_path, message_path
from support.channels.raw import (
    LOST,
    Follower,
    Json,
    RawClient,
    after,
    latest_of,
    of_frame,
    of_item,
)
from support.cli.command import run as run_command
from tidelog.base.faultpoint import COMMIT_PATH, FaultPoint
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.testing.process import ServerProcess

STREAMS = 100
TOKENS = 40
"""Appends of one message; then the stream ends it and begins another."""
TOKEN_SECONDS = 0.05
"""From an answer to the next token."""
KILLS = max(4, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "4")))
"""Per engine; `scripts/soak --kills` raises it. Four reach half of the fault points on each engine
and so all of them on one; `test_kill` reaches all on each."""
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
RETRY_SECONDS = (0.05, 0.3)
"""Before a lost request is repeated: a hundred clients must not keep the server from starting."""
POINTS = tuple(COMMIT_PATH)
ENGINES = ("sqlite", "postgresql")
CHANNELS = ("tokens", "private-ai:a", "private-ai:b", "chat;1")
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
COMPLETE = {"ai": {"transport": {"status": "complete"}}}

CONFIG = f"""
[[apps]]
id = "{APP.id}"
key = "{APP.key}"
secret = "{APP.secret}"

[channels.versioned_messages]
enabled = true

[channels.connection_recovery]
max_buffer_size = 100000

[limits]
send_buffer_messages = 1000000
"""


def schedule(engine: str, kills: int) -> list[str]:
    """Which fault point each start is killed at; the empty text means at a random moment.

    The first start is killed at a random moment, when every subscriber has attached.
    """
    rng = random.Random(SEED)
    is_first = engine == ENGINES[0]
    points = POINTS[::2] + POINTS[1::2] if is_first else POINTS[1::2] + POINTS[::2]
    plan = [""]
    while len(plan) < kills:
        for point in points:
            passes = 300 if point is FaultPoint.HANDING_OVER else 15
            plan.append(f"{point}=kill@{rng.randint(1, passes)}")
        plan.append("")
    return plan[:kills]


class Message:
    """A streamed message as its writer knows it."""

    def __init__(self, channel: str, serial: str) -> None:
        self.channel = channel
        self.serial = serial
        self.text = ""
        """All that was acknowledged."""
        self.pending = ""
        """What was asked for and not yet answered."""
        self.acks: list[tuple[Json, Json]] = []
        """Bodies of appends and their answers, in order."""


class Stream:
    """A writer of tokens: every one has its key and is repeated until it is answered."""

    def __init__(self, number: int, port: Any) -> None:
        self.number = number
        self.channel = CHANNELS[number % len(CHANNELS)]
        self.messages: list[Message] = []
        self.creates: list[tuple[Json, Json]] = []
        self.statuses: Counter[str] = Counter()
        self.repeated = 0
        self._client = RawClient(port)
        self._tokens = 0
        self._rng = random.Random(number)

    @property
    def acknowledged(self) -> int:
        """Operations that were answered."""
        return len(self.creates) + sum(len(message.acks) for message in self.messages)

    async def run(self, stopping: asyncio.Event) -> None:
        """Stream one message after the other; the last one is ended too."""
        while not stopping.is_set():
            body = {
                "name": "ai-token",
                "channel": self.channel,
                "data": "",
                "message_id": f"m-{self.number}-{len(self.messages)}",
                "extras": STREAMING,
            }
            ack = (await self._until_answered("/events", body))["channels"][self.channel]
            message = Message(self.channel, ack["message_serial"])
            self.creates.append((body, ack))
            self.messages.append(message)
            for _ in range(TOKENS):
                await self._append(message, {"data": f"{self.number}.{self._tokens} "})
                if stopping.is_set():
                    break
                await asyncio.sleep(TOKEN_SECONDS)
            await self._append(message, {"data": "", "extras": COMPLETE})
        self._client.close()

    async def _append(self, message: Message, body: Json) -> None:
        body["op_id"] = f"{self.number}.{self._tokens}"
        self._tokens += 1
        message.pending = body["data"]
        path = f"{message_path(message.channel, message.serial)}/append"
        ack = await self._until_answered(path, body)
        self.statuses[ack["status"]] += 1
        message.text += message.pending
        message.pending = ""
        message.acks.append((body, ack))

    async def _until_answered(self, path: str, body: Json) -> Json:
        while True:
            try:
                answer = await self._client.request("POST", path, body)
            except LOST:
                self.repeated += 1
            else:
                if answer.status == 200:
                    found: Json = answer.json
                    return found
                assert answer.status == 503, answer
            await asyncio.sleep(self._rng.uniform(*RETRY_SECONDS))


def serials(ack: Json) -> tuple[Any, ...]:
    """What must be the same in every answer to an operation."""
    return tuple(ack[f"{name}_serial"] for name in ("message", "version", "history", "delivery"))


async def check_acknowledged(port: int, streams: list[Stream]) -> None:
    """Right after a restart: what had been acknowledged is there, once and in order."""
    client = RawClient(lambda: port)
    for stream in random.sample(streams, 5):
        if not stream.messages:
            continue
        message = stream.messages[-1]
        acknowledged = message.text
        try:
            answer = await client.request("GET", message_path(message.channel, message.serial))
        except LOST:
            break  # it was killed again already
        assert answer.status == 200, answer
        assert answer.json["item"]["data"].startswith(acknowledged), "acknowledged, then lost"
    client.close()


async def check_messages(client: RawClient, streams: list[Stream]) -> dict[str, dict[str, Any]]:
    """Every message is exactly what was acknowledged; returns them by channel and serial."""
    found: dict[str, dict[str, Any]] = {channel: {} for channel in CHANNELS}
    for stream in streams:
        for message in stream.messages:
            path = message_path(message.channel, message.serial)
            latest = of_item((await client.get(path))["item"])
            page = await client.get(f"{path}/versions", direction="oldest_first")
            assert not page["has_more"]
            first, *appends = [of_item(item) for item in page["items"]]
            state = first
            for version in appends:
                state = after(state, version)
            assert state == latest
            assert latest.data == message.text, "once and in order"
            assert [
                (v.message_serial, v.version_serial, v.history_serial, v.delivery_serial)
                for v in appends
            ] == [serials(ack) for _, ack in message.acks]
            assert latest.extras["ai"] == COMPLETE["ai"]
            found[message.channel][message.serial] = latest
    return found


async def check_retries(client: RawClient, streams: list[Stream], rng: random.Random) -> None:
    """Whatever was acknowledged is a duplicate now, with the serials it had."""
    for stream in rng.sample(streams, 25):
        body, first = rng.choice(stream.creates)
        answer = await client.request("POST", "/events", body)
        again = answer.json["channels"][stream.channel]
        assert (answer.status, serials(again)) == (200, serials(first))
        message = rng.choice(stream.messages)
        path = f"{message_path(message.channel, message.serial)}/append"
        for body, first in rng.sample(message.acks, min(3, len(message.acks))):
            answer = await client.request("POST", path, body)
            assert (answer.status, answer.json["status"]) == (200, "duplicate"), answer
            assert serials(answer.json) == serials(first)


async def check_followers(
    followers: list[tuple[Follower, asyncio.Task[None]]],
    messages: dict[str, dict[str, Any]],
    heads: Counter[str],
) -> None:
    """Every subscriber has every operation once, and holds what everybody holds."""
    for follower, task in followers:
        await follower.reach(heads[follower.channel], task)
    for follower, task in followers:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
        head = heads[follower.channel]
        assert [frame["serial"] for frame in follower.frames] == list(range(1, head + 1))
        assert len({frame["message_id"] for frame in follower.frames}) == head
        views = [of_frame(frame) for frame in follower.frames]
        assert latest_of(views, is_full=follower.is_full) == messages[follower.channel]
        assert follower.attached > 1, "it came back"


async def kill_again_and_again(
    server: ServerProcess, plan: list[str], streams: list[Stream], late: Follower
) -> None:
    """The whole schedule, then a start that is not killed.

    `late` comes back from the last kill only when something was written, so that at least one
    subscriber has something to resume, however the others and the writers take turns.
    """
    rng = random.Random(SEED)
    for number, spec in enumerate(plan):
        if number == len(plan) - 1:
            late.may_connect.clear()
        if number:
            await asyncio.to_thread(server.start, spec)
        if spec:
            assert await asyncio.to_thread(server.wait, 30) == -9
            continue
        await check_acknowledged(server.port, streams)
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await check_acknowledged(server.port, streams)
    its = [stream for stream in streams if stream.channel == late.channel]
    before = sum(stream.acknowledged for stream in its)
    async with asyncio.timeout(60):
        while sum(stream.acknowledged for stream in its) == before:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    late.may_connect.set()


async def test_token_streams_survive_kills(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """No acknowledged token is lost, doubled or moved by any kill; subscribers resume gaplessly."""
    plan = schedule(engine, KILLS)
    reached = {spec.partition("=")[0] for name in ENGINES for spec in schedule(name, KILLS)}
    assert reached == {*map(str, POINTS), ""}
    config = tmp_path / "tidelog.toml"
    config.write_text(CONFIG)
    with ServerProcess(
        data_dir=tmp_path / "data", store=store_location, arguments=("--config", str(config))
    ) as server:
        server.start()
        url = f"ws://127.0.0.1:{server.port}"
        made = [Follower(lambda: url, channel) for channel in CHANNELS]
        made += [Follower(lambda: url, channel, is_full=True) for channel in CHANNELS[:2]]
        followers = [(each, asyncio.create_task(each.run())) for each in made]
        for follower, task in followers:
            await follower.reach(0, task)
        streams = [Stream(number, lambda: server.port) for number in range(STREAMS)]
        stopping = asyncio.Event()
        working = [asyncio.create_task(stream.run(stopping)) for stream in streams]
        await kill_again_and_again(server, plan, streams, late=made[0])
        stopping.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*working)

        client = RawClient(lambda: server.port)
        messages = await check_messages(client, streams)
        operations = [
            (stream.channel, ack["delivery_serial"])
            for stream in streams
            for _, ack in [*stream.creates, *(a for m in stream.messages for a in m.acks)]
        ]
        heads = Counter(channel for channel, _ in operations)
        assert len(set(operations)) == len(operations)
        for channel in CHANNELS:
            page = await client.get(f"{channel_path(channel)}/history/state")
            assert page["stream"]["next_serial"] == len(messages[channel]) + 1
        await check_retries(client, streams, random.Random(SEED))
        await check_followers(followers, messages, heads)
        client.close()
        assert server.terminate() == 0
    verified = await asyncio.to_thread(
        run_command, "log", "verify", "--store", store_location, cwd=tmp_path
    )
    assert verified.returncode == 0, verified.stderr + verified.stdout
    store = await open_store(SCHEMA, store_location, log_id="", node="", read_only=True)
    try:
        assert (await store.head()).committed_id == len(operations), "nothing else was committed"
        assert await store.dedupe_count() == len(operations)
    finally:
        await store.close()
    statuses = sum((stream.statuses for stream in streams), Counter())
    repeated = sum(stream.repeated for stream in streams)
    assert repeated >= KILLS
    # Of a few kills, each may have hit a create, whose retry is not told that it is one.
    assert statuses["duplicate"] > 0 or len(POINTS) > KILLS, "no retry met its first attempt"
    replayed = sum(follower.replayed for follower, _ in followers)
    assert replayed > 0
    print(  # noqa: T201
        f"{engine}: {KILLS} kills, {len(operations)} operations, {dict(statuses)}, "
        f"{repeated} requests repeated, {replayed} frames resumed"
    )
