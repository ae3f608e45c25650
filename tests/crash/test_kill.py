"""`kill -9` of the real process, again and again, under load."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from support.log.storm import HttpClient, Storm
from tidelog.base.faultpoint import COMMIT_PATH, FaultPoint
from tidelog.testing.process import ServerProcess

WRITERS = 32
KILLS = int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "12"))
"""Per engine: at every point, and as many at random; `scripts/soak --kills` raises it."""


def schedule(kills: int, seed: int) -> list[str]:
    """Which fault point each start is killed at; the empty text means at a random moment.

    Every point is used in turn; every second kill is at a random moment.
    """
    rng = random.Random(seed)
    points = list(COMMIT_PATH)
    plan = []
    for number in range(kills):
        if number % 2:
            plan.append("")
        else:
            point = points[(number // 2) % len(points)]
            passes = 40 if point in (FaultPoint.HANDING_OVER, FaultPoint.FLUSHING) else 12
            plan.append(f"{point}=kill@{rng.randint(1, passes)}")
    return plan


async def test_acknowledged_writes_survive_kills(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """No acknowledged write is lost, doubled or moved by any kill; retries get their position."""
    seed = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
    rng = random.Random(seed)
    plan = schedule(KILLS, seed)
    assert {spec.partition("=")[0] for spec in plan} >= {*map(str, COMMIT_PATH), ""}
    with ServerProcess(data_dir=tmp_path / "data", store=store_location) as server:
        server.start(plan[0])
        storm = Storm([server.port], writers=WRITERS)
        storm.start()
        for number, spec in enumerate(plan):
            if number:
                await asyncio.to_thread(server.start, spec)
            if spec:
                await asyncio.to_thread(server.wait, 30)
            else:
                await asyncio.sleep(rng.uniform(0.02, 0.5))
                await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await storm.finish()
        client = HttpClient(server.port)
        head = await storm.check(store_location, client.post)
        client.close()
        assert len(storm.acknowledged) >= WRITERS
        assert storm.statuses["duplicate"] > 0, "no retry ever met its first attempt"
        assert server.terminate() == 0
        print(f"{engine}: {KILLS} kills, {head} entries, {dict(storm.statuses)}")  # noqa: T201


async def test_kills_while_the_disk_is_slow(tmp_path: Path) -> None:
    """The same where COMMIT runs beside the loop, because the disk takes long to confirm it."""
    slow = f"{FaultPoint.COMMITTING}=slow"
    store = str(tmp_path / "tidelog.db")
    with ServerProcess(data_dir=tmp_path / "data", store=store) as server:
        server.start(f"{slow},{FaultPoint.COMMITTED}=kill@40")
        storm = Storm([server.port], writers=8)
        storm.start()
        await asyncio.to_thread(server.wait, 60)
        await asyncio.to_thread(server.start, f"{slow},{FaultPoint.HANDING_OVER}=kill@40")
        await asyncio.to_thread(server.wait, 60)
        await asyncio.to_thread(server.start, slow)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await storm.finish()
        client = HttpClient(server.port)
        await storm.check(store, client.post)
        client.close()
        assert len(storm.acknowledged) >= 8
        assert server.terminate() == 0


@pytest.mark.parametrize("point", COMMIT_PATH)
async def test_each_point_dies_with_sigkill(point: FaultPoint, tmp_path: Path) -> None:
    """Every named fault point is really passed by a write, and the process dies at it."""
    with ServerProcess(data_dir=tmp_path) as server:
        server.start(f"{point}=kill@1")
        client = HttpClient(server.port)
        with pytest.raises((OSError, EOFError)):
            await _put_over_websocket_or_http(client, point, server.port)
        assert await asyncio.to_thread(server.wait, 10) == -9


async def _put_over_websocket_or_http(client: HttpClient, point: FaultPoint, port: int) -> None:
    if point is FaultPoint.FLUSHING:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed

        async with connect(f"ws://127.0.0.1:{port}/probe/ws") as socket:
            await socket.send('{"op":"put","stream":"s","key":"k","value":1}')
            try:
                await socket.recv()
            except ConnectionClosed as closed:
                raise EOFError from closed
    await client.post("/probe/entries", b'{"op":"put","stream":"s","key":"k","value":1}')
