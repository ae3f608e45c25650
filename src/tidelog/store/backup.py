"""Backups: one SQLite file holding all of a store, whichever engine it came from.

A backup has the embedded engine's format. It can be restored to either engine, opened in place by a
server, and read by anything that reads SQLite; it is also the way from one engine to the other.
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.base.data.incarnation import FORMER_INCARNATIONS
from tidelog.base.errors import (
    ConfigError,
    SchemaTooNew,
    StoreDamaged,
    StoreError,
    StoreInUse,
    StoreUnavailable,
)
from tidelog.base.sql import sqlitefile
from tidelog.store.atomic_file import cannot_write, new_file, require_free
from tidelog.store.catalogue import require_schema, tables
from tidelog.store.engine import NO_DRIVER, NO_URL, new_incarnation
from tidelog.store.schema import LOG, Schema
from tidelog.store.sqlite import open_failure, require_own

if TYPE_CHECKING:
    import asyncpg

Progress = Callable[[int, int], None]
"""Called with the work done and about as much as there is, in any unit."""

_PAGES_PER_STEP = 2000
_ROWS_PER_STEP = 2000

_GONE_SECONDS = 2.0
"""How long a connection may still be seen after its process has closed it."""

_BACKUP_REMEDY = "a backup never overwrites. Name a new file."
_RESTORE_REMEDY = "a restore never overwrites. Move it aside or name another --data-dir."
_ANOTHER = "Restore another backup."

_READ_FAILED = frozenset(
    {
        *(sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ),
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY),
    }
)
"""What a copy fails with when its source is to blame; otherwise its target is."""


async def back_up(
    schema: Schema,
    location: str,
    target: Path,
    progress: Progress,
    check: Callable[[Path], Awaitable[object]] | None = None,
) -> None:
    """Copy the store at `location`, as it is at one moment, to the new file `target`.

    The server may go on writing. The file appears under its name only when it is complete, on disk
    and, if a `check` is given, when that has looked at it and not raised.
    """
    require_free(target, _BACKUP_REMEDY)
    if not target.parent.is_dir():
        raise StoreUnavailable(f"there is no directory {target.parent}; create it first")
    with new_file(target, _BACKUP_REMEDY) as partial:
        if location.startswith("postgresql://"):
            await _dump_postgresql(schema, location, partial, target, progress)
        else:
            _copy_sqlite(Path(location), partial, target, progress)
        _end_incarnation(schema, partial, target)
        if check is not None:
            await check(partial)


async def restore(
    schema: Schema,
    backup: Path,
    location: str,
    progress: Progress,
    check: Callable[[Path], Awaitable[object]] | None = None,
) -> None:
    """Make the store at `location`, which must not hold a log yet, from a backup.

    A backup of an earlier version is brought up to this one in a copy; the file stays as it is. If
    a `check` is given, it looks at what is about to be restored and may raise.
    """
    _require_file(backup)
    is_file = not location.startswith("postgresql://")
    if is_file:
        require_free(Path(location), _RESTORE_REMEDY)
    with _at_this_version(schema, backup) as current:
        _require_sound(schema, current)
        if check is not None:
            await check(current)
        if is_file:
            _restore_sqlite(schema, current, Path(location), progress)
        else:
            await _load_postgresql(schema, current, location, progress)


def _end_incarnation(schema: Schema, copy: Path, target: Path) -> None:
    """Let what is appended to a copy be another incarnation than the log it was made of.

    That one has no name yet, so readers take the copy for what it is: the log up to here. Whoever
    serves or restores it gives the name.
    """
    queries = LOG.queries["sqlite"]
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as writing:
            sqlitefile.enable_seals(writing)
            newest = len(schema.migrations("sqlite"))
            if sqlitefile.schema_version(writing, copy, newest=newest) == newest:
                # Else it is of a version that a restore migrates.
                [committed_id, *_] = writing.execute(queries["head"]).fetchone()
                writing.execute("BEGIN")
                if writing.execute(queries["add_incarnation"], ("", committed_id, 0)).rowcount:
                    writing.execute(queries["count_incarnation"])
                writing.execute("COMMIT")
    except sqlite3.Error as error:
        raise cannot_write(target, error) from error


def _begin_incarnation(copy: Path, target: Path) -> None:
    """Name the incarnation that `_end_incarnation` left."""
    queries = LOG.queries["sqlite"]
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as writing:
            sqlitefile.enable_seals(writing)
            writing.execute(queries["name_incarnation"], new_incarnation())
            writing.execute(queries["forget_incarnations"], (FORMER_INCARNATIONS,))
    except sqlite3.Error as error:
        raise cannot_write(target, error) from error


def _require_file(backup: Path) -> None:
    try:
        if not backup.exists():
            raise StoreUnavailable(
                f"there is no backup at {backup}; name a file that `tidelog backup` wrote"
            )
        backup.open("rb").close()
    except OSError as error:
        raise StoreUnavailable(
            f"{backup} cannot be read: {error.strerror}. Name a file that `tidelog backup` wrote "
            "and that you may read."
        ) from error


@contextmanager
def _at_this_version(schema: Schema, backup: Path) -> Iterator[Path]:
    """The backup itself, or a migrated copy if an earlier tidelog wrote it."""
    known = schema.migrations("sqlite")
    with _blaming(backup), closing(sqlitefile.connect(backup, read_only=True)) as reading:
        require_own(reading, backup)
        version = sqlitefile.schema_version(reading, backup, newest=len(known))
        if version == 0:
            raise StoreDamaged(f"{backup} says that it has no schema. {_ANOTHER}")
        require_schema(schema, reading, backup, version)
    if version == len(known):
        yield backup
        return
    try:
        directory = tempfile.TemporaryDirectory(dir=backup.parent, prefix=".tidelog-restore-")
    except OSError as error:
        raise StoreUnavailable(
            f"{backup} is of an earlier version, and the copy to migrate cannot be made beside it: "
            f"{error.strerror}. Move the backup to a directory that you may write to."
        ) from error
    with directory as name:
        copy = Path(name) / backup.name
        _copy_sqlite(backup, copy, copy, lambda _done, _total: None)
        with _blaming(backup), closing(sqlitefile.connect(copy)) as migrating:
            sqlitefile.migrate(migrating, copy, known)
            migrating.execute("PRAGMA journal_mode = DELETE")
        yield copy


@contextmanager
def _blaming(backup: Path) -> Iterator[None]:
    """Say of a failure of SQLite what it means for somebody who wants to restore."""
    try:
        yield
    except sqlite3.Error as error:
        failure = open_failure(backup, error)
        if isinstance(failure, StoreUnavailable):
            raise failure from error
        raise StoreDamaged(
            f"{backup} is not a tidelog backup, or damaged: {error}. Name a file that "
            "`tidelog backup` wrote."
        ) from error


def _require_sound(schema: Schema, backup: Path) -> None:
    """Refuse a backup with another schema or damaged pages, also those that no digest covers."""
    version = len(schema.migrations("sqlite"))
    with _blaming(backup), closing(sqlitefile.connect(backup, read_only=True)) as reading:
        require_schema(schema, reading, backup, version)
        sqlitefile.check(reading, backup, remedy=_ANOTHER)
        if reading.execute(LOG.queries["sqlite"]["head"]).fetchone() is None:
            raise StoreDamaged(f"{backup}: the head row is missing. {_ANOTHER}")


def _restore_sqlite(schema: Schema, backup: Path, target: Path, progress: Progress) -> None:
    lock = sqlitefile.DirectoryLock(target.with_name(target.name + ".lock"))
    try:
        with new_file(target, _RESTORE_REMEDY) as partial:
            _copy_sqlite(backup, partial, target, progress)
            _end_incarnation(schema, partial, target)
            _begin_incarnation(partial, target)
    finally:
        lock.release()


def _copy_sqlite(source: Path, partial: Path, target: Path, progress: Progress) -> None:
    """Copy to `partial`, of which a failure says that it is to become `target`."""
    if not source.exists():
        raise StoreUnavailable(f"there is no log at {source}; name the right --data-dir")
    try:
        reading = sqlitefile.connect(source, read_only=True)
    except sqlite3.Error as error:
        raise open_failure(source, error) from error
    with closing(reading):
        try:
            require_own(reading, source)
            # A transaction pins one moment of the log; without it the copy starts over whenever
            # the server commits, and with a busy one never ends.
            reading.execute("BEGIN")
            reading.execute("SELECT committed_id FROM head").fetchone()
        except sqlite3.Error as error:
            raise open_failure(source, error) from error
        try:
            sqlitefile.create_private(partial)
            with closing(sqlite3.connect(partial, isolation_level=None)) as writing:
                reading.backup(
                    writing,
                    pages=_PAGES_PER_STEP,
                    progress=lambda _status, left, total: progress(total - left, total),
                )
                writing.execute("DELETE FROM writer")
                writing.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _READ_FAILED:
                raise open_failure(source, error) from error
            raise cannot_write(target, error) from error


async def connect_postgresql(url: str) -> "asyncpg.Connection":
    """A connection of its own, for work on a whole store.

    Raises:
        ConfigError: there is no driver, or the URL is none.
        StoreUnavailable: the database does not answer.
    """
    try:
        import asyncpg

        from tidelog.store.postgresql_listener import LOST
    except ModuleNotFoundError as error:
        raise ConfigError(NO_DRIVER) from error
    try:
        return await asyncpg.connect(url, server_settings={"application_name": "tidelog"})
    except (ValueError, asyncpg.exceptions.ClientConfigurationError):
        # The driver quotes parts of the URL, and one of them may be the password.
        raise ConfigError(NO_URL) from None
    except LOST as error:
        raise StoreUnavailable(
            f"PostgreSQL does not answer: {type(error).__name__}: {error}. "
            "Check the `store` setting."
        ) from error


async def _dump_postgresql(
    schema: Schema, url: str, partial: Path, target: Path, progress: Progress
) -> None:
    connection = await connect_postgresql(url)

    from tidelog.store.postgresql_listener import LOST

    try:
        with closing(sqlitefile.connect(partial)) as writing:
            sqlitefile.migrate(writing, partial, schema.migrations("sqlite"))
            writing.execute("BEGIN")
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await _require_version(schema, connection)
                total = await connection.fetchval("SELECT committed_id FROM tidelog.head")
                for table in tables(schema):
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
            writing.execute("COMMIT")
            writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            writing.execute("PRAGMA journal_mode = DELETE")
    except LOST as error:
        raise StoreUnavailable(
            f"PostgreSQL could not be copied: {error}. Check the `store` setting."
        ) from error
    except sqlite3.Error as error:
        raise cannot_write(target, error) from error
    finally:
        await connection.close()


async def _require_version(schema: Schema, connection: "asyncpg.Connection") -> None:
    """What another version stored would be copied in part, without anybody noticing."""
    version = await connection.fetchval("SELECT max(version) FROM tidelog.schema_version")
    known = len(schema.migrations("postgresql"))
    if version != known:
        raise SchemaTooNew(
            f"the PostgreSQL store has schema version {version}, this tidelog copies {known}. "
            "Use the tidelog that serves it."
        )


async def _pages(
    connection: "asyncpg.Connection", table: str, columns: list[str]
) -> AsyncGenerator[list[tuple[object, ...]], None]:
    from tidelog.store.postgresql_rows import from_record

    query = f"SELECT {', '.join(columns)} FROM tidelog.{table}"
    cursor = await connection.cursor(query)
    while records := await cursor.fetch(_ROWS_PER_STEP):
        yield [from_record(record) for record in records]


async def _load_postgresql(schema: Schema, backup: Path, url: str, progress: Progress) -> None:
    connection = await connect_postgresql(url)

    from tidelog.store.postgresql import migrate
    from tidelog.store.postgresql_listener import LOST

    queries = LOG.queries["postgresql"]
    try:
        # One transaction from the first table to the last row: whatever ends a restore, the
        # database is as it was before. The lock keeps a server from starting on half a log.
        async with connection.transaction():
            await connection.execute(queries["lock_schema"])
            await _require_unused(connection, queries)
            await migrate(connection, queries, schema.migrations("postgresql"))
            await _require_empty(schema, connection)
            with _blaming(backup), closing(sqlitefile.connect(backup, read_only=True)) as reading:
                await _fill(schema, connection, reading, progress)
            head = await connection.fetchval(queries["head"])
            added = await connection.execute(queries["add_incarnation"], [""], [head], [0])
            if added == "INSERT 0 1":
                await connection.execute(queries["count_incarnation"])
            await connection.execute(queries["name_incarnation"], *new_incarnation())
            await connection.execute(queries["forget_incarnations"], [FORMER_INCARNATIONS])
    except LOST as error:
        raise StoreUnavailable(
            f"PostgreSQL could not be filled, and is as it was: {error}. Check that the role may "
            "create a schema, and the server's disk and log."
        ) from error
    finally:
        await connection.close()


async def _require_unused(connection: "asyncpg.Connection", queries: Mapping[str, str]) -> None:
    """A node that runs would go on with a log that is not the one it started with."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GONE_SECONDS
    while await connection.fetchval(queries["other_tidelogs"]):
        if loop.time() > deadline:
            raise StoreInUse(
                "another tidelog is connected to this PostgreSQL database. "
                "Stop every server and command that uses it, or name an empty database."
            )
        await asyncio.sleep(0.05)
        await connection.execute(queries["look_again"])


async def _require_empty(schema: Schema, connection: "asyncpg.Connection") -> None:
    """Nothing in any table that a restore fills, but what a start writes."""
    has_log = LOG.queries["postgresql"]["has_log"]
    holds = "a log" if await connection.fetchval(has_log) else None
    for table in tables(schema):
        if holds is None and table != "head":
            written = "WHERE began > 0" if table == "incarnation" else ""
            is_used = await connection.fetchval(
                f"SELECT EXISTS (SELECT FROM tidelog.{table} {written})"
            )
            holds = f"rows in {table}" if is_used else None
    if holds:
        raise StoreUnavailable(
            f"the PostgreSQL store already holds {holds}; a restore never overwrites. "
            "Name an empty database."
        )


async def _fill(
    schema: Schema,
    connection: "asyncpg.Connection",
    reading: sqlite3.Connection,
    progress: Progress,
) -> None:
    from tidelog.store.postgresql_rows import to_columns

    total: int = reading.execute("SELECT committed_id FROM head").fetchone()[0]
    for table in tables(schema):
        columns = _columns(reading, table)
        # What a start wrote, or what follows from tables before it: the backup has its own.
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


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    if not names:
        raise StoreError(f"this is not a tidelog store: it has no table {table}")
    return names


def _insert(table: str, columns: list[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
