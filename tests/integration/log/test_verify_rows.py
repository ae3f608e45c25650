"""Verification finds one changed value in any row beside the log, and nothing in a sound store."""

import asyncio
import json
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest

from support.channels.peer import channels_server
from support.cli.inside import invoked
from support.store.catalogue import Database
from support.store.full_store import fill
from tidelog.base.errors import StoreDamaged
from tidelog.channels.upkeep import erasing
from tidelog.cli.verification import Verdict, verify_store
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.store.catalogue import tables
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database, drop_database

NOT_COVERED = {
    "alteration": "what a lake is to read again; `pipeline check` compares what it made of that",
    "writer": "the last batch of each running process; asked for only until its COMMIT is answered",
    "announcement": "what nodes tell each other beside the log; unlogged, and gone in a minute",
    "schema_version": "a store whose version is another one is refused before anything is read",
    "probe_stream": "of a surface outside the package, which brings no verifier",
}
"""Tables whose rows are not verified, and why."""

ROWS = int(os.environ.get("TIDELOG_TEST_SOAK_ROWS", "1"))
"""Rows of a table in which each column is changed; `scripts/soak` changes more."""

VERIFICATIONS = 1 + ROWS
"""Of a store that is written to meanwhile, as fast as that goes."""

REFUSED = 20
"""Further rows that are tried where the engine has no place for a value, such as the name of the
other partition of an event. Which rows are chosen depends on the order in which they are read."""


class Changer:
    """Changes single values of a store, and puts them back.

    As a context manager it keeps its connection to a server for many changes.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._is_sqlite = not location.startswith("postgresql://")
        self._kept: asyncpg.Connection | None = None

    async def __aenter__(self) -> Self:
        if not self._is_sqlite:
            self._kept = await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._kept is not None:
            await self._kept.close()

    async def _connect(self) -> asyncpg.Connection:
        settings = {"search_path": "tidelog, public"}
        return await asyncpg.connect(self._location, server_settings=settings)

    async def run(self, statement: str, *values: object) -> list[Any]:
        """Run one statement; its parameters are `$1` and so on."""
        if self._is_sqlite:
            with closing(sqlite3.connect(self._location, isolation_level=None)) as connection:
                return connection.execute(statement.replace("$", "?"), values).fetchall()
        server = self._kept or await self._connect()
        try:
            return [tuple(row) for row in await server.fetch(statement, *values)]
        finally:
            if server is not self._kept:
                await server.close()

    async def change(self, table: str, key: dict[str, Any], column: str, value: object) -> bool:
        """Set one value; False if the engine has no place for it."""
        where = " AND ".join(f"{name} = ${n}" for n, name in enumerate(key, start=2))
        statement = f"UPDATE {table} SET {column} = $1 WHERE {where}"
        try:
            await self.run(statement, value, *key.values())
        except (sqlite3.IntegrityError, asyncpg.PostgresError):
            return False
        return True


def changed(value: object, kind: str, rng: random.Random) -> object:
    """The value with one bit changed; instead of nothing, something."""
    if value is None:
        return {"INTEGER": 1, "BIGINT": 1, "TEXT": "x"}.get(kind.upper(), b"x")
    if isinstance(value, int):
        return value ^ (1 << rng.randrange(40))
    if isinstance(value, str):
        if not value:
            return "\1"
        at = rng.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
    assert isinstance(value, bytes)
    if not value:
        return b"\1"
    at = rng.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << rng.randrange(8))]) + value[at + 1 :]


def verify(location: str) -> dict[str, Any]:
    """What `tidelog log verify --json` prints."""
    result = invoked(["log", "verify", "--json", "--store", location])
    answer: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if answer["sound"] else 1), result.output
    return answer


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A store with rows in every table; whoever changes it puts it back."""
    folder = tmp_path_factory.mktemp("full")
    if request.param == "sqlite":
        location = str(folder / "tidelog.db")
        asyncio.run(fill(location, folder))
        yield location
        return
    server = request.getfixturevalue("postgresql_server")
    location = asyncio.run(create_database(server))
    asyncio.run(fill(location, folder))
    yield location
    asyncio.run(drop_database(location))


def test_a_sound_store_is_sound(full_store: str) -> None:
    """Rows in all their states, with emptied, archived and pruned content: nothing is found."""
    answer = verify(full_store)
    assert (answer["sound"], answer["damage"], answer["unsealed"]) == (True, [], 0)
    assert answer["rows"] > 100


async def test_one_changed_value_is_found_in_every_column(full_store: str) -> None:
    """Of every table, in several rows: the engine refuses the value, or verification finds it."""
    async with Changer(full_store) as changer:
        await change_every_column(full_store, changer)


async def change_every_column(full_store: str, changer: Changer) -> None:
    """Each is changed, found and put back."""
    rng = random.Random(19)
    database = Database(full_store)
    found: Counter[str] = Counter()
    missed: list[tuple[Any, ...]] = []
    everything = await database.columns()
    reader = await open_store(SCHEMA, full_store, log_id="", node="", read_only=True)
    assert set(tables(SCHEMA)) <= set(everything)
    for table, columns in everything.items():
        if table in NOT_COVERED:
            continue
        key_columns = [name for name, (_, _, place) in columns.items() if place]
        stored = await changer.run(f"SELECT {', '.join(columns)} FROM {table}")
        assert stored, f"{table} has no row to change"
        for index, (column, (kind, _, _)) in enumerate(columns.items()):
            some = [row for row in stored if row[index] is not None]
            left = ROWS
            for row in [row for row in stored if row[index] is None][:1] + rng.sample(
                some, min(ROWS + REFUSED, len(some))
            ):
                if not left:
                    break
                before = row[index]
                key = {name: row[list(columns).index(name)] for name in key_columns}
                after = changed(before, kind, rng)
                if not await changer.change(table, key, column, after):
                    continue
                left -= before is not None
                if (await verify_store(reader)).is_sound:
                    missed.append((table, column, before, after))
                else:
                    found[f"{table}.{column}"] += 1
                moved = key | ({column: after} if column in key else {})
                assert await changer.change(table, moved, column, before)
    assert missed == []
    assert (await verify_store(reader)).is_sound
    await reader.close()
    named = {f"{t}.{c}" for t, cs in everything.items() if t not in NOT_COVERED for c in cs}
    assert named - set(found) <= {"head.only_row"}, "no value of these columns was changed"


UNSEALED = {
    "id of sync": (
        "dedupe",
        "scope = 'sync' AND key = '1'",
        ("owner = 'b'", "committed_id = 1", "first_seen_at = 1", "available = 0", "expires_at = 1"),
    ),
    "id of the mesh": (
        "dedupe",
        "scope >= 'mesh/' AND scope < 'mesh0' AND available = 1",
        ("owner = 'b'", "first_seen_at = 1", "available = 0", "key = key || 'x'"),
    ),
    "delivery": (
        "mesh_delivery_queue",
        "channel = 'push' AND status = 'claimed'",
        ("created_at = 1", "history_id = 1", "recipient_pubkey = 'queue:other'", "mesh_id = 'm'"),
    ),
    "mention": (
        "mesh_mention_index",
        "history_id > 1",
        ("created_at = 1", "history_id = 1", "mentioned_pubkey = 'x'"),
    ),
}
"""Rows that an earlier version wrote, and changes of them that the log alone must show."""

NAMED = {"mesh_message_tombstone": "mesh_message_history"}
"""Tables whose rows are missed under another name."""

MISSING = {
    "channels_version": "committed_id = (SELECT max(committed_id) FROM channels_version)",
    "channels_message": "message = (SELECT max(message) FROM channels_message)",
    "channels_channel": "stream LIKE '%/reset'",
    "sync_event_partitions": "partition = 'q'",
    "sync_events_archive": "committed_id = (SELECT max(committed_id) FROM sync_events_archive)",
    "dedupe": "scope = 'sync' AND key = '5'",
    "mesh_delivery_queue": "status = 'claimed'",
    "mesh_mention_index": "history_id > 1",
    "mesh_message_tombstone": "reason <> ''",
    "mesh_setting": "1 = 1",
    "mesh_member": "name = 'ana'",
    "head": "only_row = 1",
}
"""Rows that follow from the log, and are missed when they are not there."""


@pytest.fixture
async def copy(full_store: str, tmp_path: Path) -> AsyncIterator[str]:
    """A copy of the full store, to be spoilt."""
    if not full_store.startswith("postgresql://"):
        target = tmp_path / "copy" / "tidelog.db"
        target.parent.mkdir()
        with closing(sqlite3.connect(full_store)) as source, closing(sqlite3.connect(target)) as to:
            source.backup(to)
        yield str(target)
        return
    server, name = full_store.rsplit("/", 1)
    location = await create_database(f"{server}/postgres", template=name)
    yield location
    await drop_database(location)


async def verdict_of(location: str) -> Verdict:
    """What verification finds."""
    reader = await open_store(SCHEMA, location, log_id="", node="", read_only=True)
    try:
        return await verify_store(reader)
    finally:
        await reader.close()


@pytest.mark.parametrize("row", UNSEALED)
async def test_rows_of_an_earlier_version_are_compared_with_the_log(copy: str, row: str) -> None:
    """Without a seal, whatever follows from an entry is still found when it is changed."""
    table, where, changes = UNSEALED[row]
    reader = await open_store(SCHEMA, copy, log_id="", node="", read_only=True)
    async with Changer(copy) as changer:
        await changer.run(f"UPDATE {table} SET seal = NULL WHERE {where}")
        verdict = await verify_store(reader)
        assert verdict.is_sound
        assert verdict.unsealed > 0
        [kept] = await changer.run(f"SELECT count(*) FROM {table} WHERE {where}")
        await changer.run(f"CREATE TABLE kept AS SELECT * FROM {table}")
        for change in changes:
            await changer.run(f"UPDATE {table} SET {change} WHERE {where}")
            damaged = await verify_store(reader)
            assert damaged.damaged >= kept[0], change
            await changer.run(f"DELETE FROM {table}")
            await changer.run(f"INSERT INTO {table} SELECT * FROM kept")
    await reader.close()


@pytest.mark.parametrize("table", MISSING)
async def test_a_row_that_follows_from_the_log_is_missed(copy: str, table: str) -> None:
    """It is named, by its table."""
    changer = Changer(copy)
    await changer.run(f"DELETE FROM {table} WHERE {MISSING[table]}")
    verdict = await verdict_of(copy)
    assert not verdict.is_sound
    if table != "head":
        assert {each.table for each in verdict.damage} & {table, NAMED.get(table)}


SURPLUS = {
    "channels_version": "INSERT INTO channels_version VALUES (9, 10)",
    "channels_message": (
        "INSERT INTO channels_message SELECT message + 1000000, stream, history_serial + 100, "
        "published_at, is_open, size_bytes, through, state, base, base_seal "
        "FROM channels_message WHERE message = 9"
    ),
    "sync_event_partitions": (
        "INSERT INTO sync_event_partitions SELECT 'new', committed_id FROM sync_event_partitions "
        "WHERE partition = 'q'"
    ),
}
"""Rows too many, which no seal can show."""


@pytest.mark.parametrize("table", SURPLUS)
async def test_a_row_that_does_not_follow_from_the_log_is_found(copy: str, table: str) -> None:
    """It is named, by its table."""
    await Changer(copy).run(SURPLUS[table])
    verdict = await verdict_of(copy)
    assert {each.table for each in verdict.damage} == {table}


async def test_a_damaged_row_is_named(copy: str) -> None:
    """The command says which row of which table it is, what is wrong, and what to do."""
    await Changer(copy).run("UPDATE mesh_member SET name = 'eve' WHERE name = 'ben'")
    [(member,)] = await Changer(copy).run("SELECT id FROM mesh_member WHERE name = 'eve'")
    arguments = ["log", "verify", "--store", copy]
    result = await asyncio.to_thread(invoked, arguments)
    assert result.exit_code == 1
    assert result.output.splitlines()[1:] == [
        "DAMAGED beside the log, 1 finding:",
        f"  mesh_member {member}: is not what was written",
        "Restore a backup with `tidelog restore`.",
    ]


async def test_a_damaged_row_is_told_by_a_backup_and_refused_by_a_restore(
    copy: str, tmp_path: Path
) -> None:
    """The copy is kept, since it may be the only one; the exit code says that it is not sound."""
    await Changer(copy).run("UPDATE channels_message SET size_bytes = size_bytes + 1")
    [(changed_rows,)] = await Changer(copy).run("SELECT count(*) FROM channels_message")
    file, target = tmp_path / "backup.db", tmp_path / "new"
    made = await asyncio.to_thread(invoked, ["backup", str(file), "--store", copy, "--json"])
    answer = json.loads(made.stdout)
    assert (made.exit_code, answer["verified"], answer["damaged"]) == (1, False, changed_rows)
    assert answer["damage"][0]["table"] == "channels_message"
    assert file.exists()
    refused = await asyncio.to_thread(invoked, ["restore", str(file), "--data-dir", str(target)])
    assert refused.exit_code == 1
    assert isinstance(refused.exception, StoreDamaged)
    assert f"{changed_rows} findings; the first: channels_message 2: size_bytes" in str(
        refused.exception
    )
    assert not target.exists()


async def test_a_full_store_is_restored_to_either_engine(
    full_store: str, tmp_path: Path, postgresql_server: str
) -> None:
    """What was written by one engine is what the other verifies: the same rows, the same seals."""
    file = tmp_path / "backup.db"
    elsewhere = await create_database(postgresql_server)
    if full_store.startswith("postgresql://"):
        await drop_database(elsewhere)
        elsewhere = str(tmp_path / "new" / "tidelog.db")
    for arguments in (
        ["backup", str(file), "--store", full_store],
        ["restore", str(file), "--store", elsewhere],
        ["log", "verify", "--store", elsewhere],
    ):
        result = await asyncio.to_thread(invoked, arguments)
        assert result.exit_code == 0, result.output
    moved, kept = await verdict_of(elsewhere), await verdict_of(full_store)
    assert moved.tables == {**kept.tables, "incarnation": kept.tables["incarnation"] + 1}
    changer = Changer(elsewhere)
    [(last,)] = await changer.run("SELECT max(number) FROM incarnation")
    assert last > 1, "the restore began another"
    await changer.run("CREATE TABLE kept AS SELECT * FROM incarnation")
    for number in range(1, last + 1):
        await changer.run("DELETE FROM incarnation WHERE number = $1", number)
        assert {each.table for each in (await verdict_of(elsewhere)).damage} == {"incarnation"}
        await changer.run("DELETE FROM incarnation")
        await changer.run("INSERT INTO incarnation SELECT * FROM kept")
    assert (await verdict_of(elsewhere)).is_sound
    if elsewhere.startswith("postgresql://"):
        await drop_database(elsewhere)


async def test_verification_goes_on_while_the_server_writes(
    store_location: str, tmp_path: Path
) -> None:
    """Nothing is found in a store at work: rows and entries that are written together agree."""
    await fill(store_location, tmp_path)
    clock = FakeClock(time.time_ns() // 1_000_000)
    window = {"retention_window_seconds": 1, "purge_interval_seconds": 3600}
    async with channels_server(
        tmp_path / "again", store_location, clock=clock, versioned_messages=window
    ) as node:
        api = node.api
        api.now = lambda: clock.now_ms() / 1000
        is_done = asyncio.Event()

        async def write(number: int) -> int:
            written = 0
            while not is_done.is_set():
                serial = (await api.publish("busy", f"{number} "))["message_serial"]
                for _ in range(5):
                    clock.advance(50)
                    more = {"data": "x" * 3000}
                    # Retention may have taken it already.
                    await api.try_mutate("append", "busy", serial, **more)
                written += 6
            return written

        async def prune() -> int:
            pruned = 0
            while not is_done.is_set():
                pruned += await node.surface.owner.retention.tick()
            return pruned

        working = [asyncio.create_task(write(n)) for n in range(3)]
        pruning = asyncio.create_task(prune())
        for _ in range(VERIFICATIONS):
            assert (await verdict_of(store_location)).damage == []
        is_done.set()
        assert sum(await asyncio.gather(*working)) > 0
        assert await pruning > 0
    assert (await verdict_of(store_location)).damage == []


@pytest.mark.parametrize("target", ["message", "channel"])
async def test_an_erasure_that_is_under_way_is_no_damage(
    store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """A server that dies in the middle of it; but content that is left when it is done is found."""
    admin_token = "an admin token of some length"

    async def dead(_self: object) -> None:
        await asyncio.Event().wait()

    # Before the server has started, which begins with carrying out what there is.
    monkeypatch.setattr(erasing, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(erasing.Erasing, "carry_out", dead)
    async with channels_server(tmp_path, store_location, admin_token=admin_token) as node:
        serials = [(await node.api.publish("room", "secret"))["message_serial"] for _ in range(2)]
        await node.api.mutate("append", "room", serials[0], data="x" * 5000)
        order = {"app_id": "tide", "channel": "room", "reason": "asked for"}
        if target == "message":
            order["message_serial"] = serials[0]
        answer = await node.client.post(
            f"{node.api.url}/channels/admin/forget",
            json=order,
            headers={"authorization": f"Bearer {admin_token}"},
        )
        assert answer.json() == {"ok": True, "complete": False}
        assert (await verdict_of(store_location)).damage == []
    changer = Changer(store_location)
    await changer.run("UPDATE channels_erasure SET step = 2")
    problems = {each.problem for each in (await verdict_of(store_location)).damage}
    assert "was erased, but is still there" in problems
