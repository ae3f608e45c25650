"""Leases on what endpoints are to get, and what becomes of each post (mesh 7.4)."""

from msgspec import Struct

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.mesh.decide.claims import (
    CLAIMED,
    DEAD,
    DELIVERED,
    PENDING,
    DeliveryKey,
    DeliveryState,
    claim_change,
    finish_change,
)
from tidelog.mesh.messages import Leased, Target
from tidelog.mesh.protocol.model import WEBHOOK
from tidelog.mesh.protocol.policy import backoff_ms

MAX_ATTEMPTS = 12
MIN_POST_BACKOFF_MS = 1000
MAX_POST_BACKOFF_MS = 300_000

BATCH = 8
"""Messages leased for one endpoint at once; they are posted one after the other, and the lease is
as long as all of them may take."""

GONE = 410
"""The status by which an endpoint says that it wants nothing more."""


def post_backoff_ms(attempts: int) -> int:
    """Pause after so many attempts that failed."""
    return backoff_ms(attempts, MIN_POST_BACKOFF_MS, MAX_POST_BACKOFF_MS)


def webhook_key(broker_message_id: str, endpoint_id: str) -> DeliveryKey:
    """The row of a message for an endpoint."""
    return DeliveryKey(broker_message_id, "", WEBHOOK, endpoint_id)


class ClaimWebhook(Struct, frozen=True):
    """Lease what an endpoint is to get."""

    endpoint_id: str
    claim_id: str
    lease_ms: int
    asked_at: int

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_webhook_target", (self.endpoint_id,)), self._due()))

    def _due(self) -> tuple[str, tuple[str, int, int]]:
        return "mesh_webhook_due", (self.endpoint_id, self.asked_at, BATCH)

    def decide(self, view: View) -> Accept | Refuse:
        """Returns the `Target` and a `Leased`.

        A row whose last attempt nobody reported (the process died) is buried instead of leased.
        """
        targets = view.rows("mesh_webhook_target", (self.endpoint_id,))
        if not targets:
            return Refuse((None, Leased(self.claim_id, 0)))
        now = view.now_ms
        messages: list[tuple[str, int]] = []
        changes: list[RowChange] = []
        for broker_message_id, history_id, attempts in view.rows(*self._due()):
            key = webhook_key(broker_message_id, self.endpoint_id)
            if attempts >= MAX_ATTEMPTS:
                changes.append(RowChange("mesh_bury_delivery", (*key, "attempts_exhausted")))
            else:
                messages.append((broker_message_id, history_id))
        leased = Leased(self.claim_id, now + self.lease_ms, tuple(messages))
        changes += [
            claim_change(webhook_key(message, self.endpoint_id), leased, now)
            for message, _ in messages
        ]
        answer = (Target._make(targets[0]), leased)
        return Accept(answer, rows=tuple(changes)) if changes else Refuse(answer)


class Attempted(Struct, frozen=True):
    """What became of one post."""

    key: DeliveryKey
    claim_id: str
    status: int | None
    """None if there was no response."""
    error: str = ""

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_delivery", self.key),))

    def decide(self, view: View) -> Accept | Refuse:
        """Returns the new status of the row; None if the lease was lost."""
        rows = view.rows("mesh_delivery", self.key)
        state = DeliveryState._make(rows[0]) if rows else None
        if state is None or state.status != CLAIMED or state.claim_id != self.claim_id:
            return Refuse(None)
        now, key, claim_id = view.now_ms, self.key, self.claim_id
        if self.status is not None and 200 <= self.status < 300:
            change = finish_change(key, claim_id, DELIVERED, now_ms=now)
            return Accept(DELIVERED, rows=(change,))
        error = self.error or f"status_{self.status}"
        if self.status == GONE:
            return Accept(
                DEAD,
                rows=(
                    finish_change(key, claim_id, DEAD, now_ms=now, error="endpoint_gone"),
                    RowChange("mesh_disable_webhook", (key.endpoint_id, now)),
                    RowChange("mesh_end_endpoint", (key.endpoint_id,)),
                ),
            )
        if state.attempts >= MAX_ATTEMPTS:
            return Accept(DEAD, rows=(finish_change(key, claim_id, DEAD, now_ms=now, error=error),))
        again_at = now + post_backoff_ms(state.attempts)
        change = finish_change(
            key, claim_id, PENDING, now_ms=now, next_attempt_at=again_at, error=error
        )
        return Accept(PENDING, rows=(change,))
