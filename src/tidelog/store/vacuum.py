"""Writing the files of a store anew, so that they hold what is in it and nothing else.

What was removed leaves traces that no query finds: in SQLite where rows were moved from one page to
another, in PostgreSQL in the room of rows that are gone. Only a copy is free of them.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tidelog.base import sqlitefile
from tidelog.base.errors import StoreUnavailable
from tidelog.store.backup import connect_postgresql
from tidelog.store.catalogue import tables
from tidelog.store.engine import builtin_queries
from tidelog.store.sqlite import open_failure, require_own


class Vacuumed(NamedTuple):
    """Sizes of a store's files."""

    before_bytes: int
    after_bytes: int


async def vacuum(location: str) -> Vacuumed:
    """Write the store at `location` anew; nobody can write to it meanwhile.

    Raises:
        StoreInUse: a server uses the file.
        StoreUnavailable: there is no store, or it cannot be used.
    """
    if location.startswith("postgresql://"):
        return await _vacuum_postgresql(location)
    return await asyncio.to_thread(_vacuum_sqlite, Path(location))


def _vacuum_sqlite(path: Path) -> Vacuumed:
    path = path.resolve()  # the lock lies beside the file itself, whatever name it was given
    if not path.exists():
        raise StoreUnavailable(f"there is no log at {path}. Name the right one with --data-dir.")
    lock = sqlitefile.DirectoryLock(path.with_name(path.name + ".lock"))
    try:
        before = path.stat().st_size
        with closing(sqlitefile.connect(path)) as connection:
            require_own(connection, path)
            connection.execute("VACUUM")
            [(is_busy, _, _)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_busy:
            raise StoreUnavailable(
                f"another program reads {path}, so its write-ahead log could not be cut. End that "
                "program, then run this again."
            )
        return Vacuumed(before, path.stat().st_size)
    except sqlite3.DatabaseError as error:
        raise open_failure(path, error) from error
    finally:
        lock.release()


async def _vacuum_postgresql(url: str) -> Vacuumed:
    connection = await connect_postgresql(url)

    from tidelog.store.postgresql_listener import LOST

    try:
        size = builtin_queries("postgresql")["size"]
        before = await connection.fetchval(size)
        for table in tables():
            await connection.execute(f"VACUUM (FULL) tidelog.{table}")
        # Of samples that were replaced; only the owner of the database may, others are warned.
        await connection.execute("VACUUM (FULL) pg_catalog.pg_statistic")
        return Vacuumed(before, await connection.fetchval(size))
    except LOST as error:
        raise StoreUnavailable(f"PostgreSQL could not write its tables anew: {error}") from error
    finally:
        await connection.close()
