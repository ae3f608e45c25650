"""Schemas: from every version to the newest, the same on both engines, or not at all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.store.catalogue import Database
from tidelog.base.errors import SchemaTooNew, StoreError, StoreUnavailable
from tidelog.channels.schema import EXTENSION as CHANNELS
from tidelog.config.schema import SCHEMA
from tidelog.store import Extension, Schema, open_store
from tidelog.testing.postgresql import create_database, drop_database

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

VERSIONS = range(len(SCHEMA.migrations("sqlite")) + 1)
"""All earlier versions, seen from the one after the real ones."""


def with_next(scripts: dict[str, str]) -> Schema:
    """The schema of a program that has one migration more."""
    number = len(SCHEMA.migrations("sqlite")) + 1
    added = {engine: {number: script} for engine, script in scripts.items()}
    return SCHEMA.extended([Extension(migrations=added)])


async def start(location: str, schema: Schema = SCHEMA, *, log_id: str = "L") -> None:
    """A start and an end of a server; the log is then called `log_id`."""
    store = await open_store(schema, location, log_id="L", node="n")
    assert (await store.head()).log_id == log_id
    await store.close()


@pytest.fixture(scope="module")
def fresh_schemas(
    postgresql_server: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, set[tuple[Any, ...]]]:
    """By engine: the newest schema, as a start on nothing makes it."""
    url = asyncio.run(create_database(postgresql_server))
    locations = {
        "sqlite": str(tmp_path_factory.mktemp("fresh") / "tidelog.db"),
        "postgresql": url,
    }

    async def made(location: str) -> set[tuple[Any, ...]]:
        await start(location, with_next(NEXT))
        return await Database(location).schema()

    schemas = {engine: asyncio.run(made(location)) for engine, location in locations.items()}
    asyncio.run(drop_database(url))
    return schemas


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_earlier_version_becomes_the_newest(
    engine: str,
    empty_location: str,
    fresh_schemas: dict[str, set[tuple[Any, ...]]],
    version: int,
) -> None:
    """From any version, rows and all, a start ends with the schema of a fresh store."""
    newest = with_next(NEXT)
    old = Database(empty_location)
    filled: dict[str, int] = {}
    if version:
        await old.at_version(newest.migrations(engine)[:version])
        filled = await old.counts(await old.fill())
        assert {"log", "head", "dedupe", "writer"} <= filled.keys()
    await start(empty_location, newest, log_id="t" if version else "L")
    assert await old.schema() == fresh_schemas[engine]
    if engine == "postgresql" and "writer" in filled:
        filled["writer"] = 0  # a start forgets those of long ago; an embedded store has one
    assert await old.counts(filled) == filled


async def test_the_newest_version_is_left_as_it_is(empty_location: str) -> None:
    """A second start changes nothing of the schema."""
    await start(empty_location)
    before = await Database(empty_location).schema()
    await start(empty_location)
    assert await Database(empty_location).schema() == before


@pytest.mark.parametrize("earlier", [0, len(SCHEMA.migrations("sqlite"))])
async def test_a_failing_migration_leaves_the_version_before(
    empty_location: str, earlier: int
) -> None:
    """A migration that fails half-way leaves nothing; the program before it still works."""
    if earlier:
        await start(empty_location)
    with pytest.raises(StoreError, match="nowhere"):
        await start(empty_location, with_next(BROKEN))
    tables = await Database(empty_location).columns()
    assert "log" in tables
    assert "broken" not in tables
    await start(empty_location)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_newer_schema_is_refused(engine: str, empty_location: str, read_only: bool) -> None:
    """A store that a newer program wrote is refused, naming its version and ours, untouched."""
    await start(empty_location)
    database = Database(empty_location)
    known = len(SCHEMA.migrations(engine))
    await database.run(
        f"PRAGMA user_version = {known + 7}"
        if database.is_sqlite
        else f"INSERT INTO schema_version VALUES ({known + 7})"
    )
    before = await database.schema()
    with pytest.raises(SchemaTooNew, match=rf"version {known + 7};.* up to {known}\b"):
        await open_store(SCHEMA, empty_location, log_id="L", node="n", read_only=read_only)
    assert await database.schema() == before


async def test_a_reader_does_not_migrate(empty_location: str) -> None:
    """An older schema, or none, is refused to a reader, who is told what will migrate it."""
    database = Database(empty_location)
    if database.is_sqlite:
        await database.run("VACUUM")  # an empty database that exists
    with pytest.raises(StoreUnavailable, match=r"version 0.*Start the server once"):
        await open_store(SCHEMA, empty_location, log_id="L", node="n", read_only=True)
    assert "log" not in await database.columns()


async def test_both_engines_end_with_the_same_columns(
    tmp_path: Path, empty_postgresql_url: str
) -> None:
    """Table by table: same columns in the same order, same kind, same nullability, same key."""
    sqlite = Database(str(tmp_path / "tidelog.db"))
    postgresql = Database(empty_postgresql_url)
    await start(sqlite.location)
    await start(postgresql.location)
    theirs = await postgresql.columns()
    assert set(theirs.pop("schema_version")) == {"version"}  # SQLite has a place for it
    assert "topic" in theirs.pop("announcement")  # an SQLite file has one process, nobody to tell
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


def test_numbers_without_a_gap_or_nothing() -> None:
    """A program that lacks a surface, or has one twice, cannot even name the schema."""
    with pytest.raises(ValueError, match="migration 2 is missing"):
        Schema([])
    with pytest.raises(ValueError, match="migration 3 is there twice"):
        SCHEMA.extended([CHANNELS])
    with pytest.raises(ValueError, match="'head' is used by two"):
        SCHEMA.extended([Extension(queries={"sqlite": {"head": "SELECT 1;"}})]).queries("sqlite")


async def test_both_engines_have_the_same_number_of_migrations() -> None:
    """A migration is one number with two scripts."""
    assert len(SCHEMA.migrations("sqlite")) == len(SCHEMA.migrations("postgresql")) >= 1


async def test_several_nodes_start_at_once_on_an_empty_database(empty_postgresql_url: str) -> None:
    """One of them makes the schema and the log; all of them start and agree on which log it is."""
    starting = [
        open_store(
            SCHEMA, empty_postgresql_url, log_id=f"L{number}", node=f"n{number}", pool_size=1
        )
        for number in range(6)
    ]
    stores = await asyncio.gather(*starting)
    heads = {await store.head() for store in stores}
    await asyncio.gather(*(store.close() for store in stores))
    assert len(heads) == 1
    assert await Database(empty_postgresql_url).run("SELECT version FROM schema_version") == [
        (number,) for number in range(1, len(SCHEMA.migrations("postgresql")) + 1)
    ]
