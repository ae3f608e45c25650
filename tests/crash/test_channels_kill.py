"""`kill -9` of the real process during a hundred token streams, with subscribers that resume."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

from support.channels.peer import APP, channel_path, message_path
from support.channels.raw import LOST, Follower, RawClient
from support.channels.token_streams import (
    CHANNELS,
    Stream,
    check_followers,
    check_messages,
    check_retries,
)
from support.cli.command import run as run_command
from tidelog.base.faultpoint import COMMIT_PATH, FaultPoint
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.testing.process import ServerProcess

STREAMS = 100
KILLS = max(4, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "4")))
"""Per engine; `scripts/soak --kills` raises it. Four reach half of the fault points on each engine
and so all of them on one; `test_kill` reaches all on each."""
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
POINTS = tuple(COMMIT_PATH)
ENGINES = ("sqlite", "postgresql")

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
