"""Backups: one SQLite file holding all of a store, whichever engine it came from.

A backup has the embedded engine's format. It can be restored to either engine, opened in place by a
server, and read by anything that reads SQLite; it is also the way from one engine to the other.
"""

import os
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.base import sqlitefile
from tidelog.base.errors import SchemaTooNew, StoreDamaged, StoreError, StoreUnavailable
from tidelog.store.engine import migrations
from tidelog.store.sqlite import open_failure, require_own

if TYPE_CHECKING:
    import asyncpg

Progress = Callable[[int, int], None]
"""Called with the work done and the work there is, in any unit."""

_PAGES_PER_STEP = 2000
_ROWS_PER_STEP = 2000


async def back_up(
    location: str,
    target: Path,
    progress: Progress,
    check: Callable[[Path], Awaitable[object]] | None = None,
) -> None:
    """Copy the store at `location`, as it is at one moment, to the new file `target`.

    The server may go on writing. The file appears under its name only when it is complete, on disk
    and, if a `check` is given, when that has looked at it and not raised.
    """
    if found := _in_the_way(target):
        raise StoreUnavailable(f"{found} exists; a backup never overwrites. Name a new file.")
    if not target.parent.is_dir():
        raise StoreUnavailable(f"there is no directory {target.parent}; create it first")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        if location.startswith("postgresql://"):
            await _dump_postgresql(location, partial, progress)
        else:
            _copy_sqlite(Path(location), partial, progress)
        if check is not None:
            await check(partial)
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def _in_the_way(target: Path) -> Path | None:
    """The file itself, or a journal that SQLite would apply to whatever appears under its name."""
    names = (target.name + ending for ending in ("", "-wal", "-journal", "-shm"))
    return next((path for path in map(target.with_name, names) if path.exists()), None)


async def restore(
    backup: Path,
    location: str,
    progress: Progress,
    check: Callable[[Path], Awaitable[object]] | None = None,
) -> None:
    """Make the store at `location`, which must not hold a log yet, from a backup.

    A backup of an earlier version is brought up to this one in a copy; the file stays as it is. If
    a `check` is given, it looks at what is about to be restored and may raise.
    """
    if not backup.exists():
        raise StoreUnavailable(f"there is no backup at {backup}")
    with _at_this_version(backup) as current:
        _require_sound(current)
        if check is not None:
            await check(current)
        await _restore(current, location, progress)


@contextmanager
def _at_this_version(backup: Path) -> Iterator[Path]:
    """The backup itself, or a migrated copy if an earlier tidelog wrote it."""
    known = migrations("sqlite")
    try:
        with closing(sqlitefile.connect(backup, read_only=True)) as reading:
            require_own(reading, backup)
            version = sqlitefile.schema_version(reading, backup, newest=len(known))
    except sqlite3.Error as error:
        raise StoreDamaged(
            f"{backup} is not a tidelog backup, or damaged: {error}. Name a file that "
            "`tidelog backup` wrote."
        ) from error
    if version == len(known):
        yield backup
        return
    with tempfile.TemporaryDirectory(dir=backup.parent, prefix=".tidelog-restore-") as directory:
        copy = Path(directory) / backup.name
        _copy_sqlite(backup, copy, lambda _done, _total: None)
        with closing(sqlitefile.connect(copy)) as migrating:
            sqlitefile.migrate(migrating, copy, known)
            migrating.execute("PRAGMA journal_mode = DELETE")
        yield copy


async def _restore(backup: Path, location: str, progress: Progress) -> None:
    if location.startswith("postgresql://"):
        await _load_postgresql(backup, location, progress)
        return
    target = Path(location)
    if found := _in_the_way(target):
        raise StoreUnavailable(
            f"{found} exists; a restore never overwrites. Move it aside or name another --data-dir."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = sqlitefile.DirectoryLock(target.with_name(target.name + ".lock"))
    partial = target.with_name(target.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        _copy_sqlite(backup, partial, progress)
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)
        lock.release()


def _require_sound(backup: Path) -> None:
    """Refuse a backup whose pages are damaged, also those that no digest covers."""
    try:
        with closing(sqlitefile.connect(backup, read_only=True)) as reading:
            require_own(reading, backup)
            sqlitefile.require_version(reading, backup, len(migrations("sqlite")))
            sqlitefile.check(reading, backup, remedy="Restore another backup.")
    except sqlite3.Error as error:
        raise StoreDamaged(
            f"{backup} could not be read: {error}. Restore another backup."
        ) from error


def tables() -> list[str]:
    """All that makes up a store; `writer` belongs to running processes and is not copied.

    Taken from the migrations, so that no table can be forgotten.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        sqlitefile.migrate(fresh, Path(":memory:"), migrations("sqlite"))
        found = fresh.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        return [name for (name,) in found if name != "writer"]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_sqlite(source: Path, target: Path, progress: Progress) -> None:
    if not source.exists():
        raise StoreUnavailable(f"there is no log at {source}; name the right --data-dir")
    reading = writing = None
    try:
        reading = sqlitefile.connect(source, read_only=True)
        require_own(reading, source)
        sqlitefile.create_private(target)
        writing = sqlite3.connect(target, isolation_level=None)
        # A transaction pins one moment of the log; without it the copy starts over whenever the
        # server commits, and with a busy one never ends.
        reading.execute("BEGIN")
        reading.execute("SELECT committed_id FROM head").fetchone()
        reading.backup(
            writing,
            pages=_PAGES_PER_STEP,
            progress=lambda _status, left, total: progress(total - left, total),
        )
        reading.execute("COMMIT")
        writing.execute("DELETE FROM writer")
        writing.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise open_failure(source, error) from error
    finally:
        for connection in (reading, writing):
            if connection is not None:
                connection.close()


async def _dump_postgresql(url: str, target: Path, progress: Progress) -> None:
    import asyncpg

    writing = sqlitefile.connect(target)
    try:
        sqlitefile.migrate(writing, target, migrations("sqlite"))
        writing.execute("BEGIN")
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await _require_version(connection)
                total = await connection.fetchval("SELECT committed_id FROM tidelog.head")
                for table in tables():
                    columns = _columns(writing, table)
                    writing.execute(f"DELETE FROM {table}")
                    insert = _insert(table, columns)
                    done = 0
                    async with aclosing(_pages(connection, table, columns)) as pages:
                        async for page in pages:
                            writing.executemany(insert, page)
                            done += len(page)
                            if table == "log":
                                progress(done, total)
        finally:
            await connection.close()
        writing.execute("COMMIT")
        writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        writing.execute("PRAGMA journal_mode = DELETE")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"PostgreSQL could not be copied: {error}") from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{target} could not be written: {error}") from error
    finally:
        writing.close()


async def _require_version(connection: "asyncpg.Connection") -> None:
    """What another version stored would be copied in part, without anybody noticing."""
    version = await connection.fetchval("SELECT max(version) FROM tidelog.schema_version")
    known = len(migrations("postgresql"))
    if version != known:
        raise SchemaTooNew(
            f"the PostgreSQL store has schema version {version}, this tidelog copies {known}. "
            "Use the tidelog that serves it."
        )


async def _pages(
    connection: "asyncpg.Connection", table: str, columns: list[str]
) -> AsyncGenerator[list[tuple[object, ...]], None]:
    from tidelog.store.postgresql import from_record

    query = f"SELECT {', '.join(columns)} FROM tidelog.{table}"
    cursor = await connection.cursor(query)
    while records := await cursor.fetch(_ROWS_PER_STEP):
        yield [from_record(record) for record in records]


async def _load_postgresql(backup: Path, url: str, progress: Progress) -> None:
    import asyncpg

    from tidelog.store.postgresql import PostgresqlStore, to_columns

    store = await PostgresqlStore.open(url, log_id="", node="", require_fsync=False)
    try:
        head = await store.head()
        if head.committed_id or await store.dedupe_count():
            raise StoreUnavailable(
                "the PostgreSQL store already holds a log; a restore never overwrites. "
                "Name an empty database."
            )
    finally:
        await store.close()
    reading = sqlitefile.connect(backup, read_only=True)
    connection = await asyncpg.connect(url)
    try:
        # Opening has made this a log without a name; if filling it fails, none may be left.
        await connection.execute("DELETE FROM tidelog.head WHERE log_id = ''")
        total: int = reading.execute("SELECT committed_id FROM head").fetchone()[0]
        async with connection.transaction():
            for table in tables():
                columns = _columns(reading, table)
                await connection.execute(f"DELETE FROM tidelog.{table}")
                rows = reading.execute(f"SELECT {', '.join(columns)} FROM {table}")
                done = 0
                while page := rows.fetchmany(_ROWS_PER_STEP):
                    escaped = zip(*to_columns(page, len(columns)), strict=True)
                    await connection.copy_records_to_table(
                        table, schema_name="tidelog", columns=columns, records=list(escaped)
                    )
                    done += len(page)
                    if table == "log":
                        progress(done, total)
    except sqlite3.Error as error:
        raise StoreDamaged(f"{backup} could not be read: {error}") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"PostgreSQL could not be filled: {error}") from error
    finally:
        reading.close()
        await connection.close()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    if not names:
        raise StoreError(f"this is no tidelog store: there is no table {table}")
    return names


def _insert(table: str, columns: list[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
