"""The rows of a store on the other engine, so that one log can be read from both."""

import sqlite3
from contextlib import closing
from typing import Any

import asyncpg

from tidelog.base.data.nultext import escape


async def copy_to_postgresql(path: str, url: str) -> None:
    """Put every row of an SQLite store into a PostgreSQL store that has no log."""
    connection = await asyncpg.connect(url)
    try:
        with closing(sqlite3.connect(path)) as store:
            named = store.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' "
                "AND name NOT LIKE 'sqlite%' AND name != 'schema_version'"
            ).fetchall()
            for [table] in named:
                rows = store.execute(f"SELECT * FROM {table}")
                columns = [column for column, *_ in rows.description]
                await connection.execute(f"DELETE FROM tidelog.{table}")
                await connection.copy_records_to_table(
                    table,
                    schema_name="tidelog",
                    columns=columns,
                    records=[tuple(map(_escaped, row)) for row in rows],
                )
    finally:
        await connection.close()


def _escaped(value: Any) -> Any:
    return escape(value) if isinstance(value, str) else value
