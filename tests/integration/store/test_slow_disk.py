"""A disk that takes long to confirm a write holds up who waits for that write, and nobody else."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tidelog.base.errors import StoreUntrustworthy
from tidelog.config.schema import SCHEMA
from tidelog.log.draft import Draft, to_entry
from tidelog.store import disk_speed as pace
from tidelog.store.rows import Effects, Names
from tidelog.store.sqlite import SqliteStore

NO_NAMES = Names()


class Disk:
    """The disk under a store: how long it takes, and which threads have waited for it."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.seconds = 0.0
        self.threads: list[int] = []
        self.fails: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self._commit = store.writer._commit
        store.writer._commit = self._slow_commit  # type: ignore[method-assign]

    def _slow_commit(self) -> None:
        self.threads.append(threading.get_ident())
        self.meanwhile()
        time.sleep(self.seconds)
        if self.fails is not None:
            raise self.fails
        self._commit()

    async def write(self, body: bytes = b"{}") -> int:
        """One entry; returns its position."""
        loaded = await self.store.writer.begin(NO_NAMES, 0)
        at = loaded.head.committed_id + 1
        entry = to_entry(Draft("s", "t", "k", "e", "", "a", body), at, at, 1, loaded.head.digest)
        effects = Effects(at, entry.digest, 1, [entry], [], [], [])
        await self.store.writer.commit(bytes(16), effects)
        return at

    async def positions(self) -> list[int]:
        """Of the entries that are stored."""
        return [entry.committed_id for entry in await self.store.stream_entries("s", 0, limit=100)]

    def is_beside_the_loop(self) -> bool:
        """Whether the last COMMIT ran in a thread."""
        return self.threads[-1] != threading.get_ident()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    """A store whose disk can be made slow."""
    store = SqliteStore(SCHEMA, tmp_path / "tidelog.db", log_id="l")
    yield Disk(store)
    await store.close()


async def test_commits_leave_the_loop_while_the_disk_is_slow(disk: Disk) -> None:
    """They are waited for on the loop, and while the average says so in a thread.

    The first is, whatever the disk: if that took so long that the owner is killed for its silence,
    the next owner would wait for it in the same way.
    """
    await disk.write()
    assert disk.is_beside_the_loop()
    disk.store.writer._disk_speed.average_seconds = 0.0  # whatever the machine took for it
    await disk.write()
    assert not disk.is_beside_the_loop()
    disk.store.writer._disk_speed.average_seconds = 0.0
    disk.seconds = 3 * pace.SLOW_SECONDS
    for _ in range(20):
        await disk.write()
    assert disk.is_beside_the_loop()
    assert len(set(disk.threads)) == 2
    assert await disk.positions() == list(range(1, 23))
    disk.store.writer._disk_speed.average_seconds = pace.SLOW_SECONDS / 2  # as after many fast ones
    await disk.write()
    assert not disk.is_beside_the_loop()


async def test_a_large_batch_leaves_the_loop_on_a_fast_disk_too(disk: Disk) -> None:
    """What it takes is its size; it says nothing about how soon a small one is confirmed."""
    disk.store.writer._disk_speed.average_seconds = 0.0
    await disk.write(bytes(pace.LARGE_BYTES))
    assert disk.is_beside_the_loop()
    assert disk.store.writer._disk_speed.average_seconds == 0.0
    await disk.write()
    assert not disk.is_beside_the_loop()
    assert await disk.positions() == [1, 2]


async def test_the_loop_turns_while_a_commit_waits(disk: Disk) -> None:
    """What others ask for is done meanwhile; the COMMIT itself waits for them, in this test."""
    disk.store.writer._disk_speed.average_seconds = 1.0
    loop = asyncio.get_running_loop()
    turned = threading.Event()

    def wait_for_the_loop() -> None:
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(30), "the loop stood still"

    disk.meanwhile = wait_for_the_loop
    assert await disk.write() == 1
    assert await disk.positions() == [1]


async def test_who_gives_up_waits_for_the_commit_under_way(disk: Disk) -> None:
    """A cancelled writer leaves a connection that is free, and a log that has the entry."""
    disk.store.writer._disk_speed.average_seconds = 1.0
    begun, may_go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def stand_still() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_go_on.wait(30)

    disk.meanwhile = stand_still
    writing = asyncio.create_task(disk.write())
    await begun.wait()
    for _ in range(3):
        writing.cancel()
        await asyncio.sleep(0)
    assert not writing.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await disk.store.writer.rollback()
    disk.meanwhile = lambda: None
    assert await disk.write() == 2
    assert await disk.positions() == [1, 2]


async def test_a_disk_that_fails_beside_the_loop_is_not_trusted(disk: Disk) -> None:
    """The failure of a COMMIT means the same wherever it ran."""
    disk.store.writer._disk_speed.average_seconds = 1.0
    disk.fails = OSError(5, "input/output error")
    with pytest.raises(StoreUntrustworthy):
        await disk.write()


def test_a_busy_loop_does_not_make_a_fast_disk_slow() -> None:
    """The wait for the interpreter lock is not the disk's; a slow disk stays slow."""
    measured = pace.DiskSpeed()
    measured.average_seconds = 0.01
    for _ in range(100):
        measured.note(0.005, loop_busy_seconds=0.0049)
    assert not measured.is_slow
    for _ in range(100):
        measured.note(0.02, loop_busy_seconds=0.02)
    assert measured.is_slow
