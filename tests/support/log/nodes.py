"""Committers on real stores: what the tests of the log and of the store share."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg
from msgspec import Raw, Struct

from support.probe.rules import SURFACE, PruneItem, PutItem, log_stream, prepare_put
from support.probe.service import EXTENSION
from support.probe.wire import Put
from tidelog.base.clock import ServerClock
from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.config.schema import SCHEMA
from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Item, Names, View
from tidelog.log.draft import Draft
from tidelog.log.request import Submission
from tidelog.log.verify import Progress, verify
from tidelog.store import Store, open_store
from tidelog.store.postgresql_rows import from_record
from tidelog.store.rows import Entry, Row
from tidelog.testing.clock import FakeClock

LOG_ID = "01TESTLOG00000000000000000"

T = TypeVar("T")


class Named(Protocol):
    """An item that knows what it reads, as the probe's do."""

    def names(self) -> Names:
        """What its decision reads."""


def put_item(stream: str, key: str, value: bytes = b"1", weight: int = 1) -> PutItem:
    """A prepared put."""
    return prepare_put(Put(stream, key, Raw(value), weight))


def joined(items: Iterable[Named]) -> Names:
    """What several items read, named as often as they name it."""
    names = [item.names() for item in items]
    return Names(
        dedupe=tuple(pair for name in names for pair in name.dedupe),
        streams=tuple(stream for name in names for stream in name.streams),
        rows=tuple(row for name in names for row in name.rows),
    )


class AppendItem(Struct, frozen=True):
    """Appends an entry with whatever columns a test wants, and nothing else."""

    draft: Draft

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(streams=(self.draft.stream,))

    def decide(self, view: View) -> Accept:
        """Always accepted."""
        return Accept(view.next_committed_id, entries=(self.draft,))


class Node:
    """One process in miniature: a store, a committer on it, and all that its tail delivered."""

    def __init__(self, store: Store, committer: Committer) -> None:
        self.store = store
        self.committer = committer
        self.delivered: list[Entry] = []
        self.start = committer.tail.position
        """Where its tail stood at first."""
        committer.tail.subscribe(SURFACE, self.delivered.extend)

    @classmethod
    async def open(
        cls,
        location: str,
        *,
        name: str = "node-a",
        clock: ServerClock | None = None,
        limits: Limits | None = None,
        wrap: Callable[[Store], Store] = lambda store: store,
        committer_class: type[Committer] = Committer,
    ) -> "Node":
        """Open the store at `location` and start a committer on it, or on what `wrap` makes of it.

        The clock stands still unless another one is given.
        """
        store = await open_store(
            SCHEMA.extended([EXTENSION]), location, log_id=LOG_ID, node=name, pool_size=2
        )
        committer = await committer_class.start(
            wrap(store), clock or FakeClock(), Metrics(), limits or Limits()
        )
        return cls(store, committer)

    def submit(self, items: Sequence[Item], names: Names, size_bytes: int = 100) -> Future[Any]:
        """Queue one request; returns a future that is resolved in `hand_over` itself."""
        answered: Future[Any] = Future()
        self.committer.submit(Submission(names, size_bytes, items, answered.set_result))
        return answered

    async def put(self, stream: str, key: str, value: bytes = b"1", weight: int = 1) -> Any:
        """Put and wait for the answer."""
        item = put_item(stream, key, value, weight)
        [answer] = await asyncio.wrap_future(self.submit((item,), item.names()))
        return answer

    async def put_many(self, items: Sequence[PutItem]) -> list[Any]:
        """Put each as a request of its own, all at once."""
        waiting = [asyncio.wrap_future(self.submit((item,), item.names())) for item in items]
        return [answers[0] for answers in await asyncio.gather(*waiting)]

    async def append(self, draft: Draft) -> int:
        """Append an entry as it is drafted; returns its position."""
        item = AppendItem(draft)
        [committed_id] = await asyncio.wrap_future(self.submit((item,), item.names()))
        return int(committed_id)

    async def prune(self, stream: str, through: int) -> None:
        """Empty a stream's entries up to a serial, as the probe's service does."""
        entries = await self.store.stream_entries(log_stream(stream), 0, limit=through)
        item = PruneItem(stream, 0, through, tuple(entry.entity for entry in entries))
        [answer] = await asyncio.wrap_future(self.submit((item,), item.names()))
        assert answer.pruned == through

    async def close(self) -> None:
        """Finish what was accepted and let go of the store."""
        await self.committer.stop()
        await self.store.close()


@asynccontextmanager
async def running_node(location: str, **options: Any) -> AsyncIterator[Node]:
    """A `Node` for the length of the block."""
    node = await Node.open(location, **options)
    try:
        yield node
    finally:
        await node.close()


async def whole_log(store: Store) -> list[Entry]:
    """Every entry, in order, whether or not the head row knows of it."""
    entries: list[Entry] = []
    while page := await store.entries(entries[-1].committed_id if entries else 0):
        entries += page
    return entries


async def verdict(store: Store) -> Progress:
    """What verification says in the end."""
    return [progress async for progress in verify(store)][-1]


class Witness:
    """A connection of its own that can be asked at any moment, also from inside a callback.

    It blocks the event loop it is asked from: what it sees is the store at that very moment.
    """

    def __init__(self, location: str) -> None:
        self._url = location if location.startswith("postgresql://") else None
        if self._url is None:
            uri = f"{Path(location).absolute().as_uri()}?mode=ro"
            self._sqlite = sqlite3.connect(uri, uri=True, isolation_level=None)
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="witness")
        self._thread.start()
        path = {"search_path": "tidelog, public"}
        self._postgresql: asyncpg.Connection = self._await(
            asyncpg.connect(self._url, server_settings=path)
        )

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def end(self) -> tuple[int, int]:
        """The highest position in the log and the number of entries."""
        [row] = self.rows("SELECT max(committed_id), count(*) FROM log")
        return row[0] or 0, row[1]

    def rows(self, query: str) -> list[Row]:
        """What `query` answers, texts as they were given to the store."""
        if self._url is None:
            return self._sqlite.execute(query).fetchall()
        return [from_record(record) for record in self._await(self._postgresql.fetch(query))]

    def close(self) -> None:
        """Let go of the connection."""
        if self._url is None:
            self._sqlite.close()
            return
        self._await(self._postgresql.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@asynccontextmanager
async def another_writes(url: str) -> AsyncIterator[None]:
    """Another transaction has the head, and has written it when the block ends."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("UPDATE tidelog.head SET committed_id = committed_id")
            yield
    finally:
        await connection.close()


async def blocked(url: str) -> None:
    """Until somebody waits for a lock."""
    connection = await asyncpg.connect(url)
    try:
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not await connection.fetchval(waiting):  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    finally:
        await connection.close()
