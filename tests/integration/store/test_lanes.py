"""Short reads have a lane of their own: nobody waits for somebody's history."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.store.rows import Key
from tidelog.store.schema import Extension

STREAM = "channels/app/long"

SLOW = Extension(
    queries={
        "sqlite": {"slow": "SELECT held()"},
        "postgresql": {"slow": "SELECT 1, pg_advisory_xact_lock_shared(($1::bigint[])[1])::text"},
    },
)


@pytest.mark.parametrize("pool_size", [1, 4])
async def test_short_reads_wait_for_no_long_one(
    engine: str, store_location: str, pool_size: int
) -> None:
    """However many read histories: what health and subscribing need is read at once."""
    assert {
        "head",
        "channels_channel",
        "channels_message",
        "channels_last_event",
    } <= SCHEMA.short_reads
    store = await open_store(
        SCHEMA.extended([SLOW]), store_location, log_id="log", node="node", pool_size=pool_size
    )
    try:
        async with hold(store, store_location) as key:
            slow = [asyncio.create_task(store.rows("slow", key)) for _ in range(40)]
            async with asyncio.timeout(60):  # or it would wait for ever
                for _ in range(10):
                    assert (await store.head()).committed_id == 0
                    assert await store.rows("channels_channel", (STREAM, 0)) == ((0,) * 9,)
                    assert await store.entries(0) == []
            assert not any(task.done() for task in slow)
        await asyncio.gather(*slow)
    finally:
        await store.close()


@asynccontextmanager
async def hold(store: Any, location: str) -> AsyncIterator[Key]:
    """Let the slow query stand still for the length of the block; returns its parameters."""
    if location.startswith("postgresql://"):
        server = await asyncpg.connect(location)
        await server.execute("SELECT pg_advisory_lock(7)")
        yield (7,)
        await server.close()
        return
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def held() -> int:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()
        return 1

    for lane in (store._long, store._short):
        for connection in lane._idle:
            connection.create_function("held", 0, held)
    yield ()
    released.set()


async def test_all_page_caches_together_have_a_bound(tmp_path: Path) -> None:
    """A third is the writer's, and each lane has another third."""
    location = str(tmp_path / "tidelog.db")
    store: Any = await open_store(
        SCHEMA, location, log_id="log", node="node", page_cache_bytes=3 * 1024 * 1024
    )
    try:
        connections = [store.writer._connection, *store._short._idle, *store._long._idle]
        sizes = [one.execute("PRAGMA cache_size").fetchone() for one in connections]
        assert sizes == [(-1024,), *[(-512,)] * 4]
    finally:
        await store.close()
