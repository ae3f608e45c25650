"""Leases on deliveries: pure decisions that append nothing (mesh 7.1).

A lease belongs to whoever knows its `claim_id`. It ends by an acknowledgement, by being given back,
or by its time; whoever comes later with an old `claim_id` changes nothing.

Two claims for one recipient must not be in one batch, because both would find the same rows; each
node lets one at a time through, and the lock on the head keeps the nodes apart.
"""

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.mesh.messages import Leased
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.model import PUSH, Member, member_of, queue_recipient
from tidelog.store.rows import Becomes

PENDING = "pending"
CLAIMED = "claimed"
DELIVERED = "delivered"
DEAD = "dead"
"""Values of `status` in the delivery queue."""


class DeliveryKey(NamedTuple):
    """The key of a row of the delivery queue."""

    broker_message_id: str
    recipient: str
    channel: str = PUSH
    endpoint_id: str = ""


class DeliveryState(NamedTuple):
    """A row of the delivery queue as `mesh_delivery` returns it."""

    mesh_id: str
    status: str
    claim_id: str | None
    attempts: int


class Claim(Struct, frozen=True, kw_only=True):
    """Lease what is due to a member, or in a queue to one of its members."""

    mesh_id: str
    member: Member
    queue_id: str | None = None
    """None for what is addressed to the member itself."""
    claim_id: str
    lease_ms: int
    limit: int
    max_bytes: int
    """No further message after so much content; one is always leased."""
    asked_at: int
    """What is due at this time is looked for; the lease begins at the decision's own."""

    @property
    def recipient(self) -> str:
        """Who the rows wait for."""
        return self.member.public_hex if self.queue_id is None else queue_recipient(self.queue_id)

    def names(self) -> Names:
        """What `decide` reads."""
        queue = () if self.queue_id is None else (("mesh_queue", (self.mesh_id, self.queue_id)),)
        return Names(
            rows=(("mesh_member", (self.mesh_id, self.member.public_hex)), *queue, self._due())
        )

    def _due(self) -> tuple[str, tuple[str, str, int, int]]:
        return "mesh_due", (self.mesh_id, self.recipient, self.asked_at, self.limit)

    def decide(self, view: View) -> Accept | Refuse:
        """Returns a `Leased`, or the `Reply` of whoever may not have it."""
        key = self.member.public_hex
        if member_of(view.rows("mesh_member", (self.mesh_id, key)), key) is None:
            return Refuse(replies.not_a_member())
        if self.queue_id is not None and not view.rows("mesh_queue", (self.mesh_id, self.queue_id)):
            return Refuse(replies.refusal(404, "queue_not_found"))
        messages: list[tuple[str, int]] = []
        size = 0
        for broker_message_id, history_id, message_bytes in view.rows(*self._due()):
            size += message_bytes
            if messages and size > self.max_bytes:
                break
            messages.append((broker_message_id, history_id))
        now = view.now_ms
        leased = Leased(self.claim_id, now + self.lease_ms, tuple(messages))
        if not messages:
            return Refuse(leased)
        return Accept(
            leased,
            rows=tuple(
                claim_change(DeliveryKey(message, self.recipient), leased, now)
                for message, _ in messages
            ),
        )


def claim_change(key: DeliveryKey, leased: Leased, now_ms: int) -> RowChange:
    """Lease one row, if no other lease on it holds."""
    return RowChange("mesh_claim_delivery", (*key, leased.claim_id, now_ms, leased.expires_at))


def finish_change(
    key: DeliveryKey,
    claim_id: str,
    status: str,
    *,
    now_ms: int,
    next_attempt_at: int | None = None,
    error: str | None = None,
    becomes: Becomes | None = None,
) -> RowChange:
    """End a lease with this status; nothing happens to a row of another lease."""
    delivered_at = now_ms if status == DELIVERED else None
    due_at = now_ms if next_attempt_at is None else next_attempt_at
    return RowChange(
        "mesh_finish_delivery", (*key, claim_id, status, due_at, error, delivered_at), becomes
    )


class Completion(Enum):
    """What an acknowledgement did."""

    COMPLETED = "completed"
    REPEATED = "repeated"
    """The row was closed before, by the same lease."""
    LOST = "lost"
    """No such row, or the lease is not the one that holds."""


class Complete(Struct, frozen=True):
    """A recipient has a message for good."""

    mesh_id: str
    key: DeliveryKey
    claim_id: str

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_delivery", self.key),))

    def decide(self, view: View) -> Accept | Refuse:
        """Returns a `Completion`. A lease whose time is over still counts while it is the last."""
        rows = view.rows("mesh_delivery", self.key)
        state = DeliveryState._make(rows[0]) if rows else None
        if state is None or state.mesh_id != self.mesh_id or state.claim_id != self.claim_id:
            return Refuse(Completion.LOST)
        if state.status == DELIVERED:
            return Refuse(Completion.REPEATED)
        if state.status != CLAIMED:
            return Refuse(Completion.LOST)
        after = Becomes("mesh_delivery", self.key, (tuple(state._replace(status=DELIVERED)),))
        change = finish_change(
            self.key, self.claim_id, DELIVERED, now_ms=view.now_ms, becomes=after
        )
        return Accept(Completion.COMPLETED, rows=(change,))


class Release(Struct, frozen=True):
    """Give leases back before their time, because whoever held them is gone."""

    leases: tuple[tuple[DeliveryKey, str], ...]
    """Each with its `claim_id`."""

    def names(self) -> Names:
        """Nothing: what was acknowledged meanwhile is not changed by this."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        return Accept(
            None,
            rows=tuple(
                finish_change(key, claim_id, PENDING, now_ms=view.now_ms, error="receiver_left")
                for key, claim_id in self.leases
            ),
        )


class Reap(Struct, frozen=True):
    """Rows whose lease has ended wait again."""

    keys: tuple[DeliveryKey, ...]

    def names(self) -> Names:
        """Nothing: a row that was leased again meanwhile is not changed by this."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        now = view.now_ms
        return Accept(
            None, rows=tuple(RowChange("mesh_reap_delivery", (*key, now)) for key in self.keys)
        )
