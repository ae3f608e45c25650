"""What a store's tables are and hold, seen without our code."""

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import asyncpg

from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.store.postgresql import PostgresqlStore


class Database:
    """A database of either engine, with or without a store in it.

    As a context manager it keeps its connection to a server, once it has needed one: to connect
    costs both sides 10 ms of a processor, and most queries less than one.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._server: asyncpg.Connection | None = None
        self._is_kept = False
        self._turn = asyncio.Lock()
        self.is_sqlite = not location.startswith("postgresql://")
        if self.is_sqlite:
            Path(location).parent.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> Self:
        self._is_kept = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_kept = False
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def run(self, query: str) -> list[tuple[Any, ...]]:
        """The rows that `query` returns."""
        [rows] = await self.run_each([query])
        return rows

    async def run_each(self, queries: Iterable[str]) -> list[list[tuple[Any, ...]]]:
        """The rows that each query returns, over one connection."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.location, isolation_level=None)) as connection:
                return [connection.execute(query).fetchall() for query in queries]
        async with self._turn:
            server = self._server
            if server is None or server.is_closed():
                path = {"search_path": "tidelog, public"}
                server = await asyncpg.connect(self.location, server_settings=path)
            try:
                return [[tuple(row) for row in await server.fetch(query)] for query in queries]
            finally:
                if self._is_kept:
                    self._server = server
                else:
                    await server.close()

    async def schema(self) -> set[tuple[Any, ...]]:
        """Everything that makes up the schema: tables, columns, keys, indexes."""
        if self.is_sqlite:
            found = await self.run("SELECT type, name, tbl_name, sql FROM sqlite_schema")
            pragmas = ("user_version", "application_id")
            return {*found, *[(name, *(await self.run(f"PRAGMA {name}"))[0]) for name in pragmas]}
        parts = await self.run_each(
            (
                (
                    "SELECT table_name, column_name, data_type, is_nullable, column_default, "
                    "collation_name FROM information_schema.columns WHERE table_schema = 'tidelog'"
                ),
                "SELECT indexdef FROM pg_indexes WHERE schemaname = 'tidelog'",
                (
                    "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint "
                    "WHERE connamespace = 'tidelog'::regnamespace"
                ),
                "SELECT 'version', max(version) FROM schema_version",
            )
        )
        return {row for part in parts for row in part}

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
        key_columns, columns = await self.run_each(
            (
                (
                    "SELECT table_name, column_name, ordinal_position "
                    "FROM information_schema.key_column_usage WHERE table_schema = 'tidelog'"
                ),
                (
                    "SELECT table_name, column_name, data_type, is_nullable "
                    "FROM information_schema.columns WHERE table_schema = 'tidelog' "
                    "ORDER BY ordinal_position"
                ),
            )
        )
        keys = {(table, column): place for table, column, place in key_columns}
        found: dict[str, dict[str, tuple[str, bool, int]]] = {}
        for table, column, kind, nullable in columns:
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
            SCHEMA, self.location, node="n", connect_timeout_ms=1, statement_timeout_ms=1
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
        inserts = []
        for table, columns in tables.items():
            values = ", ".join(
                "1" if name == "only_row" else samples[kind]
                for name, (kind, _, _) in columns.items()
            )
            inserts.append(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})")
        await self.run_each(inserts)
        return list(tables)

    async def counts(self, tables: Iterable[str]) -> dict[str, int]:
        """Table to its number of rows."""
        names = list(tables)
        found = await self.run_each(f"SELECT count(*) FROM {name}" for name in names)
        return {name: count for name, [(count,)] in zip(names, found, strict=True)}
