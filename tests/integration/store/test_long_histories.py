"""A channel with a long history: what is asked of it is looked up, not counted."""

import json
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.store.catalogue import Database
from tidelog.channels.upkeep.verifier import verify_channels
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.store.engine import MAX_ID, Store
from tidelog.store.postgresql_rows import to_columns
from tidelog.store.rows import Effects, Key, Names, RowChange

STREAM = "channels/app/long"
FOREVER = 1 << 61


@asynccontextmanager
async def opened(location: str) -> AsyncIterator[Store]:
    """A store of one's own."""
    store = await open_store(SCHEMA, location, log_id="log", node="node")
    try:
        yield store
    finally:
        await store.close()


async def write(store: Store, changes: Sequence[RowChange]) -> None:
    """Write rows as a batch does, without entries."""
    head = (await store.writer.begin(Names(), 0)).head
    effects = Effects(head.committed_id, head.digest, head.committed_at, [], [], [], [*changes])
    await store.writer.commit(b"batch", effects)


def added(message: int, serial: int, at: int, size: int, stream: str = STREAM) -> RowChange:
    """A new message."""
    return RowChange("channels_add_message", (message, stream, serial, at, 0, size))


async def test_what_is_retained_is_counted_right(engine: str, store_location: str) -> None:
    """From any serial and any time, after publishes, folds and removals, over stretches' ends."""
    rng = random.Random(7)
    kept: dict[int, list[int]] = {}  # message to serial, time and size
    serial = 0
    async with opened(store_location) as store:
        for number in range(6):
            batch = []
            for _ in range(40):
                message = len(kept) * 3 + number + 1000 * number
                serial += rng.choice((1, 1, 2, 100, 255, 256, 257, 5000, 65_536))
                kept[message] = [serial, 10 * (serial // 300), rng.randrange(100)]
                batch.append(added(message, serial, kept[message][1], kept[message][2]))
            batch.append(added(-number - 1, serial, 5, 7, stream="channels/app/another"))
            await write(store, batch)
            for message in rng.sample(sorted(kept), 30):
                kept[message][2] = size = rng.randrange(1000)
                await write(store, [RowChange("channels_fold", (message, 0, size, 1, b"{}"))])
            gone = rng.sample(sorted(kept), 10)
            if number == 4:
                gone = sorted(kept)[: len(kept) // 2]  # whole stretches
            await write(store, [RowChange("channels_remove_message", (each,)) for each in gone])
            for message in gone:
                del kept[message]
            last_at = max(at for _, at, _ in kept.values())
            for floor, since in [(0, 0), (serial, 0), (0, last_at + 1)] + [
                (rng.randrange(serial + 300), rng.choice((0, rng.randrange(last_at + 20))))
                for _ in range(40)
            ]:
                rows = [row for row in kept.values() if row[0] > floor and row[1] >= since]
                serials, times = [row[0] for row in rows], [row[1] for row in rows]
                assert await store.rows("channels_retained", (STREAM, floor, since)) == (
                    (
                        len(rows),
                        min(serials, default=None),
                        max(serials, default=None),
                        min(times, default=None),
                        max(times, default=None),
                        sum(row[2] for row in rows),
                    ),
                )
        await write(store, [RowChange("channels_remove_message", (each,)) for each in kept])
        found = await store.rows("channels_retained", (STREAM, 0, 0))
        assert found == ((0, None, None, None, None, 0),)
        left = await store.rows("channels_check_stretches", ("", 0, 0, 10_000))
        assert {row[0] for row in left} == {"channels/app/another"}, "an empty one is no row"


async def test_a_store_of_an_earlier_version_is_counted_once(
    engine: str, empty_location: str
) -> None:
    """The migration counts what is there; what comes later adds to it."""
    if engine == "sqlite":
        Path(empty_location).parent.mkdir()
    earlier = Database(empty_location)
    await earlier.at_version(SCHEMA.migrations(engine)[:12])
    for serial in (1, 255, 256, 70_000):
        await earlier.run(
            "INSERT INTO channels_message (message, stream, history_serial, published_at, is_open,"
            f" size_bytes, through) VALUES ({serial}, '{STREAM}', {serial}, 5, 0, 10, 0)"
        )
    async with opened(empty_location) as store:
        await write(store, [added(70_001, 70_001, 6, 3)])
        assert await store.rows("channels_retained", (STREAM, 0, 0)) == ((5, 1, 70_001, 5, 6, 43),)
        assert await store.rows("channels_retained", (STREAM, 255, 0)) == (
            (3, 256, 70_001, 5, 6, 23),
        )


@pytest.mark.parametrize("wrong", ["messages = 9", "size_bytes = 9", "width = 512", "number = 9"])
async def test_a_wrong_count_is_found(engine: str, store_location: str, wrong: str) -> None:
    """Verification counts again; also what has no count at all."""
    async with opened(store_location) as store:
        await write(store, [added(1, 1, 5, 7)])
    statement = f"UPDATE channels_stretch SET {wrong} WHERE width = 256"
    if engine == "sqlite":
        with closing(sqlite3.connect(store_location, isolation_level=None)) as connection:
            connection.execute(statement)
    else:
        server = await asyncpg.connect(
            store_location, server_settings={"search_path": "tidelog, public"}
        )
        await server.execute(statement)
        await server.close()
    async with opened(store_location) as store:
        found = [each async for looked in verify_channels(store) for each in looked.damage]
    assert "channels_stretch" in {each.table for each in found}


QUESTIONS: tuple[tuple[str, Key], ...] = (
    ("channels_channel", (STREAM, MAX_ID)),
    ("channels_retained", (STREAM, 0, 0)),
    ("channels_retained", (STREAM, 0, 5000)),
    ("channels_history_down", (STREAM, 0, FOREVER, 0, FOREVER, 2)),
    ("channels_history_up", (STREAM, 0, FOREVER, 9990, FOREVER, 2)),
    ("channels_history_up", (STREAM, 0, FOREVER, 0, 0, 2)),
    ("channels_history_down", (STREAM, 0, FOREVER, 0, 10, 2)),
    ("channels_history_down", (STREAM, 0, FOREVER, 20_000, FOREVER, 2)),
    ("channels_serial_before", (STREAM, 5000)),
    ("channels_last_event", (STREAM, 20_000)),
    ("channels_message_before", (STREAM, 5000)),
)
"""What is asked when a page of history is read, a channel subscribed to or purged."""


def steps(connection: sqlite3.Connection, text: str, key: Key) -> int:
    """How much SQLite does for a statement, in steps of its machine."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(step, 1)
    connection.execute(text, key).fetchall()
    connection.set_progress_handler(None, 1)
    return count


def rows_looked_at(plan: dict[str, Any]) -> int:
    """Rows that a plan of PostgreSQL's went through, those it dropped included."""
    loops = plan["Actual Loops"]
    here = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return int(here * loops) + sum(rows_looked_at(child) for child in plan.get("Plans", ()))


async def test_a_long_history_costs_what_a_short_one_costs(
    engine: str, store_location: str
) -> None:
    """Twenty times the messages, and what is asked of them takes no more steps."""
    costs: list[list[int]] = []
    queries = SCHEMA.queries(engine)
    async with opened(store_location) as store:
        for first, last in ((1, 1000), (1001, 20_000)):
            await write(store, [added(n, n, n // 2, 7) for n in range(first, last + 1)])
            costs.append([])
            for query, key in QUESTIONS:
                if engine == "sqlite":
                    with closing(sqlite3.connect(store_location)) as connection:
                        costs[-1].append(steps(connection, queries[query], key))
                    continue
                server = await asyncpg.connect(store_location)
                await server.execute("ANALYZE tidelog.channels_message")
                text = f"EXPLAIN (ANALYZE, FORMAT JSON) {queries[query]}"
                [(plan,)] = await server.fetch(text, *to_columns([key], len(key)))
                await server.close()
                costs[-1].append(rows_looked_at(json.loads(plan)[0]["Plan"]))
    # The stretch in which a time lies is looked through, and the stretches up to a large one's end.
    room = 2000 if engine == "sqlite" else 300
    over = [
        (question, small, large)
        for question, small, large in zip(QUESTIONS, *costs, strict=True)
        if large > small + room
    ]
    assert over == []
