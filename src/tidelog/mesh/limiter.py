"""The idempotent rate limiter (mesh 8): one unit per id and window, however often it is tried.

It is the last check before the accept transaction, and what it counts is kept before that begins.
A refusal leaves no mark. Nothing is given back when the transaction refuses the send.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from tidelog.mesh.lookups import Gathered
from tidelog.mesh.rules import Mesh
from tidelog.store.engine import Store

MAX_MESHES = 10_000
"""Meshes whose windows are kept in memory. The window of the mesh that was longest silent goes
first: it may then admit more in its window, which the contract allows, never less."""


class Verdict(Enum):
    """What became of one id."""

    TAKEN = "taken"
    """It was counted."""
    KNOWN = "known"
    """It had been counted in this window."""
    DENIED = "denied"
    """The window is full."""


class Taken(Struct, frozen=True):
    """The limiter's answer."""

    verdict: Verdict
    left_ms: int
    """Until the next window begins."""


class Limiter(Protocol):
    """Counts sends of meshes."""

    async def take(self, mesh: Mesh, client_message_id: str, now_ms: int) -> Taken:
        """Count an id in the window of `now_ms`, unless it is counted already.

        Raises:
            StoreError: the counters cannot be reached; nothing was counted, or nobody knows.
            QueueFull: too many wait for them.
        """


def bucket_of(mesh: Mesh, now_ms: int) -> tuple[int, int]:
    """The number of the window, and the milliseconds left in it."""
    bucket, gone = divmod(now_ms, mesh.rate_window_ms)
    return bucket, mesh.rate_window_ms - gone


class _Windows:
    """The ids counted in the latest window of a mesh and in the one before it."""

    __slots__ = ("by_bucket",)

    def __init__(self) -> None:
        self.by_bucket: dict[int, set[str]] = {}

    def ids(self, bucket: int) -> set[str]:
        found = self.by_bucket.get(bucket)
        if found is None:
            newest = max((bucket, *self.by_bucket))
            self.by_bucket = {b: ids for b, ids in self.by_bucket.items() if b >= newest - 1}
            found = self.by_bucket[bucket] = set()
        return found


class MemoryLimiter:
    """For a store that one process uses: everything on the event loop, so no lock is needed."""

    def __init__(self, max_meshes: int = MAX_MESHES) -> None:
        self._max_meshes = max_meshes
        self._meshes: dict[str, _Windows] = {}

    async def take(self, mesh: Mesh, client_message_id: str, now_ms: int) -> Taken:
        """See `Limiter.take`."""
        bucket, left_ms = bucket_of(mesh, now_ms)
        windows = self._meshes.pop(mesh.id, None) or _Windows()
        self._meshes[mesh.id] = windows  # now the last: the first was longest silent
        while len(self._meshes) > self._max_meshes:
            del self._meshes[next(iter(self._meshes))]
        ids = windows.ids(bucket)
        if client_message_id in ids:
            return Taken(Verdict.KNOWN, left_ms)
        if len(ids) >= mesh.rate_limit:
            return Taken(Verdict.DENIED, left_ms)
        ids.add(client_message_id)
        return Taken(Verdict.TAKEN, left_ms)

    def used(self, mesh: Mesh, now_ms: int) -> int:
        """Units of the window of `now_ms`."""
        windows = self._meshes.get(mesh.id)
        return len(windows.ids(bucket_of(mesh, now_ms)[0])) if windows else 0


class SharedLimiter:
    """For a store that several nodes use: they count together, in tables of their own.

    All that wait are counted in one round trip, whose transaction is over when it is answered.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gathered: Gathered[tuple[str, str, int, int], Verdict] = Gathered(
            self._take_all, "tidelog-mesh-limiter"
        )

    async def take(self, mesh: Mesh, client_message_id: str, now_ms: int) -> Taken:
        """See `Limiter.take`."""
        bucket, left_ms = bucket_of(mesh, now_ms)
        verdict = await self._gathered((mesh.id, client_message_id, bucket, mesh.rate_limit))
        return Taken(verdict, left_ms)

    async def _take_all(self, asked: Sequence[tuple[str, str, int, int]]) -> list[Verdict]:
        answered = await self._store.rows_of("mesh_take_units", asked)
        return [Verdict(verdict) for [(verdict,)] in answered]


def limiter_for(store: Store) -> Limiter:
    """The limiter that belongs to an engine."""
    return SharedLimiter(store) if store.is_shared else MemoryLimiter()
