"""Recipients that are gone: what still waits for them is closed (mesh 7.1).

Who is gone is noted in the transaction that ends it. What waits for it may be a million rows, so
they are closed afterwards, some at a time, and the note goes with the last of them.
"""

from typing import NamedTuple

from msgspec import Struct

from tidelog.log.decision import Accept, Names, RowChange, View
from tidelog.mesh.decide.claims import DeliveryKey

MEMBER_LEFT = "member_left"
MEMBER_REVOKED = "member_revoked"
QUEUE_REMOVED = "queue_removed"
"""What a delivery that was closed says in `last_error`."""

FOR_EVER = 2**63 - 1
"""As the last message of a recipient that does not come back."""


class GoneRecipient(NamedTuple):
    """A recipient that is gone."""

    mesh_id: str
    recipient: str
    reason: str
    through: int
    """The last `history_id` that is not delivered to it. A queue can be made again."""

    def noted(self) -> RowChange:
        """What closes its deliveries, sooner or later."""
        return RowChange("mesh_end_recipient", tuple(self))


class CloseDeliveries(Struct, frozen=True):
    """Some deliveries to a recipient that is gone; none if there are no more of them."""

    gone: GoneRecipient
    messages: tuple[str, ...]

    def names(self) -> Names:
        """Nothing: who is gone gets nothing new."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`; idempotent, for several nodes do it."""
        del view
        gone = self.gone
        rows = [
            RowChange("mesh_bury_delivery", (*DeliveryKey(message, gone.recipient), gone.reason))
            for message in self.messages
        ]
        if not rows:
            key = (gone.mesh_id, gone.recipient, gone.through)
            rows = [RowChange("mesh_forget_recipient", key)]
        return Accept(None, rows=tuple(rows))
