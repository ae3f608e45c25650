"""The WAL is folded into the file beside the event loop, and a COMMIT meanwhile too."""

import asyncio
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.log.draft import Draft, to_entry
from tidelog.store import checkpoints
from tidelog.store.rows import Effects, Names
from tidelog.store.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store in which nobody but the writer commits."""
    store = SqliteStore(SCHEMA, tmp_path / "tidelog.db", log_id="l")
    yield store
    await store.close()


async def write(store: SqliteStore, body: bytes = b"{}") -> int:
    """One entry; returns its position."""
    loaded = await store.writer.begin(Names(), 0)
    at = loaded.head.committed_id + 1
    entry = to_entry(Draft("s", "t", "k", "e", "", "a", body), at, at, 1, loaded.head.digest)
    await store.writer.commit(bytes(16), Effects(at, entry.digest, 1, [entry], [], [], []))
    return at


def in_the_file_itself(path: Path, copy: Path) -> int:
    """How many entries there are without the WAL."""
    # Another process: a file that is closed in this one takes SQLite's locks on it along.
    subprocess.run(["cp", path, copy], check=True)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        [(count,)] = connection.execute("SELECT count(*) FROM log")
    return int(count)


async def folded(store: SqliteStore) -> None:
    """Wait until no checkpoint runs."""
    running = store.writer._checkpoints._running
    assert running is not None
    await asyncio.wrap_future(running)


async def test_many_small_batches_are_folded(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their number, without a COMMIT that does it."""
    monkeypatch.setattr(checkpoints, "COMMITS", 10)
    await write(store, bytes(100))
    for _ in range(9):
        await write(store)
    await folded(store)
    assert in_the_file_itself(store.path, tmp_path / "copy.db") == 10


async def test_few_large_batches_are_folded(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their size."""
    monkeypatch.setattr(checkpoints, "WRITTEN_BYTES", 100_000)
    for _ in range(2):
        await write(store, bytes(60_000))
    await folded(store)
    assert in_the_file_itself(store.path, tmp_path / "copy.db") == 2


async def test_no_commit_folds_what_a_checkpoint_will(store: SqliteStore) -> None:
    """SQLite's own limit is for a WAL that a checkpoint beside the loop cannot keep small."""
    [(pages,)] = store.writer._connection.execute("PRAGMA wal_autocheckpoint")
    assert pages == checkpoints.LARGEST_WAL_PAGES


async def test_commits_leave_the_loop_while_a_checkpoint_runs(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is busy: a COMMIT waits for it in a thread, and is no measure of its speed."""
    writer, ran_in = store.writer, list[str]()
    begun, may_go_on = threading.Event(), threading.Event()
    fold, commit = writer._checkpoints._fold, writer._commit

    def slow_fold() -> None:
        begun.set()
        assert may_go_on.wait(60)
        fold()

    def noted_commit() -> None:
        ran_in.append(threading.current_thread().name)
        commit()

    monkeypatch.setattr(writer._checkpoints, "_fold", slow_fold)
    monkeypatch.setattr(writer, "_commit", noted_commit)
    monkeypatch.setattr(checkpoints, "COMMITS", 1)
    writer._disk_speed.average_seconds = 0.0
    await write(store)
    monkeypatch.setattr(checkpoints, "COMMITS", 1_000_000)
    assert begun.wait(60)
    writer._disk_speed.average_seconds = 0.0
    assert await write(store) == 2
    assert writer._disk_speed.average_seconds == 0.0
    may_go_on.set()
    await folded(store)
    await write(store)
    loop = threading.current_thread().name
    assert [name == loop for name in ran_in] == [True, False, True]


async def test_a_checkpoint_that_fails_loses_nothing(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and the next one folds all."""
    monkeypatch.setattr(checkpoints, "COMMITS", 1)
    monkeypatch.setattr(sqlitefile, "connect", _no_room)
    await write(store)
    await folded(store)
    assert "could not be folded" in caplog.text
    assert [each.committed_id for each in await store.stream_entries("s", 0)] == [1]


def _no_room(*_: object, **__: object) -> sqlite3.Connection:
    raise sqlite3.OperationalError("database or disk is full")
