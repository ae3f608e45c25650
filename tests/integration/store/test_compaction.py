"""Rewriting the files of a store: they shrink, hold the same, and are never half written."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from support.channels.peer import channels_server, ok, unique
from support.cli.command import run as run_command
from support.cli.command import tidelog
from support.store.backups import silent
from tidelog.base.errors import StoreInUse, StoreUnavailable
from tidelog.base.faultpoint import VARIABLE
from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.log.verify import verify
from tidelog.store import compaction, open_store
from tidelog.store.catalogue import tables
from tidelog.store.compaction import Compacted, compact
from tidelog.testing.clock import FakeClock

LEFT_OVER = b"what nobody can read any more"


async def test_a_copy_has_no_traces(tmp_path: Path, store_location: str) -> None:
    """Nothing is left in unused room, and the log is the same."""
    async with channels_server(tmp_path, store_location) as node:
        channel = unique()
        for n in range(20):
            await node.api.publish(channel, f"{n} " * 400)
    if not store_location.startswith("postgresql://"):
        with closing(sqlite3.connect(store_location, isolation_level=None)) as writing:
            writing.execute("PRAGMA secure_delete = OFF")
            writing.execute("CREATE TABLE passing (content BLOB)")
            writing.execute("INSERT INTO passing VALUES (?)", (LEFT_OVER * 1000,))
            writing.execute("DROP TABLE passing")
        assert LEFT_OVER in Path(store_location).read_bytes()  # noqa: ASYNC240
    done = await tidelog("log", "compact", "--store", store_location)
    assert 0 < done["after_bytes"] <= done["before_bytes"]
    if not store_location.startswith("postgresql://"):
        assert LEFT_OVER not in Path(store_location).read_bytes()  # noqa: ASYNC240
    store = await open_store(SCHEMA, store_location, log_id="", node="", read_only=True)
    try:
        *_, last = [progress async for progress in verify(store)]
        assert (last.finding, last.verified) == (None, 20)
    finally:
        await store.close()


async def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    """The server's lock counts here too; what is not there is not made."""
    path = tmp_path / "tidelog.db"
    with pytest.raises(StoreUnavailable, match="there is no log"):
        await compact(SCHEMA, str(path), silent)
    assert not path.exists()
    async with channels_server(tmp_path, str(path)):
        with pytest.raises(StoreInUse, match=r"in use by another tidelog server.*stop that one"):
            await compact(SCHEMA, str(path), silent)


async def purged(directory: Path, count: int = 400) -> Path:
    """A store of which every body is gone, as retention leaves it."""
    clock, path = FakeClock(), directory / "tidelog.db"
    window = {"retention_window_seconds": 10, "purge_interval_seconds": 3600}
    async with channels_server(
        directory, str(path), clock=clock, versioned_messages=window
    ) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        event = {"name": "said", "channel": unique(), "data": "word " * 160}
        for _ in range(count // 10):
            ok(await node.api.post("/batch_events", {"batch": [event] * 10}))
        clock.advance(20_000)
        assert await node.surface.owner.retention.tick() == count
    return path


def names_beside(path: Path) -> set[str]:
    """What lies in the directory of a store."""
    return {each.name for each in path.parent.iterdir()}


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Everything that a store holds."""
    with closing(sqlite3.connect(path)) as reading:
        return {
            table: sorted(reading.execute(f"SELECT * FROM {table}")) for table in tables(SCHEMA)
        }


async def is_sound(path: Path) -> bool:
    """Whether a server opens it, and its log verifies."""
    async with channels_server(path.parent, str(path)) as node:
        *_, last = [progress async for progress in verify(node.server.store)]
        return last.finding is None


async def test_what_was_purged_is_given_back(tmp_path: Path) -> None:
    """The file shrinks, holds the same, keeps its mode, and tells how far it is."""
    path = await purged(tmp_path)
    path.chmod(0o640)
    told: list[tuple[int, int]] = []
    before, size = rows_of(path), path.stat().st_size
    done = await compact(SCHEMA, str(path), lambda *progress: told.append(progress))
    assert done == Compacted(size, path.stat().st_size)
    assert done.after_bytes < 0.6 * done.before_bytes
    assert rows_of(path) == before
    assert path.stat().st_mode & 0o777 == 0o640
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] >= done.after_bytes
    assert names_beside(path) == {"tidelog.db", "tidelog.db.lock"}
    assert await is_sound(path)
    assert (await compact(SCHEMA, str(path), silent)).after_bytes == done.after_bytes


@pytest.mark.parametrize(("point", "is_smaller"), [("S1", False), ("S2", True)])
async def test_a_kill_leaves_the_one_file_or_the_other(
    tmp_path: Path, point: str, is_smaller: bool
) -> None:
    """Before it is replaced or after: whole, with everything in it; remains go with the next."""
    path = await purged(tmp_path)
    before, size = rows_of(path), path.stat().st_size
    killed = await asyncio.to_thread(
        run_command,
        *("log", "compact", "--data-dir", str(tmp_path)),
        env={**os.environ, VARIABLE: f"{point}=kill"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (path.stat().st_size < size) is is_smaller
    assert rows_of(path) == before
    assert await is_sound(path)
    await compact(SCHEMA, str(path), silent)
    assert path.stat().st_size < size
    assert names_beside(path) == {"tidelog.db", "tidelog.db.lock"}
    assert await is_sound(path)


async def test_a_reader_stands_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on reading a file that is no longer the store."""
    monkeypatch.setattr(sqlitefile, "BUSY_TIMEOUT_MS", 50)
    path = await purged(tmp_path, 10)
    size = path.stat().st_size
    with closing(sqlitefile.connect(path)) as reading:
        reading.execute("SELECT * FROM head").fetchall()
        with pytest.raises(StoreUnavailable, match=r"another program reads .*End that"):
            await compact(SCHEMA, str(path), silent)
    assert path.stat().st_size == size
    assert await is_sound(path)


async def test_without_room_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much it takes is known before, and said."""
    path = await purged(tmp_path, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 2, 7))
    with pytest.raises(StoreUnavailable, match=r"takes up to [\d,]+ bytes, and its disk has 7"):
        await compact(SCHEMA, str(path), silent)
    monkeypatch.undo()
    assert await is_sound(path)


async def test_whoever_gives_up_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy ends at the next look, and the file is as it was."""
    monkeypatch.setattr(compaction, "_STEPS_PER_LOOK", 10)
    path = await purged(tmp_path)
    size, loop = path.stat().st_size, asyncio.get_running_loop()
    is_cancelled = threading.Event()

    def give_up(done: int, total: int) -> None:
        del done, total
        if not is_cancelled.is_set():
            loop.call_soon_threadsafe(work.cancel)
            loop.call_soon_threadsafe(loop.call_soon, is_cancelled.set)
            is_cancelled.wait()

    work = asyncio.create_task(compact(SCHEMA, str(path), give_up))
    with pytest.raises(asyncio.CancelledError):
        await work
    assert path.stat().st_size == size
    assert names_beside(path) == {"tidelog.db", "tidelog.db.lock"}
    assert await is_sound(path)


async def test_the_former_name_still_works(tmp_path: Path) -> None:
    """And says what it is called now."""
    await purged(tmp_path, 10)
    done = await asyncio.to_thread(
        run_command, "log", "vacuum", "--data-dir", str(tmp_path), "--json"
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"before_bytes", "after_bytes"}
    assert "tidelog log compact" in done.stderr
