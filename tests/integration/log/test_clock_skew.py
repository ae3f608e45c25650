"""A node whose clock is wrong writes nothing, and nobody goes by its time (PostgreSQL)."""

import asyncio
import logging
import re
import time
from pathlib import Path

import httpx
import pytest

from support.channels.peer import channels_server, ok
from support.log.nodes import Witness, put_item, running_node
from tidelog.base.clock import SystemClock
from tidelog.base.errors import ClockSkewed
from tidelog.base.settings.limits import Limits
from tidelog.log.decision import Failure

QUICK = Limits(head_poll_ms=20)


class Wall:
    """A wall clock that can be wrong."""

    def __init__(self, ahead_seconds: float = 0.0) -> None:
        self.ahead_seconds = ahead_seconds
        self.clock = SystemClock(lambda: time.time_ns() + int(self.ahead_seconds * 1e9))


async def ready(url: str) -> tuple[int, dict[str, object]]:
    """What `/healthz` says."""
    async with httpx.AsyncClient(verify=False) as client:
        response = await client.get(f"{url}/healthz")
    return response.status_code, response.json()


async def until_ready(url: str, wanted: int) -> dict[str, object]:
    """Wait until `/healthz` answers with this status."""
    async with asyncio.timeout(60):
        while True:
            status, health = await ready(url)
            if status == wanted:
                return health
            await asyncio.sleep(0.02)


async def test_receipts_outlive_a_clock_that_is_wrong(tmp_path: Path, postgresql_url: str) -> None:
    """590 s ahead: refused, told and shown; a retry on another node stays a retry."""
    wall = Wall()
    async with (
        channels_server(tmp_path / "a", postgresql_url, limits=QUICK) as right,
        channels_server(tmp_path / "b", postgresql_url, limits=QUICK, clock=wall.clock) as wrong,
    ):
        body = {"name": "paid", "channel": "room", "data": "1", "idempotency_key": "k"}
        first = ok(await right.api.post("/events", body))
        wall.ahead_seconds = 590
        wrong.api.now = time.time
        refused = await wrong.api.events("room", data="2")
        assert refused.status_code == 503
        assert "clock" in refused.json()["error"]
        told = await until_ready(wrong.server.url, 503)
        assert re.search(r"clock is (5[89]|6[0-4])\d", str(told["reason"]))
        skew = wrong.server.metrics.registry.get_sample_value("tidelog_clock_skew_seconds")
        assert skew == pytest.approx(590, abs=59)
        assert ok(await right.api.post("/events", body)) == first
        history = await right.api.history("room")
        assert len(history["items"]) == 1
        wall.ahead_seconds = 0
        await until_ready(wrong.server.url, 200)
        ok(await wrong.api.events("room", data="3"))
        assert ok(await right.api.post("/events", body)) == first


@pytest.mark.parametrize("ahead_seconds", [-3600.0, -6.0, 6.0, 3600.0])
async def test_a_node_that_starts_with_a_wrong_clock(
    postgresql_url: str, ahead_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """More than 5 s in either direction: every write fails, one line says why, and nothing is kept.

    Once the clock is right, writes are taken again, and that is said too.
    """
    wall = Wall(ahead_seconds)
    caplog.set_level(logging.INFO, logger="tidelog.log.clock_skew")
    async with running_node(postgresql_url, clock=wall.clock, limits=QUICK) as node:
        for key in ("a", "b"):
            item = put_item("s", key)
            [answer] = await asyncio.wrap_future(node.submit((item,), item.names()))
            assert isinstance(answer, Failure)
            assert isinstance(answer.error, ClockSkewed)
            way = "ahead of" if ahead_seconds > 0 else "behind"
            assert f"s {way} the database's" in str(answer.error)
        assert (await node.store.head()).committed_id == 0
        assert told(caplog) == ["ERROR"]
        wall.ahead_seconds = 0
        put = await node.put("s", "c")
        assert (put.status, put.committed_id) == ("committed", 1)
        assert told(caplog) == ["ERROR", "INFO"]


@pytest.mark.parametrize("ahead_seconds", [-4.0, 4.0])
async def test_a_clock_that_is_a_little_wrong_does_not_date_entries(
    postgresql_url: str, ahead_seconds: float
) -> None:
    """Up to 5 s are taken; entries, receipts and whatever asks the clock go by the database's."""
    wall = Wall(ahead_seconds)
    async with running_node(postgresql_url, clock=wall.clock) as node:
        before = database_ms(postgresql_url)
        put = await node.put("s", "k")
        after = database_ms(postgresql_url)
        assert before <= put.committed_at <= after
        assert wall.clock.now_ms() >= after, "never behind what the store dates"


async def test_a_jump_between_two_writes_dates_nothing(postgresql_url: str) -> None:
    """The wall clock jumps while a write is under way: it is dated by the database all the same."""
    wall = Wall()
    async with running_node(postgresql_url, clock=wall.clock) as node:
        begin = node.store.writer.begin

        async def jumping(*arguments: object) -> object:
            wall.ahead_seconds = 590
            return await begin(*arguments)  # type: ignore[arg-type]

        node.store.writer.begin = jumping  # type: ignore[method-assign, assignment]
        item = put_item("s", "k")
        await asyncio.wrap_future(node.submit((item,), item.names()))
        assert (await node.store.head()).committed_at <= database_ms(postgresql_url)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The levels of what was said of the clock itself."""
    return [
        record.levelname for record in caplog.records if record.name == "tidelog.log.clock_skew"
    ]


def database_ms(url: str) -> int:
    """The database's time."""
    witness = Witness(url)
    try:
        [(now,)] = witness.rows("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        return int(now)
    finally:
        witness.close()
