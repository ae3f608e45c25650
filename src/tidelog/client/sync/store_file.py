"""The SQLite file of a sync client: locked, recognized, migrated, and its errors in our words."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from tidelog.base.errors import StoreDamaged, StoreInUse, StoreUnavailable
from tidelog.base.sql import sqlitefile
from tidelog.base.sql.queries import load_queries

APPLICATION_ID = 0x74647363
"""In the header of every file of ours; the first migration writes it."""

CHECKED_AT_START_BYTES = 256 * 1024**2
"""Files up to this size are checked page by page at every start, about a quarter of a second."""

REMEDY = (
    "Open the client again: it keeps the drafts that can be read, and fetches the rest from the "
    "server."
)


class StoreFile:
    """One file, locked while this object has it, and the client's queries by their names."""

    connection: sqlite3.Connection
    """Set by `open`."""

    def __init__(self, path: Path) -> None:
        """Lock the file; `open` it next."""
        self.path = path
        self.queries = load_queries(files("tidelog.client.sync") / "sql")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = _lock(path)

    def open(self, path: Path | None = None) -> None:
        """Open the file, or for a while another one that is to replace it."""
        self.connection = _open(self.path if path is None else path)

    def check(self) -> None:
        """Raise `StoreDamaged` for what can be seen without taking long."""
        if self.path.stat().st_size <= CHECKED_AT_START_BYTES:
            sqlitefile.check(self.connection, self.path, remedy=REMEDY)

    def migrate(self) -> None:
        """Bring the tables to what this version of the client needs."""
        scripts = sorted(
            (
                file
                for file in (files("tidelog.client.sync") / "migrations").iterdir()
                if file.name.endswith(".sql")
            ),
            key=lambda file: file.name,
        )
        texts = [script.read_text(encoding="utf-8") for script in scripts]
        with self.translated():
            sqlitefile.migrate(self.connection, self.path, texts)

    def close(self) -> None:
        """Close what is open; the lock stays."""
        with suppress(AttributeError):  # nothing is
            self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it, or nothing."""
        with self.translated():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What SQLite says of the file, in our words; a violated constraint is the caller's."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise StoreDamaged(f"{self.path} is damaged ({error}). {REMEDY}") from error
            raise StoreUnavailable(
                f"{self.path} cannot be written or read: {error}. Check the disk and the file's "
                "permissions."
            ) from error

    def run(self, name: str, *values: object) -> sqlite3.Cursor:
        """Execute one."""
        with self.translated():
            return self.connection.execute(self.queries[name], values)

    def run_many(self, name: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Execute one for each of the rows."""
        if rows:
            with self.translated():
                self.connection.executemany(self.queries[name], rows)

    def all(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        """Every row of the result."""
        with self.translated():
            return self.connection.execute(self.queries[name], values).fetchall()

    def each(self, name: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Row by row, as they may be large; nothing is written until the last one is read."""
        with self.translated():
            yield from self.connection.execute(self.queries[name], values)

    def row(self, name: str, *values: object) -> tuple[Any, ...] | None:
        """The first row of the result, if there is one."""
        found: tuple[Any, ...] | None
        with self.translated():
            found = self.connection.execute(self.queries[name], values).fetchone()
        return found

    def one(self, name: str, *values: object) -> Any:
        """The only value of the result."""
        [(value,)] = self.all(name, *values)
        return value


def _lock(path: Path) -> sqlitefile.DirectoryLock:
    try:
        return sqlitefile.DirectoryLock(path.with_name(path.name + ".lock"))
    except StoreInUse:
        raise StoreInUse(
            f"{path} is in use by another sync client. Close that one, or use another file."
        ) from None


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlitefile.connect(path)
        try:
            _recognize(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"{path} cannot be opened: {error}. Move it aside and start again: the client fetches "
            "everything but unsent drafts from the server; `tidelog sync drafts` reads these out "
            "of the file."
        ) from error
    return connection


def _recognize(connection: sqlite3.Connection, path: Path) -> None:
    [(application_id,)] = connection.execute("PRAGMA application_id")
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_schema")
    if application_id != APPLICATION_ID and (application_id or tables):
        raise StoreUnavailable(
            f"{path} is an SQLite file of another application. Name another file."
        )


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is to blame, and not the disk or its permissions.

    Text or JSON that cannot be read is an ordinary error to SQLite: code 1, or no code.
    """
    if not isinstance(error, sqlite3.OperationalError):
        return True
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR
