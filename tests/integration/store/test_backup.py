"""Backups: complete, consistent while the server writes, good for either engine, or refused."""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.cli.command import tidelog
from support.log.nodes import LOG_ID, Witness, put_item, running_node, verdict
from support.store.backups import command, files_in, run_sql, silent
from support.store.catalogue import Database
from tidelog.base.errors import SchemaTooNew, StoreDamaged, StoreError, StoreUnavailable
from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.log.draft import Draft, to_entry
from tidelog.store import open_store
from tidelog.store.backup import back_up, restore
from tidelog.store.catalogue import tables
from tidelog.testing.postgresql import create_database

KEYS = ("plain", "\0", "\ue000", "\ue000" + "0", "\U0001f30a" * 200, "'", "%")


async def write_log(location: str) -> None:
    """A log with keys of all kinds, raw data, and pruned entries."""
    async with running_node(location) as node:
        await node.put_many([put_item(key, key, b'"\\u0000"') for key in KEYS])
        await node.append(Draft("raw/m", "probe", "raw", "e", "r", "a", b"{}", b"\0\xff"))
        await node.append(Draft("raw/m", "probe", "raw", "e", "r", "a", b"{}", b""))
        await node.prune("plain", 1)


COUNT = len(KEYS) + 2

HEAD = "only_row, log_id, committed_id, digest, committed_at"
"""What of the head is the same in a copy; it counts incarnations too, and a backup begins one."""


def contents(location: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table that makes up a store."""
    witness = Witness(location)
    try:
        return {
            "log": witness.rows("SELECT * FROM log ORDER BY committed_id"),
            "dedupe": witness.rows("SELECT * FROM dedupe ORDER BY committed_id"),
            "head": witness.rows(f"SELECT {HEAD} FROM head"),
        }
    finally:
        witness.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def target_location(request: pytest.FixtureRequest, tmp_path: Path, postgresql_server: str) -> str:
    """Where a store is restored to: each engine in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "restored" / "tidelog.db")
    return asyncio.run(create_database(postgresql_server))


def test_a_restored_store_is_the_same(
    store_location: str, target_location: str, tmp_path: Path
) -> None:
    """From either engine to either engine: every row, the log's name, and its keys."""
    asyncio.run(write_log(store_location))
    file = tmp_path / "backup.db"
    assert command("backup", str(file), "--store", store_location) == {
        "done": "backed up",
        "head": COUNT,
        "file": str(file),
        "verified": True,
    }
    assert command("restore", str(file), "--store", target_location) == {
        "done": "restored",
        "head": COUNT,
        "file": str(file),
        "verified": True,
    }
    source = contents(store_location)
    assert contents(str(file)) == source
    assert contents(target_location) == source
    assert len(source["log"]) == COUNT
    assert len(source["dedupe"]) == len(KEYS)

    async def go_on() -> None:
        async with running_node(target_location) as node:
            assert (await node.store.head()).log_id == LOG_ID
            for position, key in enumerate(KEYS, start=1):
                again = await node.put(key, key, b'"\\u0000"')
                assert (again.status, again.committed_id) == ("duplicate", position)
                assert again.available == (key != "plain")
                assert (await node.put(key, key, b"2")).status == "conflict"
            new = await node.put("plain", "new")
            assert (new.status, new.committed_id, new.stream_serial) == ("committed", COUNT + 1, 2)
            last = await verdict(node.store)
            assert (last.finding, last.verified, last.pruned) == (None, COUNT + 1, 1)

    asyncio.run(go_on())


async def test_a_backup_is_one_moment_of_a_busy_log(store_location: str, tmp_path: Path) -> None:
    """While a writer keeps writing: the backup is the log up to some position, keys included."""
    file = tmp_path / "backup.db"
    is_done = False

    async def write() -> int:
        batches = 0
        while not is_done:
            items = [put_item(f"s{n % 3}", f"{batches}/{n}") for n in range(20)]
            await node.put_many(items)
            batches += 1
        return batches

    async with running_node(store_location) as node:
        await node.put_many(
            [put_item("s", f"k{n}", b'"' + b"x" * 2000 + b'"') for n in range(2000)]
        )
        started_at = node.committer.tail.position
        writing = asyncio.create_task(write())
        told = await tidelog("backup", str(file), "--store", store_location)
        ended_at = node.committer.tail.position
        is_done = True
        assert await writing > 1
        position = told["head"]
        assert started_at < position <= ended_at
        source, copy = contents(store_location), contents(str(file))
        assert len(copy["log"]) == position
        assert copy["log"] == source["log"][:position]
        assert copy["dedupe"] == source["dedupe"][:position]
        assert copy["head"][0][2] == position


@pytest.mark.parametrize("ending", ["", "-wal", "-journal"])
def test_a_backup_never_overwrites(store_location: str, tmp_path: Path, ending: str) -> None:
    """Neither the file nor a journal that SQLite would apply to it may be there."""
    asyncio.run(write_log(store_location))
    occupied = tmp_path / f"backup.db{ending}"
    occupied.write_bytes(b"precious")
    with pytest.raises(StoreUnavailable, match=f"{occupied.name} exists.*Name a new file"):
        command("backup", str(tmp_path / "backup.db"), "--store", store_location)
    assert occupied.read_bytes() == b"precious"


def test_a_backup_needs_a_directory(store_location: str, tmp_path: Path) -> None:
    """A target whose directory is missing is named, not the store."""
    asyncio.run(write_log(store_location))
    with pytest.raises(StoreUnavailable, match=r"no directory .*nowhere"):
        command("backup", str(tmp_path / "nowhere" / "backup.db"), "--store", store_location)


@pytest.mark.parametrize("ending", ["", "-wal", "-journal"])
def test_a_restore_never_overwrites_a_file(backup_file: Path, tmp_path: Path, ending: str) -> None:
    """A file under the store's name, or a WAL that its predecessor left, stops a restore."""
    occupied = tmp_path / "data" / f"tidelog.db{ending}"
    occupied.parent.mkdir()
    occupied.write_bytes(b"precious")
    with pytest.raises(StoreUnavailable, match=f"{occupied.name} exists.*Move it aside"):
        command("restore", str(backup_file), "--data-dir", str(occupied.parent))
    assert [path.name for path in occupied.parent.iterdir()] == [occupied.name]
    assert occupied.read_bytes() == b"precious"


def test_a_restore_never_overwrites_a_database(
    backup_file: Path, empty_postgresql_url: str
) -> None:
    """A PostgreSQL store that holds a log keeps it."""
    asyncio.run(write_log(empty_postgresql_url))
    before = contents(empty_postgresql_url)
    with pytest.raises(StoreUnavailable, match=r"already holds a log.*empty database"):
        command("restore", str(backup_file), "--store", empty_postgresql_url)
    assert contents(empty_postgresql_url) == before


def test_a_restore_fills_a_store_that_was_only_started(
    backup_file: Path, empty_postgresql_url: str
) -> None:
    """A database on which a server was started but nothing written may be restored to."""

    async def start() -> None:
        async with running_node(empty_postgresql_url):
            pass

    asyncio.run(start())
    assert command("restore", str(backup_file), "--store", empty_postgresql_url)["head"] == 300


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    """There must be something to back up, and something to restore."""
    with pytest.raises(StoreUnavailable, match=r"no log at .*tidelog.db"):
        command("backup", str(tmp_path / "backup.db"), "--data-dir", str(tmp_path))
    with pytest.raises(StoreUnavailable, match=r"no backup at .*backup.db"):
        command("restore", str(tmp_path / "backup.db"), "--data-dir", str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []


def noise_in_dedupe(path: Path) -> None:
    """A page that no digest covers is noise."""
    with closing(sqlite3.connect(path)) as connection:
        [(page,)] = connection.execute(
            "SELECT max(pageno) FROM dbstat WHERE name = 'dedupe' AND pagetype = 'leaf'"
        )
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(range(256)) * 16)


def cut_in_half(path: Path) -> None:
    """The download was interrupted."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def not_a_database(path: Path) -> None:
    """Some other file."""
    path.write_text("no database at all" * 1000)


BAD_BACKUPS: dict[str, tuple[Callable[[Path], None], type[StoreError]]] = {
    "content": (run_sql("UPDATE log SET body = x'00' WHERE committed_id = 9"), StoreDamaged),
    "entry missing": (run_sql("DELETE FROM log WHERE committed_id = 9"), StoreDamaged),
    "head missing": (run_sql("DELETE FROM head"), StoreDamaged),
    "noise in dedupe": (noise_in_dedupe, StoreDamaged),
    "cut in half": (cut_in_half, StoreDamaged),
    "not a database": (not_a_database, StoreDamaged),
    "of another application": (run_sql("PRAGMA application_id = 5"), StoreUnavailable),
    "of a newer version": (run_sql("PRAGMA user_version = 99"), SchemaTooNew),
}


@pytest.mark.parametrize("bad", BAD_BACKUPS)
def test_a_bad_backup_is_refused_and_leaves_nothing(
    backup_file: Path, target_location: str, bad: str
) -> None:
    """Damage anywhere in the file stops a restore; the target can then become a log of its own."""
    damage, error = BAD_BACKUPS[bad]
    damage(backup_file)
    with pytest.raises(error):
        command("restore", str(backup_file), "--store", target_location)
    if not target_location.startswith("postgresql://"):
        folder = Path(target_location).parent
        assert not folder.exists() or [path.suffix for path in folder.iterdir()] == [".lock"]

    async def start() -> None:
        store = await open_store(SCHEMA, target_location, log_id="its own", node="n")
        head = await store.head()
        await store.close()
        assert (head.committed_id, head.log_id) == (0, "its own")

    asyncio.run(start())


async def test_a_restore_that_fails_half_way_leaves_nothing(
    backup_file: Path, empty_postgresql_url: str
) -> None:
    """Filling a database is one transaction, which the schema belongs to."""

    def fail(done: int, total: int) -> None:
        raise OSError(f"injected at {done} of {total}")

    with pytest.raises(StoreUnavailable, match="injected at 300 of 300"):
        await restore(SCHEMA, backup_file, empty_postgresql_url, fail)
    assert await Database(empty_postgresql_url).columns() == {}
    await restore(SCHEMA, backup_file, empty_postgresql_url, silent)
    assert len(contents(empty_postgresql_url)["log"]) == 300


async def test_an_interrupted_backup_leaves_no_file(store_location: str, tmp_path: Path) -> None:
    """Ctrl-C while copying: nothing under the final name, and nothing else either."""
    await write_log(store_location)
    folder = tmp_path / "backups"
    folder.mkdir()

    class Interrupted(BaseException):
        """As raised by Ctrl-C."""

    def interrupt(done: int, total: int) -> None:
        raise Interrupted(done, total)

    with pytest.raises((Interrupted, StoreError)):
        await back_up(SCHEMA, store_location, folder / "backup.db", interrupt)
    assert files_in(folder) == []


def test_a_killed_backup_leaves_nothing_under_its_name(store_location: str, tmp_path: Path) -> None:
    """SIGKILL while copying: no file under the final name, and the next backup clears up."""
    asyncio.run(write_log(store_location))
    file = tmp_path / "backup.db"
    script = (
        "import asyncio, os, sys, pathlib\n"
        "from tidelog.config.schema import SCHEMA\n"
        "from tidelog.store.backup import back_up\n"
        "kill = lambda done, total: os.kill(os.getpid(), 9)\n"
        "asyncio.run(back_up(SCHEMA, sys.argv[1], pathlib.Path(sys.argv[2]), kill))\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, store_location, str(file)], check=False, timeout=30
    )
    assert killed.returncode == -signal.SIGKILL
    assert not file.exists()
    assert len(list(tmp_path.glob("*.partial/backup.db"))) == 1
    assert command("backup", str(file), "--store", store_location)["head"] == COUNT
    assert list(tmp_path.glob("*.partial")) == []


def test_a_damaged_store_gives_no_backup(store_location: str, tmp_path: Path) -> None:
    """A copy that does not verify never gets the backup's name."""
    asyncio.run(write_log(store_location))

    async def damage() -> None:
        if not store_location.startswith("postgresql://"):
            with closing(sqlite3.connect(store_location)) as connection:
                connection.execute("UPDATE log SET actor = 'x' WHERE committed_id = 3")
                connection.commit()
            return
        server = await asyncpg.connect(store_location)
        await server.execute("UPDATE tidelog.log SET actor = 'x' WHERE committed_id = 3")
        await server.close()

    asyncio.run(damage())
    with pytest.raises(StoreDamaged, match="damaged at 3"):
        command("backup", str(tmp_path / "backup.db"), "--store", store_location)
    assert list(tmp_path.glob("backup*")) == []


async def test_a_newer_database_is_not_copied_in_part(
    empty_postgresql_url: str, tmp_path: Path
) -> None:
    """Tables that this version does not know would be missing from the copy: it is refused."""
    await write_log(empty_postgresql_url)
    server = await asyncpg.connect(empty_postgresql_url)
    await server.execute("INSERT INTO tidelog.schema_version VALUES (99)")
    await server.close()
    with pytest.raises(
        SchemaTooNew, match=f"version 99, .* copies {len(SCHEMA.migrations('sqlite'))}"
    ):
        await back_up(SCHEMA, empty_postgresql_url, tmp_path / "backup.db", silent)
    assert files_in(tmp_path) == []


async def test_every_table_is_in_a_backup(
    engine: str, store_location: str, target_location: str, tmp_path: Path
) -> None:
    """Whatever tables the migrations make, their rows are copied from and to either engine."""
    source = Database(store_location)
    await source.at_version(SCHEMA.migrations(engine))
    filled = await source.fill()
    file = tmp_path / "backup.db"
    await back_up(SCHEMA, store_location, file, silent)
    await restore(SCHEMA, file, target_location, silent)
    transient = ["alteration", "writer", *(["announcement"] if engine == "postgresql" else [])]
    assert sorted(filled) == sorted([*tables(SCHEMA), *transient])
    assert {"log", "dedupe", "head"} <= set(filled)
    for table in tables(SCHEMA):
        columns = HEAD if table == "head" else "*"
        rows = sorted(await source.run(f"SELECT {columns} FROM {table}"))
        # The counts that the row of a message brings with it, besides the one that was written.
        assert len(rows) == (3 if table == "channels_stretch" else 1)
        # Only a copy's next incarnation is its own, which its head counts.
        own = "WHERE number <= 7" if table == "incarnation" else ""
        for copy in (str(file), target_location):
            found = await Database(copy).run(f"SELECT {columns} FROM {table} {own}")
            assert sorted(found) == rows
    assert await Database(target_location).run("SELECT * FROM writer") == []


def test_a_backup_that_was_used_is_restored_with_its_wal(backup_file: Path, tmp_path: Path) -> None:
    """What a server wrote into a backup that it opened in place is restored too."""
    used = tmp_path / "used" / "backup.db"
    used.parent.mkdir()

    async def use() -> None:
        async with running_node(str(backup_file)) as node:
            assert (await node.put("s", "new")).committed_id == 301
            for ending in ("", "-wal"):  # as a kill would leave them
                name = backup_file.name + ending
                shutil.copy(backup_file.with_name(name), used.with_name("backup.db" + ending))

    asyncio.run(use())
    target = str(tmp_path / "restored" / "tidelog.db")
    assert command("restore", str(used), "--store", target)["head"] == 301
    assert contents(target)["log"][-1][0] == 301


async def test_a_backup_of_an_earlier_version_is_restored(tmp_path: Path) -> None:
    """A backup made by the first version is migrated in a copy, verified, and served from."""
    old = tmp_path / "old.db"
    with closing(sqlitefile.connect(old)) as connection:
        sqlitefile.migrate(connection, old, SCHEMA.migrations("sqlite")[:1])
        entry = to_entry(Draft("probe/s", "probe", "put", "k", "", "", b"{}"), 1, 1, 5, bytes(16))
        connection.execute(SCHEMA.queries("sqlite")["insert_entry"], entry)
        connection.execute("INSERT INTO head VALUES (1, 'OLDLOG', 1, ?, 5)", (entry.digest,))
        connection.execute("PRAGMA journal_mode = DELETE")
    before = old.read_bytes()
    target = tmp_path / "new" / "tidelog.db"
    await restore(SCHEMA, old, str(target), lambda _done, _total: None)
    assert old.read_bytes() == before
    store = await open_store(SCHEMA, str(target), log_id="", node="", read_only=True)
    try:
        assert (await store.head()).log_id == "OLDLOG"
        assert [found.entity for found in await store.entries(0)] == ["k"]
    finally:
        await store.close()
