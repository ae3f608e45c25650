"""What nodes tell each other beside the log: transient frames, evictions, changed settings.

An announcement has no entry, no serial and no replay. It is heard by every other node that runs at
that moment, in one order, and never ahead of an entry that was committed before it: the hearing
node brings its tail to where the log ended when it was announced. The announcing node is not told;
it knows. On an engine that only one process can use there is nobody to tell, and all of this does
nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.store.engine import ANNOUNCED_MS, PAGE_ENTRIES, Store
from tidelog.store.rows import Announcement

AnnouncementSink = Callable[[Announcement], None]
"""Takes an announcement on the event loop. It must not await."""

_log = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Announcements waiting to be told. More are refused: a store that does not answer must not fill
the memory with what is worth nothing a minute later."""

BATCH = 500
"""Announcements told in one round trip."""

RETRY_SECONDS = 1.0
"""Pause after the store could not be read."""


class _Waiting(NamedTuple):
    topic: str
    payload: bytes
    told: asyncio.Future[int]


class Announcements:
    """One node's mouth and ear."""

    def __init__(
        self, store: Store, reach: Callable[[int], Awaitable[None]], poll_seconds: float
    ) -> None:
        """`reach` returns once the tail has reached a position."""
        self._store = store
        self._reach = reach
        self._poll_seconds = poll_seconds
        self._sinks: dict[str, AnnouncementSink] = {}
        self._missed: list[Callable[[], None]] = []
        self._waiting: list[_Waiting] = []
        self._is_full = False
        self._mouth: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._keeper = ""
        self._may_be_another = False
        """Whether the store's server may have been started again, or be another one."""
        self._cursor = 0
        self._heard_at = 0.0
        """Event-loop time up to which nothing was missed."""
        self._spoken = asyncio.Event()
        self._heard_of = 0
        self._closed = False

    async def start(self) -> None:
        """Hear everything that is announced from now on."""
        if self._store.is_shared:
            self._heard_at = asyncio.get_running_loop().time()
            self._keeper, _ = await self._store.announcement_keeper()
            self._cursor = await self._store.last_announcement()
            self._store.watch_announcements(self._on_spoken)
            self._ear = asyncio.create_task(self._listen(), name="tidelog-announcements")

    def subscribe(
        self, topic: str, sink: AnnouncementSink, missed: Callable[[], None] | None = None
    ) -> None:
        """Give `sink` every later announcement of other nodes about `topic`; one sink per topic.

        `missed` is called when this node could not listen for longer than announcements are kept:
        whoever needs to know what was said must look for itself.
        """
        assert topic not in self._sinks, topic  # noqa: S101 - two surfaces with one name
        self._sinks[topic] = sink
        if missed is not None:
            self._missed.append(missed)

    def announce(self, topic: str, payload: bytes) -> asyncio.Future[int]:
        """Tell every other node; done, with an id that ascends over all nodes, when it is told.

        Nobody needs to wait for it; a failure is logged, once for all that fail together.
        Announcements of one node are heard in the order of these calls. Alone, the id is 0.

        The future may raise:
            QueueFull: more wait than are kept.
            ShuttingDown: nothing more is told.
            StoreError: the store did not take it; nobody has heard it, or nobody knows.
        """
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not self._store.is_shared:
            told.set_result(0)
            return told
        told.add_done_callback(_look_at)
        if self._closed:
            told.set_exception(ShuttingDown("the server is shutting down"))
        elif len(self._waiting) >= MAX_WAITING:
            if not self._is_full:
                self._is_full = True
                _log.warning("other nodes are not told everything: %d wait already", MAX_WAITING)
            told.set_exception(QueueFull("too much waits to be told to other nodes; retry soon"))
        else:
            self._waiting.append(_Waiting(topic, payload, told))
            if self._mouth is None:
                self._mouth = asyncio.create_task(self._speak(), name="tidelog-announce")
        return told

    async def _speak(self) -> None:
        """Tell what waits, all of it in as few round trips as possible."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                self._is_full = False
                await self._tell(batch)
        finally:
            self._mouth = None

    async def _tell(self, batch: list[_Waiting]) -> None:
        messages = [(each.topic, each.payload) for each in batch]
        try:
            ids = await self._store.announce(messages)
        except StoreError as error:
            _log.warning("other nodes were not told %d announcements: %s", len(batch), error)
            for each in batch:
                if not each.told.done():
                    each.told.set_exception(error)
        except asyncio.CancelledError:
            _give_up(batch)
            raise
        else:
            for each, announcement_id in zip(batch, ids, strict=True):
                if not each.told.done():
                    each.told.set_result(announcement_id)

    def _on_spoken(self, announcement_id: int) -> None:
        self._heard_of = max(self._heard_of, announcement_id)
        self._may_be_another = self._may_be_another or announcement_id == 0
        self._spoken.set()

    async def _listen(self) -> None:
        while True:
            try:
                while await self._hear():
                    pass
                await self._wait()
            except StoreError as error:
                _log.warning("could not hear what other nodes announced: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except ShuttingDown:
                return

    async def _wait(self) -> None:
        """Until somebody speaks; now and then look anyway, should a wake-up be lost."""
        try:
            async with asyncio.timeout(self._poll_seconds):
                await self._spoken.wait()
        except TimeoutError:
            pass

    async def _hear(self) -> bool:
        """Deliver a page of what was announced; False if there is no more."""
        self._spoken.clear()
        if self._may_be_another:
            await self._know_keeper()
        heard_of, now = self._heard_of, asyncio.get_running_loop().time()
        page = await self._store.announcements(self._cursor)
        if now - self._heard_at > ANNOUNCED_MS / 1000:
            self._say_missed()
        is_full = len(page) == PAGE_ENTRIES
        # What follows a full page is about as old as the last of that page, and swept as soon.
        self._heard_at = now - page[-1].age_ms / 1000 if is_full else now
        for announcement in page:
            await self._reach(announcement.head)
            self._cursor = announcement.id
            self._deliver(announcement)
        if not is_full:
            # Ids are visible in their order: what else was told up to there was told by this node.
            self._cursor = max(self._cursor, heard_of)
        return bool(page)

    async def _know_keeper(self) -> None:
        """A server that was started again has forgotten what was announced; it may count anew."""
        keeper, last = await self._store.announcement_keeper()
        self._may_be_another = False
        if keeper != self._keeper:
            self._keeper = keeper
            if last < self._cursor:
                self._cursor = self._heard_of = 0
            self._say_missed()

    def _say_missed(self) -> None:
        _log.warning("announcements of other nodes were missed; looking for what changed")
        for missed in self._missed:
            missed()

    def _deliver(self, announcement: Announcement) -> None:
        sink = self._sinks.get(announcement.topic)
        if sink is None:
            return  # of a surface that this node does not serve
        try:
            sink(announcement)
        except Exception:  # noqa: BLE001 - whatever a surface raises
            # One surface's mistake must not make this node deaf.
            _log.exception("hearing an announcement about %s failed", announcement.topic)

    async def close(self) -> None:
        """Hear and tell no more."""
        self._closed = True
        tasks = [task for task in (self._ear, self._mouth) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        waiting, self._waiting = self._waiting, []
        _give_up(waiting)


def _give_up(batch: list[_Waiting]) -> None:
    for each in batch:
        if not each.told.done():
            each.told.set_exception(ShuttingDown("the server is shutting down"))


def _look_at(told: asyncio.Future[int]) -> None:
    """Nobody may be waiting, and an exception that nobody looks at would be reported as lost."""
    if not told.cancelled():
        told.exception()
