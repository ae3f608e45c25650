"""Snapshots of partitions, and the retention that they allow."""

import asyncio

from tidelog.log.committer import Committer
from tidelog.log.decision import Names
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.log.retention import PRUNE_ENTRIES
from tidelog.store.engine import Store
from tidelog.sync.decide.administration import Archive, PutSnapshot
from tidelog.sync.messages import TOO_DEEP, Snapshot, SnapshotRefused
from tidelog.sync.protocol.wire import encode
from tidelog.sync.upkeep.state_cache import StateCache

POLL_SECONDS = 0.01


class Snapshots:
    """Takes and stores them."""

    def __init__(self, committer: Committer, store: Store, states: StateCache) -> None:
        self._committer = committer
        self._store = store
        self._states = states

    async def take(self, partition: str) -> Snapshot | SnapshotRefused:
        """The state of a partition as of now."""
        pinned = await self._states.pin([partition])
        try:
            state = pinned[partition]
            # After the position of the tail it holds decisions that may yet be taken back.
            while state.position > self._committer.tail.position:  # noqa: ASYNC110 - no event
                await asyncio.sleep(POLL_SECONDS)
            exported = encode(state.tree.export())
            return Snapshot(state.position, self._states.model_version, exported)
        except RecursionError:
            return SnapshotRefused(TOO_DEEP, is_newer=False)
        finally:
            self._states.unpin(pinned)

    async def put(self, partition: str, snapshot: Snapshot) -> Snapshot | SnapshotRefused:
        """Store a state, unless a newer one is stored."""
        for _, stored, _, _ in await self._store.rows("sync_snapshot", (partition,)):
            if stored > snapshot.committed_id:
                reason = f"there is a newer snapshot, as of {stored}"
                return SnapshotRefused(reason, is_newer=True)
        await self._commit(
            PutSnapshot(partition, snapshot.state, snapshot.committed_id, snapshot.model_version),
            len(snapshot.state),
        )
        return Snapshot(snapshot.committed_id, snapshot.model_version, b"")

    async def retain(self, through: int) -> int:
        """Archive what is at or before a position and in snapshots; returns how many events."""
        archived, serial = 0, 0
        while found := await self._store.rows("sync_prunable", (serial, through, PRUNE_ENTRIES)):
            events = tuple((at, number) for at, number in found)
            await self._commit(Archive(events), 64 * len(events))
            archived += len(events)
            serial = events[-1][1]
        return archived

    async def _commit(self, item: PutSnapshot | Archive, size_bytes: int) -> None:
        without_failure(await submit_and_wait(self._committer, Names(), size_bytes, (item,)))
