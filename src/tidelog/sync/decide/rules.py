"""The decisions of sync: what becomes of a submitted item."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tidelog.base.data.canonical import canonical
from tidelog.base.errors import NotCanonicalizable
from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.log.dedupe import DedupeRow, Seen, seen
from tidelog.log.entry import Draft
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.partitions import event_faults as partition_faults
from tidelog.sync.protocol.partitions import normal_name, normal_set
from tidelog.sync.protocol.profiles import (
    CANONICAL,
    TREE_ACTIONS,
    Model,
    accepted_types,
    event_faults,
    number_faults,
    tree_faults,
)
from tidelog.sync.protocol.tree import TreeState
from tidelog.sync.protocol.wire import Committed, Rejected, stored_body

SURFACE = "sync"
STREAM = "sync"
SCOPE = "sync"

REUSED = "id already committed with different payload"


class State(Protocol):
    """A partition's tree state, as a decision sees it."""

    name: str

    @property
    def tree(self) -> TreeState:
        """The state itself."""

    def follow(self, committed_id: int, event: dict[str, Any]) -> Callable[[], None]:
        """Apply a committed event; returns how to take it back."""


class Outcome(Struct):
    """What the dedupe row of an event remembers."""

    committed_id: int
    status_updated_at: int
    event_hash: bytes
    """Tells an altered event from altered partitions when the id is used again."""


class Follow(Struct, frozen=True):
    """Bring one partition's state up to an accepted event."""

    state: State
    committed_id: int
    event: dict[str, Any]

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        return self.state.follow(self.committed_id, self.event)


class SubmitItem(Struct, frozen=True):
    """One submitted event whose stateless work is done."""

    id: str
    client_id: str
    partitions: tuple[str, ...]
    event: dict[str, Any]
    body: bytes
    fingerprint: bytes
    event_hash: bytes
    refused: tuple[str, tuple[Fault, ...]] | None
    """Reason and faults of steps 1 to 3 of sync 8.2, which come before the id is looked at."""
    invalid: tuple[Fault, ...]
    """Faults of steps 5 and 6 that need no state; they count only for a new id (sync D25)."""
    states: tuple[State, ...] = ()
    """Tree states of the partitions in sorted order, if the decision looks at them."""
    check: Callable[[Sequence[State]], tuple[Fault, ...]] | None = None
    """The application's own rules about the states; None if it has none."""

    @property
    def key(self) -> tuple[str, str]:
        """Scope and key of its dedupe row, which `decide` reads unless it is refused."""
        return SCOPE, self.id

    def decide(self, view: View) -> Accept | Refuse:
        """The pipeline of sync 8.2 from step 4 on, with the verdict of the steps before it."""
        if self.refused:
            reason, faults = self.refused
            return Refuse(Rejected(self.id, reason, faults, view.now_ms))
        row = view.dedupe(SCOPE, self.id)
        verdict = seen(row, self.fingerprint)
        if row is not None and verdict is not Seen.NEW:
            return Refuse(self._known(row, verdict, view.now_ms))
        if self.invalid:
            return Refuse(Rejected(self.id, "validation_failed", self.invalid, view.now_ms))
        for state in self.states:
            if found := state.tree.check(self.event):
                return Refuse(Rejected(self.id, "validation_failed", tuple(found), view.now_ms))
        if self.check is not None and (wrong := self.check(self.states)):
            return Refuse(Rejected(self.id, "validation_failed", wrong, view.now_ms))
        return self._commit(view)

    def _known(self, row: DedupeRow, verdict: Seen, now_ms: int) -> Committed | Rejected:
        outcome = msgspec.json.decode(row.outcome, type=Outcome)
        if verdict is Seen.REPEATED:
            return Committed(self.id, outcome.committed_id, outcome.status_updated_at)
        field = "partitions" if outcome.event_hash == self.event_hash else "event"
        return Rejected(self.id, "validation_failed", (Fault(field, REUSED),), now_ms)

    def _commit(self, view: View) -> Accept:
        committed_id = view.next_committed_id
        return Accept(
            Committed(self.id, committed_id, view.now_ms),
            entries=(
                Draft(STREAM, SURFACE, self.event["type"], self.id, "", self.client_id, self.body),
            ),
            dedupe=(
                dedupe_row(
                    self.id,
                    self.client_id,
                    committed_id,
                    view.now_ms,
                    (self.fingerprint, self.event_hash),
                ),
            ),
            rows=tuple(
                [RowChange("sync_add_partition", (name, committed_id)) for name in self.partitions]
            ),
            states=tuple([Follow(state, committed_id, self.event) for state in self.states]),
        )

    def needs_state(self) -> bool:
        """Whether a decision about it may look at tree states."""
        if self.refused or self.invalid:
            return False
        return self.check is not None or self.event["type"] in TREE_ACTIONS


class Setting(Struct, frozen=True):
    """Store one number of the sync surface durably, such as the model version."""

    name: str
    value: int

    def names(self) -> Names:
        """What `decide` reads."""
        return Names()

    def decide(self, view: View) -> Accept:
        """Always accepted: it appends nothing."""
        del view
        return Accept(self.value, rows=(RowChange("sync_put_setting", (self.name, self.value)),))


def dedupe_row(
    item_id: str, client_id: str, committed_id: int, now_ms: int, proofs: tuple[bytes, bytes]
) -> DedupeRow:
    """That an event was committed; `proofs` as `proofs_of` returns them."""
    fingerprint, event_hash = proofs
    outcome = msgspec.json.encode(Outcome(committed_id, now_ms, event_hash))
    return DedupeRow(SCOPE, item_id, committed_id, fingerprint, client_id, outcome, 1, now_ms, None)


def proofs_of(canonical_event: bytes, canonical_partitions: bytes) -> tuple[bytes, bytes]:
    """The fingerprint of a whole item, and the hash of its event alone."""
    # RFC 8785 of {"event": ..., "partitions": ...}: two ASCII keys, already in their order.
    whole = b'{"event":%s,"partitions":%s}' % (canonical_event, canonical_partitions)
    return sha256(whole).digest(), sha256(canonical_event).digest()


def prepare(
    item: Mapping[str, Any],
    raw_event: bytes,
    *,
    client_id: str,
    profile: str,
    model: Model,
    allows: Callable[[str], bool],
) -> SubmitItem:
    """The stateless steps of sync 8.2 for an item that passed the invariants of sync 8.1."""
    event = item["event"]
    names: Sequence[str] = item["partitions"]
    refused, canonical_event = _refusal(names, allows), b""
    if refused is None:
        try:
            canonical_event = canonical(event)
        except NotCanonicalizable:
            # What strict JSON lets through and no canonical form has: integers beyond 2^53.
            refused = "validation_failed", tuple(number_faults(event))
    if refused is not None:
        return SubmitItem(item["id"], client_id, (), event, b"", b"", b"", refused, ())
    partitions = normal_set(names)
    canonical_partitions = canonical(partitions)
    fingerprint, event_hash = proofs_of(canonical_event, canonical_partitions)
    return SubmitItem(
        id=item["id"],
        client_id=client_id,
        partitions=partitions,
        event=event,
        body=stored_body(item["id"], client_id, canonical_partitions, raw_event),
        fingerprint=fingerprint,
        event_hash=event_hash,
        refused=None,
        invalid=tuple(_invalid(event, profile, model)),
    )


def _refusal(
    names: Sequence[str], allows: Callable[[str], bool]
) -> tuple[str, tuple[Fault, ...]] | None:
    """Steps 1 and 2 of sync 8.2."""
    faults = partition_faults(names)
    if faults:
        return "validation_failed", tuple(faults)
    denied = [
        Fault(f"partitions.{index}", "not allowed")
        for index, name in enumerate(names)
        if not allows(normal_name(name))
    ]
    return ("forbidden", tuple(sorted(denied))) if denied else None


def _invalid(event: dict[str, Any], profile: str, model: Model) -> list[Fault]:
    if event["type"] not in accepted_types(profile):
        return [Fault("event.type", f"not accepted by profile {profile}")]
    return event_faults(model, event) if profile == CANONICAL else tree_faults(model, event)
