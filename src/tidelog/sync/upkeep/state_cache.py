"""The tree states of partitions, derived from the log, cached and bounded.

A partition's state is what its events up to `position` make of nothing. It is loaded from a
snapshot and the events after it, follows the tail from then on, and may be forgotten whenever no
request needs it: the log is the truth.
"""

import asyncio
import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidelog.log.tail import Tail
from tidelog.store.engine import PAGE_ENTRIES, Store
from tidelog.store.rows import Entry, Row
from tidelog.sync.decide.state import PartitionState
from tidelog.sync.protocol.profiles import TREE_ACTIONS, Model
from tidelog.sync.protocol.tree import STATE_BYTES, VALUE_BYTES, TreeState, snapshot_digest
from tidelog.sync.settings import SyncSettings

_decode = msgspec.json.decode
_log = logging.getLogger(__name__)

PAGE_BYTES = 1_048_576
"""Read at once while a partition is loaded, unless a single event is larger."""

TURN_BYTES = 65_536
"""Of events that are applied before others get their turn. A thousand large ones take minutes."""

MAX_PINNED_SEEN = 64
"""How many states in use are passed over in search of one to forget; the next request goes on."""


class CachedState(PartitionState):
    """A state in the cache: who needs it, and whether it is loaded."""

    __slots__ = ("held", "pins", "ready")

    def __init__(self, name: str, tree: TreeState, grown: Callable[[int], None]) -> None:
        super().__init__(name, tree, grown)
        self.pins = 0
        """Requests that rely on this state; it is not forgotten while there are any."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the state is loaded."""
        self.held: list[tuple[int, dict[str, Any]]] = []
        """Events that arrived while it was being loaded."""


class StateCache:
    """The cache of partition states."""

    def __init__(
        self, store: Store, tail: Tail, model: Model, settings: SyncSettings, model_version: int
    ) -> None:
        self.model_version = model_version
        """The current one, which an administrator may have set; other snapshots do not count."""
        self._store = store
        self._tail = tail
        self._model = model
        self._room_bytes = settings.max_cached_bytes
        self._states: OrderedDict[str, CachedState] = OrderedDict()
        """The least recently used first."""
        self._size = 0
        """Sum of the sizes of their trees."""

    def pin_ready(self, partitions: Sequence[str]) -> dict[str, CachedState] | None:
        """As `pin`, if every state is loaded; else None and nothing is pinned."""
        pinned = {}
        for name in partitions:
            state = self._states.get(name)
            if state is None or not state.ready.done():
                return None
            pinned[name] = state
        for name, state in pinned.items():
            state.pins += 1
            self._states.move_to_end(name)
        return pinned

    async def pin(self, partitions: Sequence[str]) -> dict[str, CachedState]:
        """The states of `partitions`, up to date whenever a decision looks at them; see `unpin`."""
        pinned = {}
        try:
            for name in partitions:
                state = self._states.get(name)
                if state is None:
                    state = CachedState(name, TreeState(self._model), self._grow)
                    self._states[name] = state
                    state.pins += 1
                    pinned[name] = state
                    await self._load(state)
                else:
                    state.pins += 1
                    pinned[name] = state
                    self._states.move_to_end(name)
                    if not state.ready.done():
                        # Others wait for it too: who gives up must not cancel it for them.
                        await asyncio.shield(state.ready)
        except BaseException:
            self.unpin(pinned)
            raise
        return pinned

    def unpin(self, pinned: dict[str, CachedState]) -> None:
        """The request is over; forget the least recently used states if there are too many."""
        for state in pinned.values():
            state.pins -= 1
        self._shrink()

    @property
    def used_bytes(self) -> int:
        """About the memory of all states."""
        return self._size * VALUE_BYTES + len(self._states) * STATE_BYTES

    def _grow(self, growth: int) -> None:
        self._size += growth

    def _shrink(self) -> None:
        """Called at every request, so it costs no more than there is to forget."""
        pinned = 0
        while self.used_bytes > self._room_bytes and pinned < min(
            MAX_PINNED_SEEN, len(self._states)
        ):
            name, state = next(iter(self._states.items()))
            if state.pins == 0 and state.ready.done():
                self._forget(state)
            else:
                self._states.move_to_end(name)
                pinned += 1

    def _forget(self, state: CachedState) -> None:
        del self._states[state.name]
        self._size -= state.tree.size

    async def _load(self, state: CachedState) -> None:
        """From the snapshot, then the events after it up to the tail, then what came meanwhile."""
        try:
            through = self._tail.position
            for snapshot, committed_id, version, digest in await self._store.rows(
                "sync_snapshot", (state.name,)
            ):
                if version == self.model_version and committed_id <= through:
                    try:
                        state.tree = self._read(snapshot, digest)
                        self._size += state.tree.size
                        state.position = committed_id
                    except (ValueError, RecursionError) as error:
                        # It only saves time; the log has everything.
                        _log.warning("ignored the snapshot of a partition: %s", error)
            while page := await self._page(state, through):
                turn_bytes = 0
                for committed_id, _, body in page:
                    state.follow(committed_id, _decode(body)["event"])
                    turn_bytes += len(body)
                    if turn_bytes >= TURN_BYTES:
                        turn_bytes = 0
                        await asyncio.sleep(0)
                await asyncio.sleep(0)
            for committed_id, event in state.held:
                if committed_id > state.position:
                    state.follow(committed_id, event)
            state.held.clear()
            state.ready.set_result(None)
        except BaseException as error:
            self._forget(state)
            if not state.ready.done():
                state.ready.set_exception(error)
                state.ready.exception()  # nobody else may be waiting
            raise

    async def _page(self, state: CachedState, through: int) -> list[Row]:
        """The next events of a partition that is being loaded."""
        ids = await self._store.lowest(
            "sync_positions",
            (state.name,),
            after=state.position,
            through=through,
            limit=PAGE_ENTRIES,
        )
        if not ids:
            return []
        return await self._store.rows_within("sync_event", ids, most_bytes=PAGE_BYTES)

    def _read(self, snapshot: bytes, digest: bytes) -> TreeState:
        """A stored state; it was checked before, and its digest shows that it is unchanged.

        Without the garbage collector: it would go through hundreds of thousands of new objects
        again and again, and none of them is garbage.
        """
        if snapshot_digest(snapshot) != digest:
            raise ValueError("it is not what was stored")
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return TreeState.load(self._model, _decode(snapshot), is_given=True)
        finally:
            if was_enabled:
                gc.enable()

    def follow(self, entry: Entry, partitions: Sequence[str]) -> None:
        """An event left the tail: bring the states of its partitions up to it.

        What this node decided itself is already applied; what other nodes committed is not.
        """
        stale = [
            state
            for name in partitions
            if (state := self._states.get(name)) and state.position < entry.committed_id
        ]
        if entry.kind not in TREE_ACTIONS:
            for state in stale:
                if state.ready.done():
                    # Nothing to apply, but it is included: a snapshot of the state reaches past it.
                    state.position = entry.committed_id
        elif stale and entry.body is not None:
            event = _decode(entry.body)["event"]
            for state in stale:
                if state.ready.done():
                    state.follow(entry.committed_id, event)
                else:
                    state.held.append((entry.committed_id, event))
