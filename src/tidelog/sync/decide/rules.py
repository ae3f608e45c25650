"""The decision of sync: what becomes of a submitted item."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.log.decision import Accept, Refuse, RowChange, View
from tidelog.log.dedupe import DedupeRow, KeyUse, key_use
from tidelog.log.draft import Draft
from tidelog.sync.decide.state import PartitionState
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.protocol.tree import TreeState
from tidelog.sync.protocol.wire import PRIOR_ITEM_FAILED, Committed, NotProcessed, Rejected

SURFACE = "sync"
STREAM = "sync"
SCOPE = "sync"

REUSED = "id already committed with different payload"


Check = Callable[[Mapping[str, TreeState]], tuple[Fault, ...]]
"""The application's own rules about one event; takes the states of its partitions, sorted by name.
"""


class Outcome(Struct):
    """What the dedupe row of an event remembers."""

    committed_id: int
    status_updated_at: int
    event_hash: bytes
    """Tells an altered event from altered partitions when the id is used again."""


_encode = msgspec.json.Encoder().encode
_decode_outcome = msgspec.json.Decoder(Outcome).decode


class Follow(Struct, frozen=True):
    """Bring one partition's state up to an accepted event."""

    state: PartitionState
    committed_id: int
    event: dict[str, Any]

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        return self.state.follow(self.committed_id, self.event)


class SubmitItem(Struct, frozen=True):
    """A prepared item and the states that its decision looks at."""

    prepared: PreparedItem
    states: tuple[PartitionState, ...] = ()
    """Of its partitions in sorted order, if the decision looks at them."""
    check: Check | None = None
    """None if the application has no rules about states."""

    @property
    def key(self) -> tuple[str, str]:
        """Scope and key of its dedupe row, which `decide` reads unless it is refused."""
        return SCOPE, self.prepared.id

    def decide(self, view: View) -> Accept | Refuse:
        """The steps of sync 8.2 from 4 on; `prepared` has the results of those before."""
        item = self.prepared
        if item.refused:
            reason, faults = item.refused
            return Refuse(Rejected(item.id, reason, faults, view.now_ms))
        row = view.dedupe(SCOPE, item.id)
        if row is not None:
            return Refuse(_known(item, row, view.now_ms))
        if item.invalid:
            return Refuse(Rejected(item.id, "validation_failed", item.invalid, view.now_ms))
        for state in self.states:
            if found := state.tree.check(item.event):
                return Refuse(Rejected(item.id, "validation_failed", tuple(found), view.now_ms))
        if self.check is not None and (
            wrong := self.check({state.name: state.tree for state in self.states})
        ):
            return Refuse(Rejected(item.id, "validation_failed", wrong, view.now_ms))
        return self._commit(view)

    def _commit(self, view: View) -> Accept:
        item, committed_id = self.prepared, view.next_committed_id
        return Accept(
            Committed(item.id, committed_id, view.now_ms),
            entries=(
                Draft(STREAM, SURFACE, item.event["type"], item.id, "", item.client_id, item.body),
            ),
            dedupe=(
                dedupe_row(
                    item.id,
                    item.client_id,
                    committed_id,
                    view.now_ms,
                    (item.fingerprint, item.event_hash),
                ),
            ),
            rows=tuple(
                [RowChange("sync_add_partition", (name, committed_id)) for name in item.partitions]
            ),
            states=tuple([Follow(state, committed_id, item.event) for state in self.states])
            if self.states
            else (),
        )


class _Rejected:
    """The first item of a request that was rejected, once there is one."""

    item: "_InSequence | None" = None


class _InSequence(Struct, frozen=True):
    """An item that is decided only if none before it was rejected."""

    item: SubmitItem
    index: int
    rejected: _Rejected
    """Shared by the items of a request."""

    def decide(self, view: View) -> Accept | Refuse:
        """See `SubmitItem.decide`."""
        item_id, rejected = self.item.prepared.id, self.rejected
        if rejected.item is not None:
            if rejected.item.index < self.index:
                blocker = rejected.item.item.prepared.id
                return Refuse(NotProcessed(item_id, PRIOR_ITEM_FAILED, blocker, view.now_ms))
            rejected.item = None  # when these were decided before, and others wrote meanwhile
        decision = self.item.decide(view)
        if isinstance(decision.answer, Rejected):
            rejected.item = self
        return decision


def in_sequence(items: Sequence[SubmitItem]) -> Sequence[_InSequence]:
    """The items of a request that stops at the first rejection (sync D68)."""
    rejected = _Rejected()
    return [_InSequence(item, index, rejected) for index, item in enumerate(items)]


def _known(item: PreparedItem, row: DedupeRow, now_ms: int) -> Committed | Rejected:
    outcome = _decode_outcome(row.outcome)
    if key_use(row, item.fingerprint) is KeyUse.REPEATED:
        return Committed(item.id, outcome.committed_id, outcome.status_updated_at)
    field = "partitions" if outcome.event_hash == item.event_hash else "event"
    return Rejected(item.id, "validation_failed", (Fault(field, REUSED),), now_ms)


def dedupe_row(
    item_id: str, client_id: str, committed_id: int, now_ms: int, proofs: tuple[bytes, bytes]
) -> DedupeRow:
    """The row that remembers a committed event; `proofs` as `proofs_of` returns them."""
    fingerprint, event_hash = proofs
    outcome = _encode(Outcome(committed_id, now_ms, event_hash))
    return DedupeRow(SCOPE, item_id, committed_id, fingerprint, client_id, outcome, 1, now_ms, None)
