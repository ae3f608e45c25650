"""Opening a SQLite file the way every durable file of tidelog is opened.

Used by the store, the mesh daemon and the sync client, so that "durable" means the same in all
three: WAL with `synchronous=FULL`, one writer, forward-only migrations, damage found at start.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import IO

from tidelog.base.data.seal import seal
from tidelog.base.errors import SchemaTooNew, StoreDamaged, StoreInUse, StoreUnavailable

# Of what is no text, number or bytearray `sqlite3` first looks for an adapter. Not to find one for
# NULL took 0.2 us for each in each row, of the 3.7 that an insert takes.
sqlite3.register_adapter(NoneType, lambda value: value)

BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for another connection's lock before it fails."""

CACHE_KIB = 64 * 1024
"""Page cache of one connection. Random dedupe keys touch pages all over their tree; 64 MiB keeps
those of some 300,000 recent keys in memory."""

WAL_CHECKPOINT_PAGES = 4000
"""Pages of WAL (16 MiB) after which a commit folds it into the main file. The default of 1000 makes
group commits of several hundred rows pay for a checkpoint every few batches."""

WAL_KEPT_BYTES = 64 * 1024 * 1024
"""The WAL is cut back to this after a checkpoint, so that one large transaction does not keep its
size on disk for ever."""


def connect(path: Path, *, read_only: bool = False, waits: bool = True) -> sqlite3.Connection:
    """Open `path` in autocommit mode: transactions are begun and ended by name.

    The connection may be used from several threads, one at a time; its owner sees to that. One that
    does not wait for another connection's lock is for an event loop, which must not block.

    A new file is its owner's alone, and SQLite gives its companions the same mode.
    """
    mode = "ro" if read_only else "rwc"
    if not read_only:
        create_private(path)
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        timeout=BUSY_TIMEOUT_MS / 1000 if waits else 0,
    )
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        set_page_cache(connection, CACHE_KIB * 1024)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def set_page_cache(connection: sqlite3.Connection, size_bytes: int) -> None:
    """Let a connection keep so much of the file in memory."""
    connection.execute(f"PRAGMA cache_size = -{size_bytes // 1024}")


def create_private(path: Path) -> None:
    """Make a file that only its owner can read; one that is there stays as it is."""
    # Only what is not there is opened: closing a file drops the locks SQLite has on it.
    with contextlib.suppress(OSError):  # it exists; or SQLite says what is wrong with the place
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def check(connection: sqlite3.Connection, path: Path, *, remedy: str) -> None:
    """Raise `StoreDamaged` unless SQLite finds the file's structure sound."""
    try:
        findings = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        findings = [str(error)]
    if findings != ["ok"]:
        raise StoreDamaged(f"{path} is damaged ({'; '.join(findings)[:300]}). {remedy}")


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Bring the schema from whatever version it has to `len(migrations)`, one transaction each.

    Enables seals: migrations write rows, and so does whoever opened the file to migrate it.
    """
    version = schema_version(connection, path, newest=len(migrations))
    enable_seals(connection)
    for number, script in enumerate(migrations[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number:d}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            connection.execute("ROLLBACK")
            raise


def enable_seals(connection: sqlite3.Connection) -> None:
    """Let statements of this connection seal the rows they write: `seal(...)` in SQL."""
    connection.create_function("seal", -1, seal, deterministic=True)


def schema_version(connection: sqlite3.Connection, path: Path, *, newest: int) -> int:
    """The file's schema version; one above `newest` is refused."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > newest:
        raise SchemaTooNew(too_new(str(path), version, newest))
    return version


def require_version(connection: sqlite3.Connection, path: Path, wanted: int) -> None:
    """For a reader, which cannot migrate: the file must already have the version it knows."""
    version = schema_version(connection, path, newest=wanted)
    if version < wanted:
        raise StoreUnavailable(
            f"{path} has schema version {version}, this tidelog reads {wanted}. "
            "Start the server once; it migrates the file."
        )


def too_new(where: str, version: int, newest: int) -> str:
    """What to tell an operator whose store is ahead of the program; the same for both engines."""
    return (
        f"{where} has schema version {version}; this tidelog knows up to {newest}. "
        "Install the newer tidelog that wrote it, or restore a backup made by this version."
    )


def statements(script: str) -> Iterator[str]:
    """The single statements of a script; `executescript` would commit behind our back."""
    pending = ""
    for piece in script.split(";"):
        pending += piece + ";"
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""


ELSEWHERE = "Stop that one, or start this one with another --data-dir."
"""What a server can do whose directory is in use."""


class DirectoryLock:
    """An exclusive, advisory lock on a file beside the database, held while a server runs.

    It ends with the process, however that ends, so a killed server leaves nothing to clean up.
    """

    def __init__(self, path: Path, *, remedy: str = ELSEWHERE, holder: int = 0) -> None:
        """Take the lock or raise `StoreInUse`, naming the process that has it.

        `remedy` ends that message. `holder` is what others are told to stop, if not this process.
        """
        self.path = path
        try:
            # What is written here is the content of messages, and so is the lake in it.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = path.open("a+", encoding="ascii")
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreUnavailable(
                f"{path.parent} is not a directory. Name another --data-dir, or move the file away."
            ) from error
        except OSError as error:
            raise StoreUnavailable(
                f"cannot write to {path.parent}: {error.strerror}. Name another --data-dir, or "
                "change the directory's permissions."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            found = self._file.read().strip() or "unknown"
            self._file.close()
            raise StoreInUse(
                f"{path.parent} is in use by another tidelog server (process {found}). {remedy}"
            ) from None
        self._file.truncate(0)
        self._file.write(str(holder or os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Give the lock back; the file stays, because removing it would race with a taker."""
        self._file.close()
