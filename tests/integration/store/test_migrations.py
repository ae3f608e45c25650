"""Schemas: from every version to the newest, the same on both engines, or not at all."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tidelog.base import sqlitefile
from tidelog.base.errors import SchemaTooNew, StoreError, StoreUnavailable
from tidelog.store import open_store
from tidelog.store.engine import migrations
from tidelog.store.postgresql import PostgresqlStore
from tidelog.testing.postgresql import create_database

NEXT = {
    "sqlite": """
        ALTER TABLE dedupe ADD COLUMN note TEXT NOT NULL DEFAULT '';
        CREATE TABLE later (only_row INTEGER PRIMARY KEY) STRICT;
    """,
    "postgresql": """
        ALTER TABLE tidelog.dedupe ADD COLUMN note TEXT COLLATE "C" NOT NULL DEFAULT '';
        CREATE TABLE tidelog.later (only_row BIGINT PRIMARY KEY);
    """,
}
"""What a next migration could be: it makes every real version an earlier one."""

BROKEN = {
    "sqlite": "CREATE TABLE broken (a INTEGER); INSERT INTO nowhere VALUES (1);",
    "postgresql": "CREATE TABLE tidelog.broken (a BIGINT); INSERT INTO nowhere VALUES (1);",
}

VERSIONS = range(len(migrations("sqlite")) + 1)
"""All earlier versions, seen from the one after the real ones."""


def use_migrations(monkeypatch: pytest.MonkeyPatch, engine: str, scripts: list[str]) -> None:
    """Let the engine know these migrations instead of the packaged ones."""
    monkeypatch.setattr(f"tidelog.store.{engine}.migrations", lambda _: scripts)


async def start(location: str, *, log_id: str = "L") -> None:
    """A start and an end of a server; the log is then called `log_id`."""
    store = await open_store(location, log_id="L", node="n")
    assert (await store.head()).log_id == log_id
    await store.close()


class Database:
    """An engine's catalogue, seen without our code."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.is_sqlite = not location.startswith("postgresql://")
        if self.is_sqlite:
            Path(location).parent.mkdir(parents=True, exist_ok=True)

    async def run(self, query: str) -> list[tuple[Any, ...]]:
        """The rows that `query` answers."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.location, isolation_level=None)) as connection:
                return connection.execute(query).fetchall()
        server = await asyncpg.connect(
            self.location, server_settings={"search_path": "tidelog, public"}
        )
        try:
            return [tuple(record) for record in await server.fetch(query)]
        finally:
            await server.close()

    async def schema(self) -> set[tuple[Any, ...]]:
        """Everything that makes up the schema: tables, columns, keys, indexes."""
        if self.is_sqlite:
            found = await self.run("SELECT type, name, tbl_name, sql FROM sqlite_schema")
            pragmas = ("user_version", "application_id")
            return {*found, *[(name, *(await self.run(f"PRAGMA {name}"))[0]) for name in pragmas]}
        return {
            *await self.run(
                "SELECT table_name, column_name, data_type, is_nullable, column_default, "
                "collation_name FROM information_schema.columns WHERE table_schema = 'tidelog'"
            ),
            *await self.run("SELECT indexdef FROM pg_indexes WHERE schemaname = 'tidelog'"),
            *await self.run(
                "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint "
                "WHERE connamespace = 'tidelog'::regnamespace"
            ),
            *await self.run("SELECT 'version', max(version) FROM schema_version"),
        }

    async def columns(self) -> dict[str, dict[str, tuple[str, bool, int]]]:
        """Table to column to (type, may be null, place in the primary key)."""
        if self.is_sqlite:
            tables = await self.run("SELECT name FROM sqlite_schema WHERE type = 'table'")
            return {
                table: {
                    name: (kind, not (required or key), key)
                    for _, name, kind, required, _, key in await self.run(
                        f"SELECT * FROM pragma_table_info('{table}')"
                    )
                }
                for (table,) in tables
            }
        keys = {
            (table, column): place
            for table, column, place in await self.run(
                "SELECT table_name, column_name, ordinal_position "
                "FROM information_schema.key_column_usage WHERE table_schema = 'tidelog'"
            )
        }
        found: dict[str, dict[str, tuple[str, bool, int]]] = {}
        for table, column, kind, nullable in await self.run(
            "SELECT table_name, column_name, data_type, is_nullable "
            "FROM information_schema.columns WHERE table_schema = 'tidelog' "
            "ORDER BY ordinal_position"
        ):
            key = keys.get((table, column), 0)
            found.setdefault(table, {})[column] = (kind, nullable == "YES", key)
        return found

    async def at_version(self, scripts: list[str]) -> None:
        """Make the schema that these scripts make, as an earlier program did."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.location, isolation_level=None)) as connection:
                sqlitefile.migrate(connection, Path(self.location), scripts)
            return
        server = await asyncpg.connect(self.location)
        store = PostgresqlStore(
            self.location, node="n", connect_timeout_ms=1, statement_timeout_ms=1, pool_size=1
        )
        try:
            await store._migrate(server, scripts)
        finally:
            await server.close()

    async def fill(self) -> list[str]:
        """Put a row into every table there is, with equal values in columns of equal name."""
        samples = {"INTEGER": "7", "TEXT": "'t'", "BLOB": "x'07'"}
        samples |= {"bigint": "7", "text": "'t'", "bytea": "'\\x07'"}
        tables = await self.columns()
        tables.pop("schema_version", None)
        for table, columns in tables.items():
            values = ", ".join(
                "1" if name == "only_row" else samples[kind]
                for name, (kind, _, _) in columns.items()
            )
            await self.run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})")
        return list(tables)


@pytest.fixture
async def fresh_location(engine: str, tmp_path: Path, postgresql_server: str) -> str:
    """Another empty store of the engine, to compare with."""
    if engine == "sqlite":
        return str(tmp_path / "fresh" / "tidelog.db")
    return await create_database(postgresql_server)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_earlier_version_becomes_the_newest(
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    store_location: str,
    fresh_location: str,
    version: int,
) -> None:
    """From any version, rows and all, a start ends with the schema of a fresh store."""
    scripts = [*migrations(engine), NEXT[engine]]
    use_migrations(monkeypatch, engine, scripts)
    old, fresh = Database(store_location), Database(fresh_location)
    filled: list[str] = []
    if version:
        await old.at_version(scripts[:version])
        filled = await old.fill()
        assert {"log", "head", "dedupe", "writer"} <= set(filled)
    await start(store_location, log_id="t" if version else "L")
    await start(fresh_location)
    assert await old.schema() == await fresh.schema()
    for table in filled:
        kept = table != "writer"  # a start forgets the writers of long ago
        assert await old.run(f"SELECT count(*) FROM {table}") == [(kept,)], table


async def test_the_newest_version_is_left_as_it_is(store_location: str) -> None:
    """A second start changes nothing of the schema."""
    await start(store_location)
    before = await Database(store_location).schema()
    await start(store_location)
    assert await Database(store_location).schema() == before


@pytest.mark.parametrize("earlier", [0, len(migrations("sqlite"))])
async def test_a_failing_migration_leaves_the_version_before(
    monkeypatch: pytest.MonkeyPatch, engine: str, store_location: str, earlier: int
) -> None:
    """A migration that fails half-way leaves nothing; the program before it still works."""
    known = migrations(engine)
    if earlier:
        await start(store_location)
    use_migrations(monkeypatch, engine, [*known, BROKEN[engine]])
    with pytest.raises(StoreError, match="nowhere"):
        await start(store_location)
    tables = await Database(store_location).columns()
    assert "log" in tables
    assert "broken" not in tables
    use_migrations(monkeypatch, engine, known)
    await start(store_location)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_newer_schema_is_refused(engine: str, store_location: str, read_only: bool) -> None:
    """A store that a newer program wrote is refused, naming its version and ours, untouched."""
    await start(store_location)
    database = Database(store_location)
    known = len(migrations(engine))
    await database.run(
        f"PRAGMA user_version = {known + 7}"
        if database.is_sqlite
        else f"INSERT INTO schema_version VALUES ({known + 7})"
    )
    before = await database.schema()
    with pytest.raises(SchemaTooNew, match=rf"version {known + 7};.* up to {known}\b"):
        await open_store(store_location, log_id="L", node="n", read_only=read_only)
    assert await database.schema() == before


async def test_a_reader_does_not_migrate(store_location: str) -> None:
    """An older schema, or none, is refused to a reader, who is told what will migrate it."""
    database = Database(store_location)
    if database.is_sqlite:
        await database.run("VACUUM")  # an empty database that exists
    with pytest.raises(StoreUnavailable, match=r"version 0.*Start the server once"):
        await open_store(store_location, log_id="L", node="n", read_only=True)
    assert "log" not in await database.columns()


async def test_both_engines_end_with_the_same_columns(tmp_path: Path, postgresql_url: str) -> None:
    """Table by table: same columns in the same order, same kind, same nullability, same key."""
    sqlite = Database(str(tmp_path / "tidelog.db"))
    postgresql = Database(postgresql_url)
    await start(sqlite.location)
    await start(postgresql.location)
    theirs = await postgresql.columns()
    assert set(theirs.pop("schema_version")) == {"version"}  # SQLite has a place for it
    kinds = {"INTEGER": "bigint", "TEXT": "text", "BLOB": "bytea"}
    ours = {
        table: {
            name: (kinds[kind], is_nullable, key)
            for name, (kind, is_nullable, key) in columns.items()
        }
        for table, columns in (await sqlite.columns()).items()
    }
    assert ours == theirs
    assert {table: list(columns) for table, columns in ours.items()} == {
        table: list(columns) for table, columns in theirs.items()
    }


async def test_both_engines_have_the_same_number_of_migrations() -> None:
    """A migration is one number with two scripts."""
    assert len(migrations("sqlite")) == len(migrations("postgresql")) >= 1


async def test_several_nodes_start_at_once_on_an_empty_database(postgresql_url: str) -> None:
    """One of them makes the schema and the log; all of them start and agree on which log it is."""
    starting = [
        open_store(postgresql_url, log_id=f"L{number}", node=f"n{number}", pool_size=1)
        for number in range(6)
    ]
    stores = await asyncio.gather(*starting)
    heads = {await store.head() for store in stores}
    await asyncio.gather(*(store.close() for store in stores))
    assert len(heads) == 1
    assert await Database(postgresql_url).run("SELECT version FROM schema_version") == [
        (number,) for number in range(1, len(migrations("postgresql")) + 1)
    ]
