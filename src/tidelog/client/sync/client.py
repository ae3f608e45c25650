"""`SyncClient`: an application's offline-first copy of some partitions.

Everything an application writes is stored here first and shown at once; the server hears of it when
there is a connection, and what it decides is shown as soon as it is known.

    async with SyncClient(url, client_id="ada", token=fetch_token, store="tasks.db",
                          model=model, partitions=["tasks"]) as client:
        draft = await client.submit(partitions=["tasks"], event=event)
        row = await client.wait(draft.id)
        print(client.view("tasks"))

The store is used on the event loop: a transaction takes as long as the disk takes to sync.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4
from weakref import WeakSet

from tidelog.base.clock import Clock, SystemClock
from tidelog.base.errors import StoreError, TidelogError
from tidelog.client.backoff import Backoff
from tidelog.client.sync.changes import CHANGE_NAMES, Change, Changes
from tidelog.client.sync.core import ConnectionState, SyncCore
from tidelog.client.sync.folds import Fold, Reduce, unchanged
from tidelog.client.sync.link import Link, Token
from tidelog.client.sync.messages import Json
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import SyncStore
from tidelog.client.sync.views import MAX_CACHED_BYTES
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.partitions import name_faults, normal_set
from tidelog.sync.protocol.profiles import COMPATIBILITY, ROOT, Model
from tidelog.sync.protocol.tree import TreeNode

T = TypeVar("T")

RANGE = 100
"""Nodes of a range, unless told otherwise."""

GOODBYE_S = 2
"""How long closing waits for the connection to end in order."""

_log = logging.getLogger("tidelog.client.sync.client")


class DraftInvalid(TidelogError):  # noqa: N818 - the failure is the noun
    """The server would reject this event, so it was not stored."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        listed = "; ".join(f"{fault.field} {fault.message}" for fault in faults)
        super().__init__(f"not stored: {listed}")


class ClientOffline(TidelogError):  # noqa: N818 - the failure is the noun
    """There is no connection, and none will come by itself."""


class PartitionsRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """Partitions were not fetched: their names are invalid, or the server refused them."""

    def __init__(self, partitions: Sequence[str], reason: str) -> None:
        self.partitions = tuple(partitions)
        names = ", ".join(map(repr, self.partitions)) or "nothing was asked for"
        super().__init__(f"not fetched: {names} ({reason})")


class SyncClient:
    """One client id and its store file; use it as `async with`."""

    def __init__(
        self,
        url: str | None,
        *,
        client_id: str,
        store: str | Path,
        model: Model,
        token: Token = "",
        partitions: Sequence[str] = (),
        profile: str = COMPATIBILITY,
        reduce: Reduce = unchanged,
        max_cached_bytes: int = MAX_CACHED_BYTES,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
        uuid: Callable[[], str] | None = None,
    ) -> None:
        """`url=None` works without a server: drafts wait in the store.

        `reduce` makes the views of the `canonical` profile; those of `compatibility` are trees.
        `max_cached_bytes` is about the memory for views; one that is not held is built from the
        store when it is looked at.
        """
        self._url = url
        self._client_id = client_id
        self._path = Path(store)
        self._model = model
        self._token = token
        self._partitions = _checked(partitions)
        self._profile = profile
        self._reduce = reduce
        self._max_cached_bytes = max_cached_bytes
        self._backoff = backoff or Backoff()
        self._now = (clock or SystemClock()).now_ms
        self._uuid = uuid or (lambda: str(uuid4()))
        self._opened: SyncCore | None = None
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._consumers: WeakSet[Changes] = WeakSet()
        self._waiting: dict[str, list[asyncio.Future[StoredEvent]]] = {}
        self._syncing: list[tuple[tuple[str, ...] | None, asyncio.Future[None]]] = []
        """Who waits for which partitions; None stands for all that are followed."""
        self._gone = asyncio.Event()

    async def __aenter__(self) -> Self:
        store = SyncStore(
            self._path,
            client_id=self._client_id,
            model_version=self._model.model_version,
            now=self._now,
        )
        core = self._opened = SyncCore(
            store,
            self._model,
            now=self._now,
            uuid=self._uuid,
            profile=self._profile,
            partitions=self._partitions,
            reduce=self._reduce,
            max_cached_bytes=self._max_cached_bytes,
        )
        for name in CHANGE_NAMES:
            core.on(name, self._changed)
        if self._url is not None:
            self._link = Link(core, self._url, self._token, self._now, self._backoff)
            self._link.on_halt = self._halted
            self._task = asyncio.create_task(self._link.run())
            self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        core, self._opened = self._core, None
        core.tell()
        try:
            await self._stop(core)
        finally:
            for consumer in self._consumers:
                consumer.end()
            self._fail_waiters(ClientOffline("the client was closed"))
            core.store.close()

    async def _stop(self, core: SyncCore) -> None:
        if self._task is None or self._link is None:
            return
        if core.state == "active":
            core.stop()
            self._link.wake()
            self._gone.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._gone.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # Writing

    async def submit(
        self,
        *,
        partitions: Sequence[str],
        event: Json,
        id: str | None = None,  # noqa: A002 - the protocol's own name for it
    ) -> StoredEvent:
        """Store an event as a draft and show it; `DraftInvalid` if the server would reject it.

        Never waits for the server. The same id with the same content is the same draft.
        """
        stored = self._core.submit(partitions, event, id)
        self._wake()
        if isinstance(stored, StoredEvent):
            return stored
        raise DraftInvalid(stored)

    async def submit_many(self, items: Iterable[tuple[Sequence[str], Json]]) -> list[StoredEvent]:
        """Submit in order; the first invalid one raises and ends it, those before it are stored."""
        return [await self.submit(partitions=names, event=event) for names, event in items]

    async def wait(self, id: str) -> StoredEvent:  # noqa: A002 - the protocol's own name for it
        """Wait until the event is committed or rejected; `KeyError` if it is unknown.

        Raises:
            ClientOffline: the client is `halted`, so that nobody will decide.
        """
        row = self._core.store.row(id)
        if row.status != "draft":
            return row
        self._check()
        future: asyncio.Future[StoredEvent] = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault(id, [])
        futures.append(future)
        try:
            return await future
        finally:
            futures.remove(future)
            if not futures and self._waiting.get(id) is futures:
                del self._waiting[id]

    def withdraw(self, id: str) -> bool:  # noqa: A002 - the protocol's own name for it
        """Take a draft back; `KeyError` if it is unknown.

        False if that is too late: it is decided, or on its way to the server. One that was on its
        way when a connection was lost may have been committed; then it comes back as such.
        """
        return self._core.withdraw(id)

    # Reading

    def view(self, partition: str) -> Json:
        """The partition's state: everything committed that is known here, and the drafts on top."""
        return self._look(partition, lambda state: state.export())

    def item(self, partition: str, target: str, id: str) -> Json | None:  # noqa: A002 - as in the tree
        """One item of a tree of the view, without copying the others; None if there is none.

        This and what follows raise `KeyError` for an unknown target and for an `after` that is not
        there (any more), and those about trees `ValueError` in the `canonical` profile, which has
        none.
        """
        return self._look(partition, lambda state: state.tree().item(target, id))

    def children(
        self,
        partition: str,
        target: str,
        id: str = ROOT,  # noqa: A002 - as in the tree
        *,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """The ids of a node's children in order, at most `limit`, and only those after `after`."""
        return self._look(
            partition,
            lambda state: list(islice(state.tree().children(target, id, after), limit)),
        )

    def nodes(
        self, partition: str, target: str, *, after: str | None = None, limit: int = RANGE
    ) -> list[TreeNode]:
        """A range of a tree as it would be listed, parents before children; costs its length.

        Only nodes after the node `after`: give the last one of a range to get the next range.
        """
        return self._look(
            partition, lambda state: list(islice(state.tree().nodes(target, after), limit))
        )

    def value(self, partition: str, path: str) -> Any:
        """A part of the view by its dotted path, as `settings.theme`; None if nothing is there.

        The path is that of a value target, or leads below one; trees have none.

        In the `canonical` profile the path starts in the state that `reduce` made.
        """
        return self._look(partition, lambda state: state.value(path))

    def pending(self) -> list[StoredEvent]:
        """The drafts that the server has not decided, in the order they are submitted in."""
        return self._core.store.drafts()

    def rejected(self) -> list[StoredEvent]:
        """What the server refused and `forget_rejected` has not removed, oldest first."""
        return self._core.store.rejected()

    def row(self, id: str) -> StoredEvent:  # noqa: A002 - the protocol's own name for it
        """The event of an id in whatever state; `KeyError` if it is unknown."""
        return self._core.store.row(id)

    def changes(self) -> Changes:
        """What happens from now on, for `async for`; one that is slow is told what it missed."""
        changes = Changes()
        self._consumers.add(changes)
        self._core.tell()  # what was noticed when the file was opened
        return changes

    # The connection

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self._core.state

    @property
    def halted(self) -> str | None:
        """The error that ended automatic reconnecting; `reconnect` tries again."""
        return None if self._link is None else self._link.halted

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that are fetched and followed."""
        return self._core.partitions

    async def sync(self, partitions: Sequence[str] | None = None) -> None:
        """Fetch, and wait until everything followed is complete; names given are followed too.

        Raises:
            PartitionsRefused: a name is invalid, or the server refused one: what was asked for
                has not been fetched. `leave` such a partition to sync the others.
            ClientOffline: the client is `halted`, or has no server.
        """
        names = None if partitions is None else _checked(partitions)
        if self._link is None:
            raise ClientOffline("this client has no server")
        self._check()
        core = self._core
        if names is None:
            core.sync()
        else:
            core.follow(names)
        self._wake()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (names, future)
        self._syncing.append(waiting)
        if core.is_synced:
            self._end_syncing(None)
        try:
            await future
        finally:
            if waiting in self._syncing:
                self._syncing.remove(waiting)

    def leave(self, partitions: Sequence[str]) -> None:
        """Stop following partitions; what is stored of them stays."""
        self._core.leave(partitions)
        self._wake()

    def reconnect(self) -> None:
        """Connect now: after `halted`, or without waiting until the next attempt is due."""
        if self._link is not None:
            self._link.resume()

    # Housekeeping

    def save_snapshot(self, partition: str) -> int | None:
        """Save the committed state now; its position, or None while the partition is fetched."""
        return self._core.save_snapshot(partition)

    def prune(self) -> int:
        """Remove committed events that are part of a snapshot in all their partitions."""
        return self._core.prune()

    async def wipe(self, partition: str) -> int:
        """Leave a partition and remove what is stored of it; how many events that were.

        Events that are also in another partition that was fetched stay, and so do drafts:
        `withdraw` them. While connected it waits until the server sends nothing more of it.
        """
        names = _checked([partition])
        self.leave(names)
        if self.state == "active":
            with suppress(PartitionsRefused, ClientOffline):
                await self.sync()
        return self._core.wipe(names[0])

    def forget_rejected(self) -> int:
        """Remove rejected events."""
        return self._core.store.forget_rejected()

    def use_model(self, model: Model) -> None:
        """Go on with a new model, after `version_changed`."""
        self._core.use_model(model)

    # Inside

    @property
    def _core(self) -> SyncCore:
        if self._opened is None:
            raise ClientOffline("the client is not open; use `async with`")
        return self._opened

    def _look(self, partition: str, see: Callable[[Fold], T]) -> T:
        seen = self._core.look(partition, see)
        self._wake()
        return seen

    def _wake(self) -> None:
        if self._link is not None:
            self._link.wake()

    def _changed(self, change: Change) -> None:
        for consumer in self._consumers:
            consumer.add(change)
        if change.name == "error":
            _log.warning("sync: %s: %s", change.data["code"], change.data["message"])
        elif change.name == "history_reset":
            _log.warning(
                "sync: the log has another history after %s; %s committed events were dropped "
                "and are fetched again; drafts are kept",
                change.data["began"],
                change.data["dropped"],
            )
        elif change.name in ("committed", "rejected", "withdrawn") and self._opened is not None:
            self._decided(self._opened.store, change.data["id"])
        elif change.name == "status_changed":
            if change.data["state"] == "disconnected":
                self._gone.set()
            if self._opened is not None and self._opened.is_synced:
                self._end_syncing(None)

    def _decided(self, store: SyncStore, event_id: str) -> None:
        for future in self._waiting.pop(event_id, ()):
            if future.done():
                continue
            try:
                future.set_result(store.row(event_id))
            except (KeyError, StoreError) as error:
                future.set_exception(error)

    def _end_syncing(self, error: BaseException | None) -> None:
        waiting, self._syncing = self._syncing, []
        for names, future in waiting:
            if future.done():
                continue
            failure = error or self._refusal(names)
            future.set_result(None) if failure is None else future.set_exception(failure)

    def _refusal(self, names: tuple[str, ...] | None) -> PartitionsRefused | None:
        """Why a sync that has ended did not fetch all it was asked for."""
        unfetched = self._core.unfetched(names)
        if not unfetched:
            return None
        reasons = "; ".join(sorted(set(unfetched.values())))
        return PartitionsRefused(list(unfetched), f"{reasons}. leave() them to sync the others")

    def _halted(self, code: str) -> None:
        self._fail_waiters(_refused(code))

    def _fail_waiters(self, error: BaseException) -> None:
        self._end_syncing(error)
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The connection task ends by being cancelled; anything else is a fault to show."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail_waiters(error)

    def _check(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()
        if self.halted is not None:
            raise _refused(self.halted)


def _refused(code: str) -> ClientOffline:
    return ClientOffline(
        f"the server refused the connection: {code}. Fix that, for instance with a new token, "
        "and call reconnect()."
    )


def _checked(partitions: Sequence[str]) -> tuple[str, ...]:
    """The normal form of partition names; refuses names that the server would refuse."""
    if isinstance(partitions, str) or not all(isinstance(name, str) for name in partitions):
        raise PartitionsRefused((), f"partitions must be a list of strings, not {partitions!r}")
    try:
        faults = name_faults(partitions)
    except UnicodeEncodeError:
        raise PartitionsRefused(partitions, "not valid Unicode") from None
    if faults:
        raise PartitionsRefused(partitions, "; ".join(f"{f.field} {f.message}" for f in faults))
    return normal_set(partitions)
