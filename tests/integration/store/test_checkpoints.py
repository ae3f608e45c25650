"""The WAL is folded into the file beside the event loop, and a COMMIT meanwhile too."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from support.log.nodes import running_node
from support.serve.processes import pause
from support.store import overlapping_reads
from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.link.unix import Served, owner_link
from tidelog.log.draft import Draft, to_entry
from tidelog.serve.read_pauses import VOCABULARY, PausingOwner
from tidelog.store import checkpoints, read_gate
from tidelog.store.read_gate import ReadGate
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


async def test_a_long_file_is_folded_rather_than_made_longer(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before there are many batches or much content; and the longer it is, the later again."""
    monkeypatch.setattr(checkpoints, "FULL_BYTES", 100_000)
    its = store.writer._checkpoints
    while its._running is None:
        await write(store, bytes(30_000))
    await folded(store)
    count = (await store.head()).committed_id
    assert in_the_file_itself(store.path, tmp_path / "copy.db") == count < 10
    assert its._size > 100_000
    its._running = None
    its._size = store.wal_bytes()
    await write(store)
    assert its._running is None


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


async def test_the_wal_begins_anew_though_commits_never_rest(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed beside a checkpoint is folded before the next batch begins."""
    its = store.writer._checkpoints
    begun, committed = threading.Event(), threading.Event()
    checkpoint = its._checkpoint

    def early_checkpoint(mode: str) -> bool:
        """Folds what there is when it begins, whatever is committed until it ends."""
        with closing(sqlitefile.connect(store.path, read_only=True)) as reading:
            reading.execute("BEGIN")
            reading.execute("SELECT * FROM head").fetchall()
            begun.set()
            assert committed.wait(60)
            checkpoint(mode)
        return True

    for _ in range(30):
        await write(store)
    with monkeypatch.context() as patched:
        patched.setattr(its, "_checkpoint", early_checkpoint)
        patched.setattr(checkpoints, "COMMITS", 1)
        await write(store)
        assert await asyncio.to_thread(begun.wait, 60)
        await write(store)
        committed.set()
        await folded(store)
    await write(store)
    in_wal = store.writer._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    assert in_wal < 20, "of two commits, not of all"


async def test_a_commit_that_may_fold_the_wal_itself_leaves_the_loop(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a read that took so long that SQLite folds all since in the COMMIT that comes next."""
    writer, ran_in = store.writer, list[str]()
    commit = writer._commit

    def noted_commit() -> None:
        ran_in.append(threading.current_thread().name)
        commit()

    monkeypatch.setattr(writer, "_commit", noted_commit)
    for most_pages in (10_000, 1, 10_000):
        monkeypatch.setattr(checkpoints, "LARGEST_WAL_PAGES", most_pages)
        writer._disk_speed.average_seconds = 0.0
        await write(store)
    writer._disk_speed.average_seconds = 0.0
    await write(store)
    loop = threading.current_thread().name
    assert [name == loop for name in ran_in] == [True, True, False, True]


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


# A WAL that readers keep from beginning anew.

READER = """
import sqlite3, sys, time
both = [sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True) for _ in range(2)]
def begin(connection):
    connection.isolation_level = None
    connection.execute("BEGIN")
    connection.execute("SELECT committed_id FROM head").fetchall()
begin(both[0])
print("reads", flush=True)
while True:
    begin(both[1])
    time.sleep(0.01)
    both[0].execute("COMMIT")
    both.reverse()
"""
"""Has two connections, and there is no moment at which neither reads."""


@pytest.fixture
def readers(store: SqliteStore) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that never stop reading."""
    with ExitStack() as stack:
        command = [sys.executable, "-c", READER, str(store.path)]
        started = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        for each in started:
            stack.callback(each.kill)
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "reads\n"
        yield started


@pytest.fixture
def small_wal(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL begins anew, and its file is cut back, at a fraction of the size."""
    size = 500_000
    monkeypatch.setattr(checkpoints, "RESTART_BYTES", size)
    monkeypatch.setattr(checkpoints, "RETRY_BYTES", size // 10)
    store.writer._connection.execute(f"PRAGMA journal_size_limit = {size}")


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(checkpoints, "RESTART_SECONDS", 60.0)
    monkeypatch.setattr(checkpoints, "MOST_RESTART_SECONDS", 60.0)


async def write_until_anew(store: SqliteStore) -> None:
    """Entries, until the WAL has begun anew."""
    size = 0
    async with asyncio.timeout(90):
        while store.wal_bytes() >= size:
            size = store.wal_bytes()
            await write(store, bytes(50_000))


@pytest.mark.usefixtures("small_wal")
async def test_the_wal_begins_anew_while_other_processes_never_stop_reading(
    store: SqliteStore, readers: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, and nothing is lost; otherwise it would grow with all that is written."""
    be_patient(monkeypatch)
    for _ in range(5):
        await write_until_anew(store)
    assert all(each.poll() is None for each in readers)
    count = (await store.head()).committed_id
    with closing(sqlitefile.connect(store.path, read_only=True)) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchall() == [(count,)]


@pytest.mark.usefixtures("small_wal")
async def test_the_loop_and_readers_go_on_while_the_writer_pauses(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction begins when the read that was in the way has ended."""
    be_patient(monkeypatch)
    monkeypatch.setattr(checkpoints, "PAUSED_SECONDS", 0.01)
    its = store.writer._checkpoints
    with closing(sqlitefile.connect(store.path, read_only=True)) as reading:
        reading.execute("BEGIN")
        reading.execute("SELECT * FROM head").fetchall()
        while not its.is_restart_due:
            await write(store, bytes(50_000))
        await folded(store)
        size = store.wal_bytes()
        beginning = asyncio.create_task(store.writer.begin(Names(), 0))
        while not its.is_running:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        position = (await store.head()).committed_id
        assert len(await store.entries(0)) == position
        assert not beginning.done()
        reading.execute("COMMIT")
        await beginning
    await store.writer.rollback()
    assert await write(store) == position + 1
    assert store.wal_bytes() < size


@pytest.mark.usefixtures("small_wal")
async def test_a_read_that_lasts_does_not_stop_the_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said that the WAL grows, now and then it is tried again, and then it begins anew."""
    monkeypatch.setattr(checkpoints, "RESTART_SECONDS", 0.001)
    with closing(sqlitefile.connect(store.path, read_only=True)) as reading:
        reading.execute("BEGIN")
        reading.execute("SELECT * FROM head").fetchall()
        async with asyncio.timeout(90):
            while store.writer._checkpoints._restart_above < 1_500_000:
                await write(store, bytes(50_000))
        assert caplog.text.count("and grows while another program reads") == 1
        reading.execute("COMMIT")
    await write_until_anew(store)
    async with asyncio.timeout(90):
        while store.writer._checkpoints._restart_above:
            await write(store)


async def test_the_size_of_the_wal_is_a_metric(tmp_path: Path) -> None:
    """Zero on PostgreSQL, which sees to its own."""
    async with running_node(str(tmp_path / "tidelog.db")) as node:
        await node.put("s", "k")
        size = (tmp_path / "tidelog.db-wal").stat().st_size
        assert size > 0
        shown = node.committer.metrics.registry.get_sample_value("tidelog_store_wal_bytes")
        assert shown == size


READERS = 2


@asynccontextmanager
async def fronts(store: SqliteStore, pauses: PausingOwner, path: Path) -> AsyncIterator[list[int]]:
    """Processes that read the store as fronts do, all the time; yields their numbers."""
    link = partial(owner_link, [Served(pauses, VOCABULARY)])
    server = await asyncio.get_running_loop().create_unix_server(link, path)
    command = (sys.executable, overlapping_reads.__file__, str(store.path), str(path))
    started = [await asyncio.create_subprocess_exec(*command) for _ in range(READERS)]
    try:
        async with asyncio.timeout(60):
            while len(pauses.fronts) < READERS:  # noqa: ASYNC110 - they say so
                await asyncio.sleep(0.01)
        yield [each.pid for each in started]
    finally:
        for each in started:
            with contextlib.suppress(ProcessLookupError):
                each.kill()
            await each.wait()
        server.close()


@pytest.mark.usefixtures("small_wal")
async def test_the_wal_has_a_bound_while_fronts_never_stop_reading(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They pause when they are asked to, and that is enough."""
    monkeypatch.setattr(read_gate, "QUIET_SECONDS", 60.0)  # however busy this machine is
    monkeypatch.setattr(read_gate, "MOST_SECONDS", 60.0)
    monkeypatch.setattr(checkpoints, "PAUSED_SECONDS", 60.0)
    pauses = PausingOwner()
    store.read_gate.others = pauses.paused
    largest = begun_anew = size = 0
    async with fronts(store, pauses, tmp_path / "owner.sock"), asyncio.timeout(90):
        while begun_anew < 3:
            await write(store, bytes(50_000))
            before, size = size, store.wal_bytes()
            largest = max(largest, size)
            begun_anew += size < before
    transaction = 120_000
    assert largest <= checkpoints.RESTART_BYTES + transaction


@pytest.mark.usefixtures("small_wal")
async def test_a_front_that_stands_still_does_not_stop_the_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does one that is gone: whoever waits for it goes on without it."""
    monkeypatch.setattr(read_gate, "QUIET_SECONDS", 0.01)
    pauses = PausingOwner()
    store.read_gate.others = pauses.paused
    async with fronts(store, pauses, tmp_path / "owner.sock") as (stopped, killed):
        await pause(stopped)
        async with asyncio.timeout(90):
            while not store.writer._checkpoints.is_restart_due:
                await write(store, bytes(50_000))
            await write(store)
            os.kill(killed, signal.SIGKILL)
            while len(pauses.fronts) == READERS:
                await write(store)
        os.kill(stopped, signal.SIGCONT)
        await write_until_anew(store)


async def test_reads_go_on_when_nobody_ends_a_pause() -> None:
    """Its owner may be dead."""
    gate = ReadGate()
    gate.enter()
    gate.close(0.05)
    assert not await gate.quiet(0.01), "who reads already is waited for"
    gate.leave()
    assert await gate.quiet(0.01)
    await asyncio.to_thread(gate.enter)
    gate.leave()
