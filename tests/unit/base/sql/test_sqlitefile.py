"""How every durable SQLite file of ours is opened, migrated and locked."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.base.errors import SchemaTooNew, StoreDamaged, StoreInUse, StoreUnavailable
from tidelog.base.sql import sqlitefile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file is made; the name needs quoting in a URI."""
    return tmp_path / "a file?with#marks%20.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A writing connection to a new file."""
    connection = sqlitefile.connect(path)
    yield connection
    connection.close()


def pragma(connection: sqlite3.Connection, name: str) -> object:
    """The value of a setting."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_writer_is_durable(connection: sqlite3.Connection, path: Path) -> None:
    """WAL with synchronous=FULL: what COMMIT acknowledged survives a power cut."""
    assert path.exists()
    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "synchronous") == 2
    assert pragma(connection, "foreign_keys") == 1
    assert pragma(connection, "cell_size_check") == 1
    assert pragma(connection, "busy_timeout") == sqlitefile.BUSY_TIMEOUT_MS


def test_a_reader_cannot_write(connection: sqlite3.Connection, path: Path) -> None:
    """A read-only connection is refused by SQLite itself, and makes no file."""
    connection.execute("CREATE TABLE t (a INTEGER)")
    reader = sqlitefile.connect(path, read_only=True)
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO t VALUES (1)")
    reader.close()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        sqlitefile.connect(path.with_name("missing.db"), read_only=True)
    assert not path.with_name("missing.db").exists()


def test_transactions_are_explicit(connection: sqlite3.Connection) -> None:
    """Nothing begins or ends a transaction behind our back."""
    connection.execute("CREATE TABLE t (a INTEGER)")
    connection.execute("INSERT INTO t VALUES (1)")
    assert not connection.in_transaction
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (2)")
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]


def test_migrations_run_once_each(connection: sqlite3.Connection, path: Path) -> None:
    """Each migration runs once, in order; the version counts them."""
    scripts = ["CREATE TABLE t (a TEXT);", "INSERT INTO t VALUES ('two');"]
    sqlitefile.migrate(connection, path, scripts[:1])
    assert pragma(connection, "user_version") == 1
    for _ in range(2):
        sqlitefile.migrate(connection, path, scripts)
    assert pragma(connection, "user_version") == 2
    assert connection.execute("SELECT a FROM t").fetchall() == [("two",)]


def test_a_failing_migration_is_undone(connection: sqlite3.Connection, path: Path) -> None:
    """A migration that fails leaves the version before it, and no open transaction."""
    scripts = [
        "CREATE TABLE t (a TEXT);",
        "CREATE TABLE u (a TEXT); INSERT INTO nowhere VALUES (1);",
    ]
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        sqlitefile.migrate(connection, path, scripts)
    assert pragma(connection, "user_version") == 1
    assert not connection.in_transaction
    tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
    assert tables == [("t",)]


def test_versions_are_compared(connection: sqlite3.Connection, path: Path) -> None:
    """Newer than the program: refused to all. Older: refused to a reader, who cannot migrate."""
    connection.execute("PRAGMA user_version = 3")
    sqlitefile.require_version(connection, path, 3)
    with pytest.raises(StoreUnavailable, match=r"version 3, this tidelog reads 4"):
        sqlitefile.require_version(connection, path, 4)
    with pytest.raises(SchemaTooNew, match=r"version 3; .* up to 2"):
        sqlitefile.require_version(connection, path, 2)
    with pytest.raises(SchemaTooNew, match=r"version 3; .* up to 2"):
        sqlitefile.migrate(connection, path, ["", ""])


def test_statements_are_split_where_they_end(connection: sqlite3.Connection) -> None:
    """A semicolon inside a text, a comment or a trigger ends no statement."""
    script = """
        CREATE TABLE t (a TEXT DEFAULT ';'); -- a remark; with a semicolon
        CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; SELECT 1; END;
        INSERT INTO t VALUES ('x;y');
    """
    found = [text for text in sqlitefile.statements(script) if text != ";"]
    assert len(found) == 3
    assert found[1].endswith("END;")
    for statement in found:
        connection.execute(statement)
    assert connection.execute("SELECT a FROM t").fetchall() == []  # the trigger was there
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",), ("g",)]


def test_a_sound_file_passes_the_check(connection: sqlite3.Connection, path: Path) -> None:
    """A structure without damage raises nothing."""
    connection.execute("CREATE TABLE t (a TEXT)")
    sqlitefile.check(connection, path, remedy="Do this.")


def test_damage_is_named_with_its_remedy(connection: sqlite3.Connection, path: Path) -> None:
    """What SQLite finds, and what to do about it, are in the message."""
    connection.execute("CREATE TABLE t (a TEXT)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 100)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\x55" * 4096)
    damaged = sqlitefile.connect(path, read_only=True)
    with pytest.raises(StoreDamaged, match=r"marks%20\.db is damaged \(.+\)\. Do this\."):
        sqlitefile.check(damaged, path, remedy="Do this.")
    damaged.close()


def test_a_new_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    """What others may read is not decided by a file mask; a file in its place is named."""
    path = tmp_path / "data" / "lock"
    sqlitefile.DirectoryLock(path).release()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(StoreUnavailable, match="lock is not a directory"):
        sqlitefile.DirectoryLock(path / "lock")


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    """A second taker is told who has it; after the release it may have it."""
    path = tmp_path / "lock"
    first = sqlitefile.DirectoryLock(path)
    for _ in range(2):  # a failed attempt takes nothing away
        with pytest.raises(StoreInUse, match=rf"{tmp_path} is in use .*process {os.getpid()}\)"):
            sqlitefile.DirectoryLock(path)
    first.release()
    sqlitefile.DirectoryLock(path).release()
    assert path.exists()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A process that was killed holds nothing."""
    path = tmp_path / "lock"
    script = (
        "import pathlib, sys, time; from tidelog.base.sql.sqlitefile import DirectoryLock\n"
        "lock = DirectoryLock(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreInUse, match=rf"process {holder.pid}\)"):
            sqlitefile.DirectoryLock(path)
        holder.kill()
        holder.wait()
        sqlitefile.DirectoryLock(path).release()
