"""One SQLite file of the daemon: opened, checked, migrated, and its failures told apart."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from tidelog.base.errors import StoreDamaged, StoreError, StoreUnavailable, StoreUntrustworthy
from tidelog.base.sql import sqlitefile
from tidelog.base.sql.queries import load_queries

CACHE_KIB = 8 * 1024
"""Page cache of one file. The daemon runs on every machine, beside what the machine is for."""

_FSYNC_FAILED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
_OTHER_FILE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})


class StorageFull(StoreError):  # noqa: N818 - the failure is the noun
    """No room for another row; nothing was committed."""


class StorageBusy(StoreError):  # noqa: N818 - the failure is the noun
    """Another program held the file's lock for too long; nothing was committed."""


class Database:
    """A connection, its named statements and its transactions; used from one thread."""

    def __init__(self, path: Path, *, kind: str, application_id: int, remedy: str) -> None:
        """Open or create the file.

        Args:
            path: the file.
            kind: names its migrations, `migrations/*_{kind}.sql`.
            application_id: what the first migration writes into the header.
            remedy: what an operator should do about a damaged file.

        Raises:
            StoreDamaged: the file is damaged.
            SchemaTooNew: a newer program wrote it.
        """
        self.path = path
        self._queries = load_queries(files("tidelog.daemon") / "sql")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.connection = sqlitefile.connect(path)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _OTHER_FILE:
                raise StoreDamaged(f"{path} is damaged ({error}). {remedy}") from error
            raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
        try:
            self._prepare(kind, application_id, remedy)
        except BaseException:
            self.connection.close()
            raise
        for companion in ("", "-wal", "-shm"):  # of a file that an earlier version made
            with suppress(FileNotFoundError):
                path.with_name(path.name + companion).chmod(0o600)

    def _prepare(self, kind: str, application_id: int, remedy: str) -> None:
        try:
            found = [row[0] for row in self.connection.execute("PRAGMA integrity_check(3)")]
            [(stored_id,)] = self.connection.execute("PRAGMA application_id")
            [(tables,)] = self.connection.execute("SELECT count(*) FROM sqlite_schema")
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(f"{self.path} is damaged ({error}). {remedy}") from error
        if found != ["ok"]:
            raise StoreDamaged(f"{self.path} is damaged ({'; '.join(found)[:300]}). {remedy}")
        if stored_id != application_id and (stored_id or tables):
            raise StoreUnavailable(
                f"{self.path} is an SQLite file of another application. Name another --data-dir."
            )
        self.connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        folder = files("tidelog.daemon") / "migrations"
        names = sorted(item.name for item in folder.iterdir() if item.name.endswith(f"_{kind}.sql"))
        scripts = [(folder / name).read_text(encoding="utf-8") for name in names]
        sqlitefile.migrate(self.connection, self.path, scripts)
        self.schema_version = len(scripts)

    def close(self) -> None:
        """Give the file back."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything or nothing; leaving it means that the changes are on the disk.

        Raises:
            StorageFull, StorageBusy, StoreUnavailable: nothing was changed.
            StoreUntrustworthy: nobody knows what was; the process must end.
        """
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield
            self.connection.execute("COMMIT")
        except BaseException as error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError | OSError):
                raise _meaning(self.path, error) from error
            raise

    def run(self, name: str, *values: object) -> sqlite3.Cursor:
        """A named statement with values by position."""
        return self.connection.execute(self._queries[name], values)

    def run_named(self, name: str, values: dict[str, object]) -> sqlite3.Cursor:
        """A named statement with values by name."""
        return self.connection.execute(self._queries[name], values)

    def row(self, name: str, *values: object) -> tuple[Any, ...] | None:
        """The first row of a named statement."""
        found: tuple[Any, ...] | None = self.run(name, *values).fetchone()
        return found

    def vacuum(self) -> None:
        """Rewrite the file without its free pages, on a connection of its own: for another thread.

        Nothing else may write meanwhile, or it waits for this to end; whoever reads goes on.

        Raises:
            StorageFull, StorageBusy, StoreUnavailable: the file is as it was.
        """
        connection = sqlitefile.connect(self.path)
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            raise _meaning(self.path, error) from error
        finally:
            connection.close()

    def free_bytes(self) -> int:
        """Bytes of the file that are not in use, and are used before the file grows."""
        [(free,)] = self.connection.execute("PRAGMA freelist_count")
        [(size,)] = self.connection.execute("PRAGMA page_size")
        return int(free * size)


def _meaning(path: Path, error: sqlite3.OperationalError | OSError) -> StoreError:
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return StorageFull(str(error)) if full else StoreUnavailable(f"{path}: {error}")
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code in _FSYNC_FAILED:
        return StoreUntrustworthy(f"{path}: {error}")
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StorageFull(f"{path}: {error}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageBusy(f"{path}: {error}")
        case _:
            return StoreUnavailable(f"{path}: {error}")
