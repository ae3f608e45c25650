"""Writing the files of a store anew, so that they hold what is in it and nothing else.

Pruning empties rows, which leaves room in their pages that only new rows use again. And what was
removed leaves traces that no query finds: in SQLite where rows were moved from one page to another,
in PostgreSQL in the room of rows that are gone. A copy is smaller, and free of them.

An SQLite file is copied beside itself and then replaced: whoever is killed leaves the one or the
other, whole. PostgreSQL copies its tables by itself.
"""

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from tidelog.base.errors import StoreUnavailable
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.sql import sqlitefile
from tidelog.store.atomic_file import cannot_write, replacement
from tidelog.store.backup import Progress, connect_postgresql
from tidelog.store.catalogue import require_schema, tables
from tidelog.store.schema import LOG, Schema
from tidelog.store.sqlite import open_failure, remedy, require_own

_STEPS_PER_LOOK = 100_000
"""Steps of SQLite's machine between two looks at how far a copy is: some milliseconds."""

_IN_USE = (
    "Its file can be compacted only while no server uses it: stop that one and run this again."
)


class Compacted(NamedTuple):
    """Sizes of a store's files."""

    before_bytes: int
    after_bytes: int


async def compact(schema: Schema, location: str, progress: Progress) -> Compacted:
    """Write the store at `location` anew; nobody can write to it meanwhile.

    Raises:
        StoreInUse: a server uses the file.
        StoreUnavailable: there is no store, it cannot be used, or there is no room for the copy.
        StoreDamaged: it cannot be copied, and is as it was.
    """
    if location.startswith("postgresql://"):
        return await _compact_postgresql(schema, location, progress)
    is_given_up = threading.Event()
    work = asyncio.create_task(
        asyncio.to_thread(_compact_sqlite, schema, Path(location), progress, is_given_up.is_set)
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        is_given_up.set()
        await asyncio.wait([work])
        raise


def _compact_sqlite(
    schema: Schema, path: Path, progress: Progress, is_given_up: Callable[[], bool]
) -> Compacted:
    path = path.resolve()  # the lock lies beside the file itself, whatever name it was given
    if not path.exists():
        raise StoreUnavailable(f"there is no log at {path}. Name the right one with --data-dir.")
    lock = sqlitefile.DirectoryLock(path.with_name(path.name + ".lock"), remedy=_IN_USE)
    try:
        with closing(sqlitefile.connect(path)) as reading:
            require_own(reading, path)
            before = _take_alone(reading, path)
            with replacement(path) as partial:
                _copy(reading, partial, path, progress, is_given_up)
                _check(schema, partial, path)
                after = partial.stat().st_size
                reach(FaultPoint.COMPACTING)
            reach(FaultPoint.COMPACTED)
        return Compacted(before, after)
    except sqlite3.DatabaseError as error:
        raise open_failure(path, error) from error
    finally:
        lock.release()


def _take_alone(connection: sqlite3.Connection, path: Path) -> int:
    """Let nobody else have the file open from here on; returns its size.

    Without a write-ahead log the file alone is the store, and only one that no other connection has
    open can be changed so.
    """
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        [(mode,)] = connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")  # the lock stays until the connection is closed
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        mode = "wal"
    if mode != "delete":
        raise StoreUnavailable(
            f"another program reads {path}, such as a backup or `tidelog log tail`. End that "
            "program, then run this again."
        )
    return path.stat().st_size


def _copy(
    reading: sqlite3.Connection,
    partial: Path,
    path: Path,
    progress: Progress,
    is_given_up: Callable[[], bool],
) -> None:
    [(used,)] = reading.execute(LOG.queries["sqlite"]["used_bytes"])
    free = shutil.disk_usage(partial.parent).free
    if free < used:
        raise StoreUnavailable(
            f"the copy of {path} takes up to {used:,} bytes, and its disk has {free:,} free. Make "
            "room, then run this again; the file is as it was."
        )

    def look() -> bool:
        with suppress(FileNotFoundError):
            progress(min(partial.stat().st_size, used), used)
        return is_given_up()

    reading.set_progress_handler(look, _STEPS_PER_LOOK)
    try:
        reading.execute("VACUUM INTO ?", (str(partial),))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise cannot_write(path, error) from error
        raise
    finally:
        reading.set_progress_handler(None, 0)
    progress(used, used)
    seen = path.stat()
    partial.chmod(seen.st_mode & 0o777)
    if (seen.st_uid, seen.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):  # only root may give a file away, and to root it matters
            os.chown(partial, seen.st_uid, seen.st_gid)


def _check(schema: Schema, partial: Path, path: Path) -> None:
    """It is about to take the place of the only other copy."""
    queries = LOG.queries["sqlite"]
    with closing(sqlitefile.connect(partial, read_only=True)) as copy:
        sqlitefile.check(copy, path, remedy=remedy(path))
        version = sqlitefile.schema_version(copy, path, newest=len(schema.migrations("sqlite")))
        require_schema(schema, copy, path, version)
        if copy.execute(queries["head"]).fetchone() is None:
            raise StoreUnavailable(f"{path}: the head row is missing. {remedy(path)}")


async def _compact_postgresql(schema: Schema, url: str, progress: Progress) -> Compacted:
    connection = await connect_postgresql(url)

    from tidelog.store.postgresql_listener import LOST

    try:
        queries = LOG.queries["postgresql"]
        before = await connection.fetchval(queries["size"])
        done = 0
        for table in tables(schema):
            progress(done, before)
            done += await connection.fetchval(queries["size_of_table"], table)
            await connection.execute(f"VACUUM (FULL) tidelog.{table}")
        # Of samples that were replaced; only the owner of the database may, others are warned.
        await connection.execute("VACUUM (FULL) pg_catalog.pg_statistic")
        return Compacted(before, await connection.fetchval(queries["size"]))
    except LOST as error:
        raise StoreUnavailable(f"PostgreSQL could not rewrite its tables: {error}") from error
    finally:
        await connection.close()
