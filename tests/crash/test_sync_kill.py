"""`kill -9` of the real process while many clients of both profiles submit."""

import asyncio
import json
import os
import random
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from support.log.nodes import whole_log
from support.sync.peer import ADMIN_TOKEN, MODEL, SECRET, connected, write_model
from support.sync.submitters import PARTITIONS, PAUSE_SECONDS, SEED, Submitter, Subscriber
from tidelog.base.faultpoint import COMMIT_PATH, FaultPoint
from tidelog.config.schema import SCHEMA
from tidelog.log.verify import verify
from tidelog.store import open_store
from tidelog.store.rows import Entry
from tidelog.sync.protocol.profiles import TREE_ACTIONS, Model
from tidelog.sync.protocol.tree import TreeState, _failed_invariants
from tidelog.testing.process import ServerProcess

SUBMITTERS = 16
KILLS = max(8, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "8")))
"""Per engine; `scripts/soak --kills` raises it."""


def schedule(kills: int) -> list[str]:
    """Which fault point each start is killed at; the empty text means at a random moment.

    The first start is not killed at a point: it also stores settings, which must not fail here.
    """
    rng = random.Random(SEED)
    plan = [""]
    while len(plan) < kills:
        for point in COMMIT_PATH:
            busy = point in (FaultPoint.HANDING_OVER, FaultPoint.FLUSHING)
            plan.append(f"{point}=kill@{rng.randint(1, 60 if busy else 12)}")
        plan += [""]
    return plan[:kills]


KINDS = {"event", "treePush", "treeMove", "treeDelete", "treeUpdate"}
"""What must have been committed for the case to mean something."""


async def read_events(location: str) -> list[Entry]:
    """The log of a store that verifies."""
    store = await open_store(SCHEMA, location, log_id="", node="", read_only=True)
    try:
        async for progress in verify(store):
            assert progress.finding is None, progress
        return await whole_log(store)
    finally:
        await store.close()


def snapshot(port: int, partition: str) -> int:
    """Let the server store the state it rebuilt; returns its position."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/sync/admin/snapshot",
        data=json.dumps({"partition": partition}).encode(),
        headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
        method="PUT",
    )
    with urllib.request.urlopen(request) as answer:
        return int(json.load(answer)["committed_id"])


def replayed(events: list[dict[str, Any]], partition: str) -> TreeState:
    """The trees of a partition, from the log alone; every event of it was possible."""
    model = Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])
    state = TreeState(model)
    for event in events:
        if partition in event["partitions"] and event["event"]["type"] in TREE_ACTIONS:
            assert state.check(event["event"]) == [], event
            state.apply(event["event"])
    return state


async def test_acknowledged_events_survive_kills(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Nothing acknowledged is lost, doubled or moved; subscribers see all once; trees are whole."""
    config = tmp_path / "tidelog.toml"
    config.write_text(
        f"[sync]\njwt_secret = {json.dumps(SECRET)}\nmax_messages_per_second = 100000\n"
        f"model_file = {json.dumps(write_model(tmp_path))}\n"
    )
    plan = schedule(KILLS)
    assert {spec.partition("=")[0] for spec in plan} == {*map(str, COMMIT_PATH), ""}
    rng = random.Random(SEED)
    with ServerProcess(
        data_dir=tmp_path / "data",
        store=store_location,
        environment={"TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
        arguments=("--config", str(config)),
    ) as server:
        server.start(plan[0])
        url = f"ws://127.0.0.1:{server.port}/sync"
        submitters = [Submitter(number, url) for number in range(SUBMITTERS)]
        subscriber = Subscriber(url)
        stopping = asyncio.Event()
        following = asyncio.create_task(subscriber.run())
        working = [asyncio.create_task(each.run(stopping)) for each in submitters]
        async with asyncio.timeout(30):
            while subscriber.attached == 0:
                assert not following.done(), following.exception()
                await asyncio.sleep(PAUSE_SECONDS)
        for number, spec in enumerate(plan):
            if number:
                await asyncio.to_thread(server.start, spec)
            if spec:
                assert await asyncio.to_thread(server.wait, 30) == -9
            else:
                await asyncio.sleep(rng.uniform(0.05, 0.5))
                await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(30):
            # A busy machine gets little done between the kills.
            while not set[str]().union(*(each.kinds for each in submitters)) >= KINDS:
                assert not following.done(), following.exception()
                await asyncio.sleep(PAUSE_SECONDS)
        stopping.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*working)
        acknowledged = {k: v for each in submitters for k, v in each.acknowledged.items()}
        items = {k: v for each in submitters for k, v in each.items.items()}

        async with connected(url, "fresh", max_queue=None) as fresh:
            events = await fresh.whole(*PARTITIONS, limit=1000)
            ids = [event["id"] for event in events]
            assert len(set(ids)) == len(ids), "an id was committed twice"
            async with asyncio.timeout(30):
                while len(subscriber.received) < len(events):
                    assert not following.done(), following.exception()
                    await asyncio.sleep(PAUSE_SECONDS)
            following.cancel()
            ended = await asyncio.gather(following, return_exceptions=True)
            assert isinstance(ended[0], asyncio.CancelledError), ended
            assert subscriber.received == events, "every event once, in order"
            assert subscriber.attached > 1, "it came back from its cursor"

            stored = {event["id"]: event for event in events}
            for item_id, result in acknowledged.items():
                event = stored.get(item_id)
                assert event is not None, f"acknowledged {item_id} is not there"
                assert event["committed_id"] == result["committed_id"]
                assert event["status_updated_at"] == result["status_updated_at"]
                assert event["event"] == items[item_id]["event"]
                assert event["partitions"] == sorted(items[item_id]["partitions"])
            sample = [items[item_id] for item_id in ids[:: max(1, len(ids) // 100)]]
            for start in range(0, len(sample), 50):
                for result in await fresh.submit(*sample[start : start + 50]):
                    event = stored[result["id"]]
                    assert result["status"] == "committed"
                    assert result["committed_id"] == event["committed_id"]
                    assert result["status_updated_at"] == event["status_updated_at"]
            assert (await fresh.sync("p0"))["sync_to_committed_id"] == events[-1]["committed_id"]

        positions = [await asyncio.to_thread(snapshot, server.port, name) for name in PARTITIONS]
        assert server.terminate() == 0
    log = await read_events(store_location)
    assert [entry.entity for entry in log] == ids, "no other entries, and in the order of delivery"
    assert [entry.committed_id for entry in log] == list(range(1, len(log) + 1))
    store = await open_store(SCHEMA, store_location, log_id="", node="", read_only=True)
    try:
        assert await store.dedupe_count() == len(log)
        for name, position in zip(PARTITIONS, positions, strict=True):
            [(rebuilt, at, *_)] = await store.rows("sync_snapshot", (name,))
            expected = replayed(events, name).export()
            assert _failed_invariants(expected["t"]) == set()
            assert expected["t"]["items"], "there is a tree"
            assert json.loads(rebuilt) == expected, "what the server rebuilt is the fold of the log"
            assert at == position <= len(log)
    finally:
        await store.close()
    assert sum(each.repeated for each in submitters) >= KILLS, "answers were really lost"
    assert {entry.kind for entry in log} == KINDS
    assert sum((each.refused for each in submitters), Counter()).total() > 0
    repeated = sum(each.repeated for each in submitters)
    print(f"{engine}: {KILLS} kills, {len(log)} events, {repeated} batches repeated")  # noqa: T201
