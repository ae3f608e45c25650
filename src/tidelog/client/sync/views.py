"""What the application sees of a partition: its committed state with the local drafts on top.

One state per partition serves both: drafts are laid over it and taken off again before the next
commit, so that a commit after all others costs its own work and that of the drafts, never a
replay. What arrives out of order drops the state, and it is built anew from the store (sync 17.3).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from tidelog.client.sync.folds import Fold, Folds, Undo
from tidelog.client.sync.messages import Json
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import Arrival, SyncStore
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.tree import STATE_BYTES, VALUE_BYTES

MAX_VIEWS = 64
"""Partition states held in memory; the one longest unused goes first."""

MAX_CACHED_BYTES = 64 * 1024**2
"""About the memory of these states, where the application does not say."""

MAX_TOLD = 10_000
"""Skipped events that are remembered as told; beyond it they are told again."""

REDUCER_FAILED = "reducer_failed"
STORE_DAMAGED = "store_damaged"

UNREADABLE = Fault("event", "cannot be read from the store")
"""The fault of an event whose row is damaged; the server still has it."""


class Failure(NamedTuple):
    """A committed event that could not be applied to the state here (sync D54)."""

    committed_id: int
    fault: Fault


class Skipped(NamedTuple):
    """Events of a partition that its state lacks, though nothing is wrong with them."""

    key: int | str
    """The first of them: its position, or its id if it is a draft."""
    message: str
    number: int
    """How many there are."""


class View:
    """One partition's state, at `last`, with or without drafts on top."""

    def __init__(self, fold: Fold, last: int, skip: Callable[[str, int | str, str], None]) -> None:
        """`skip` is told of every event that is skipped: the code, its key, and why."""
        self.fold = fold
        self._skip = skip
        self._overlay: list[Undo] = []
        self.covered = False
        """Whether the drafts are on top."""
        self.last = last
        """The highest committed event included."""
        self.unsaved = 0
        """Committed events after the snapshot."""
        self.failure: Failure | None = None
        """The first committed event that was skipped because it could not be applied."""
        self.is_whole = True
        """Whether no committed event was skipped; only then may it be saved."""

    def extend(self, commits: Iterable[tuple[int, Json | None]]) -> None:
        """Include commits after `last`, in their order; None is one that cannot be read."""
        self.uncover()
        for committed_id, event in commits:
            fault = UNREADABLE if event is None else next(iter(self.fold.faults(event)), None)
            if event is not None and fault is None:
                self.fold.apply(event)
            elif fault is not None:
                self._pass_over(committed_id, fault)
            self.last = committed_id
            self.unsaved += 1

    def _pass_over(self, committed_id: int, fault: Fault) -> None:
        self.is_whole = False
        if fault is UNREADABLE:
            self._skip(STORE_DAMAGED, committed_id, fault.message)
        elif not self.fold.is_vetted:
            self._skip(REDUCER_FAILED, committed_id, fault.message)
            return
        if self.failure is None:
            self.failure = Failure(committed_id, fault)

    def cover(self, drafts: Iterable[StoredEvent]) -> None:
        """Lay drafts on top; one that cannot be applied is left out, the server will decide."""
        for draft in drafts:
            faults = self.fold.faults(draft.event)
            if not faults:
                self._overlay.append(self.fold.apply(draft.event))
            elif not self.fold.is_vetted:
                self._skip(REDUCER_FAILED, draft.id, faults[0].message)
        self.covered = True

    def uncover(self) -> None:
        """Take the drafts off."""
        while self._overlay:
            self._overlay.pop()()
        self.covered = False

    def faults(self, event: Json) -> list[Fault]:
        """Why an event cannot be applied to what is shown."""
        return self.fold.faults(event)

    def export(self) -> Json:
        """What is shown, as JSON."""
        return self.fold.export()

    def used_bytes(self) -> int:
        """About the memory of it."""
        return self.fold.size() * VALUE_BYTES + STATE_BYTES


class Views:
    """The views in memory, kept in step with the store by being told what it changed."""

    def __init__(
        self, store: SyncStore, folds: Folds, max_cached_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self._store = store
        self._folds = folds
        self._room_bytes = max_cached_bytes
        self._views: OrderedDict[str, View] = OrderedDict()
        self._outdated: set[str] = set()
        self._unfinished: str | None = None
        """The view being built in steps: dropped in between, it would never be finished."""
        self.lost: set[str] = set()
        """Partitions that turned out to need fetching from 0; the owner empties it."""
        self.skipped: dict[tuple[str, str], Skipped] = {}
        """What was skipped and not told yet, by partition and code; the owner empties it."""
        self._told: set[tuple[str, int | str]] = set()
        self.applied = 0
        """Committed events that were applied to states so far: how much work was done."""

    def is_ready(self, partition: str, most: int) -> bool:
        """Apply at most so many events to a view; returns whether it is up to date then."""
        self._unfinished = partition
        self._current(partition, most)
        if partition in self._outdated:
            return False
        self._unfinished = None
        return True

    def committed(self, partition: str) -> View:
        """The view without drafts on top, up to date."""
        view = self._current(partition)
        view.uncover()
        return view

    def shown(self, partition: str) -> View:
        """The view with drafts on top, up to date."""
        view = self._current(partition)
        if not view.covered:
            view.cover(self._store.drafts_of(partition))
            self._shrink()
        return view

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Commits were stored: states lack them, or are wrong if one belongs before their end."""
        for arrival in arrivals:
            for partition in self._loaded(arrival.partitions):
                if arrival.committed_id <= self._views[partition].last:
                    self.drop(partition)
                    continue
                self._outdated.add(partition)
                if arrival.was_local:
                    self._views[partition].uncover()

    def drafted(self, draft: StoredEvent) -> None:
        """A draft was stored after all others."""
        for partition in self._loaded(draft.partitions):
            view = self._views[partition]
            if view.covered:
                view.cover([draft])

    def withdrawn(self, partitions: Iterable[str]) -> None:
        """Drafts of these partitions were rejected."""
        for partition in self._loaded(partitions):
            self._views[partition].uncover()

    def drop(self, partition: str) -> None:
        """Build this one anew when it is next needed."""
        self._views.pop(partition, None)
        self._outdated.discard(partition)

    def clear(self, folds: Folds | None = None) -> None:
        """Build all anew, by other folds if given."""
        if folds is not None:
            self._folds = folds
            self._told.clear()
        self._views.clear()
        self._outdated.clear()

    def _loaded(self, partitions: Iterable[str]) -> Iterator[str]:
        return (partition for partition in partitions if partition in self._views)

    def _current(self, partition: str, most: int | None = None) -> View:
        view = self._views.get(partition)
        if view is None:
            view = self._views[partition] = self._load(partition)
            self._outdated.add(partition)
        self._views.move_to_end(partition)
        if partition in self._outdated:
            before = view.unsaved
            view.extend(islice(self._store.committed_after(partition, view.last), most))
            self.applied += view.unsaved - before
            if most is None or view.unsaved - before < most:
                self._outdated.discard(partition)
            self._shrink()
        return view

    def _shrink(self) -> None:
        """Drop the views longest unused; the one in use stays, whatever its size."""
        used = sum(view.used_bytes() for view in self._views.values())
        for partition in list(self._views)[:-1]:
            if used <= self._room_bytes and len(self._views) <= MAX_VIEWS:
                return
            if partition != self._unfinished:
                used -= self._views[partition].used_bytes()
                self.drop(partition)

    def _skip(self, partition: str, code: str, key: int | str, message: str) -> None:
        """Note a skipped event; one that is skipped again in a later state was told already."""
        if (partition, key) in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told.add((partition, key))
        noted = self.skipped.get((partition, code), Skipped(key, message, 0))
        self.skipped[partition, code] = noted._replace(number=noted.number + 1)

    def _load(self, partition: str) -> View:
        skip = partial(self._skip, partition)
        start = self._store.start_of(partition)
        fold = None if start.state is None else self._folds.load(start.state)
        if fold is not None:
            return View(fold, start.committed_id, skip)
        if start.state is not None:
            start = self._store.start_of_nothing(partition)
        if start.lost:
            self.lost.add(partition)
        return View(self._folds.empty(), 0, skip)
