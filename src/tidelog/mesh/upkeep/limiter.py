"""The idempotent rate limiter (mesh 6.3): one unit per id and window, however often it is tried.

It is the last check before the accept transaction, and what it counts is kept before that begins.
A refusal leaves no mark. Nothing is given back when the transaction refuses the send.

One member must not use up what all have together. Whoever sent in the window before has an equal
share that nobody else can take; a tenth is for those who did not; and what is left is for whoever
comes first. So a member that sends alone has nine tenths, and what others leave unused is there
for it one window later. `mesh.take_shares` does the same on PostgreSQL.
"""

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from tidelog.store.batched_reads import Batched
from tidelog.store.engine import Store

MAX_MESHES = 10_000
"""Meshes whose windows are kept in memory. The window of the mesh that was longest silent goes
first: it may then admit more in its window, which the contract allows, never less."""


LEAST_DIVIDED = 100
"""Smaller limits have nothing kept back for newcomers."""


class Verdict(Enum):
    """What became of one id."""

    TAKEN = "taken"
    """It was counted."""
    KNOWN = "known"
    """It had been counted in this window."""
    DENIED = "denied"
    """The window is full."""


class Taken(Struct, frozen=True):
    """What the limiter says."""

    verdict: Verdict
    left_ms: int
    """Until the next window begins."""


class Limited(Protocol):
    """A mesh, as far as it matters here."""

    @property
    def id(self) -> str:
        """Which it is."""

    @property
    def rate_limit(self) -> int:
        """Sends in one window."""

    @property
    def rate_window_ms(self) -> int:
        """How long a window is."""


class Limiter(Protocol):
    """Counts sends of meshes."""

    async def take(self, mesh: Limited, member: str, client_message_id: str, now_ms: int) -> Taken:
        """Count an id of a member in the window of `now_ms`, unless it is counted already.

        Raises:
            StoreError: the counters cannot be reached; nothing was counted, or nobody knows.
            QueueFull: too many wait for them.
        """

    def take_at_once(
        self, mesh: Limited, member: str, client_message_id: str, now_ms: int
    ) -> Taken | None:
        """As `take`; None, and nothing was counted, if that has to be waited for."""


def bucket_of(mesh: Limited, now_ms: int) -> tuple[int, int]:
    """The number of the window, and the milliseconds left in it."""
    bucket, gone = divmod(now_ms, mesh.rate_window_ms)
    return bucket, mesh.rate_window_ms - gone


def kept_back(limit: int) -> tuple[int, int]:
    """Of a limit, how much is for newcomers, and how much of that for each of them."""
    reserve = limit // 10 if limit >= LEAST_DIVIDED else 0
    return reserve, reserve // 5


class _Window:
    """What was counted in one window."""

    __slots__ = ("ids", "promised", "share", "used_by")

    def __init__(self, before: "_Window | None", limit: int) -> None:
        """`before` is the window before this one, if anybody sent in it."""
        known = before.used_by if before is not None else ()
        self.ids: set[str] = set()
        self.used_by: Counter[str] = Counter()
        self.share = dict.fromkeys(known, (limit - kept_back(limit)[0]) // max(1, len(known)))
        """Of everybody who sent in the window before."""
        self.promised = sum(self.share.values())
        """What is left of all shares."""

    def take(self, member: str, client_message_id: str, limit: int) -> Verdict:
        """Count an id; see the top of this file for who may have how much."""
        if client_message_id in self.ids:
            return Verdict.KNOWN
        left = limit - len(self.ids)
        mine = self.used_by[member]
        share = self.share.get(member)
        if left > 0 and share is not None and mine < share:
            self.promised -= 1  # from its own share: what the others were promised stays
        else:
            # Beyond a share only what nobody was promised is free. A newcomer may also use the
            # reserve that is kept for newcomers, each a part of it, or one of them could take all.
            reserve, each = kept_back(limit)
            if left <= self.promised + (0 if share is None and mine < each else reserve):
                return Verdict.DENIED
        self.ids.add(client_message_id)
        self.used_by[member] = mine + 1
        return Verdict.TAKEN


class _Windows:
    """The latest window of a mesh and the one before it."""

    __slots__ = ("by_bucket",)

    def __init__(self) -> None:
        self.by_bucket: dict[int, _Window] = {}

    def at(self, bucket: int, limit: int) -> _Window:
        found = self.by_bucket.get(bucket)
        if found is None:
            newest = max((bucket, *self.by_bucket))
            self.by_bucket = {b: one for b, one in self.by_bucket.items() if b >= newest - 1}
            found = self.by_bucket[bucket] = _Window(self.by_bucket.get(bucket - 1), limit)
        return found


class MemoryLimiter:
    """For a store that one process uses: everything on the event loop, so no lock is needed."""

    def __init__(self, max_meshes: int = MAX_MESHES) -> None:
        self._max_meshes = max_meshes
        self._meshes: dict[str, _Windows] = {}

    async def take(self, mesh: Limited, member: str, client_message_id: str, now_ms: int) -> Taken:
        """See `Limiter.take`."""
        return self.take_at_once(mesh, member, client_message_id, now_ms)

    def take_at_once(
        self, mesh: Limited, member: str, client_message_id: str, now_ms: int
    ) -> Taken:
        """See `Limiter.take_at_once`."""
        bucket, left_ms = bucket_of(mesh, now_ms)
        windows = self._meshes.pop(mesh.id, None) or _Windows()
        self._meshes[mesh.id] = windows  # now the last: the first was longest silent
        while len(self._meshes) > self._max_meshes:
            del self._meshes[next(iter(self._meshes))]
        window = windows.at(bucket, mesh.rate_limit)
        return Taken(window.take(member, client_message_id, mesh.rate_limit), left_ms)

    def used(self, mesh: Limited, now_ms: int) -> int:
        """Units of the window of `now_ms`."""
        windows = self._meshes.get(mesh.id)
        found = windows and windows.by_bucket.get(bucket_of(mesh, now_ms)[0])
        return len(found.ids) if found else 0


class SharedLimiter:
    """For a store that several nodes use: they count together, in tables of their own.

    All that wait are counted in one round trip, whose transaction is over when it is answered.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batched: Batched[tuple[str, str, str, int, int], Verdict] = Batched(
            self._take_all, "tidelog-mesh-limiter"
        )

    async def take(self, mesh: Limited, member: str, client_message_id: str, now_ms: int) -> Taken:
        """See `Limiter.take`."""
        bucket, left_ms = bucket_of(mesh, now_ms)
        verdict = await self._batched((mesh.id, member, client_message_id, bucket, mesh.rate_limit))
        return Taken(verdict, left_ms)

    def take_at_once(
        self, mesh: Limited, member: str, client_message_id: str, now_ms: int
    ) -> Taken | None:
        """See `Limiter.take_at_once`."""
        del mesh, member, client_message_id, now_ms
        return None

    async def _take_all(self, asked: Sequence[tuple[str, str, str, int, int]]) -> list[Verdict]:
        answered = await self._store.rows_of("mesh_take_shares", asked)
        return [Verdict(verdict) for [(verdict,)] in answered]


def limiter_for(store: Store) -> Limiter:
    """The limiter that belongs to an engine."""
    return SharedLimiter(store) if store.is_shared else MemoryLimiter()
