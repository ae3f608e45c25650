"""Deliveries to recipients that are gone are closed (mesh 7.1).

Who ends is noted in the transaction that ends it. What waits for it may be a million rows, so they
are closed afterwards, some at a time, and the note goes with the last of them.
"""

import asyncio
from typing import NamedTuple

from msgspec import Struct

from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Failure, Names, RowChange, View
from tidelog.log.request import submit_and_wait
from tidelog.mesh.decide.claims import DeliveryKey
from tidelog.store.engine import Store

MEMBER_LEFT = "member_left"
MEMBER_REVOKED = "member_revoked"
QUEUE_REMOVED = "queue_removed"
"""What a delivery that was closed says in `last_error`."""

FOR_EVER = 2**63 - 1
"""As the last message of a recipient that does not come back."""

STEP_ROWS = 1000
"""Deliveries closed in one transaction, which other writers wait for."""

_NOTES = 100


class Ended(NamedTuple):
    """A recipient that is gone."""

    mesh_id: str
    recipient: str
    reason: str
    through: int
    """The last `history_id` that is not delivered to it. A queue can be made again."""

    def noted(self) -> RowChange:
        """What closes its deliveries, sooner or later."""
        return RowChange("mesh_end_recipient", tuple(self))


class Close(Struct, frozen=True):
    """Some deliveries to a recipient that is gone; none if there are no more of them."""

    ended: Ended
    messages: tuple[str, ...]

    def names(self) -> Names:
        """Nothing: who is gone gets nothing new."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`; idempotent, for several nodes do it."""
        del view
        ended = self.ended
        rows = [
            RowChange("mesh_bury_delivery", (*DeliveryKey(message, ended.recipient), ended.reason))
            for message in self.messages
        ]
        if not rows:
            key = (ended.mesh_id, ended.recipient, ended.through)
            rows = [RowChange("mesh_forget_recipient", key)]
        return Accept(None, rows=tuple(rows))


class Endings:
    """Closes what is left."""

    def __init__(self, committer: Committer, store: Store) -> None:
        self._committer = committer
        self._store = store

    async def close(self) -> None:
        """Go through the notes; usually there is none."""
        while notes := await self._store.rows("mesh_ended_recipients", (_NOTES,)):
            for note in notes:
                await self._close(Ended._make(note))

    async def _close(self, ended: Ended) -> None:
        key = (ended.mesh_id, ended.recipient, ended.through, STEP_ROWS)
        while True:
            rows = await self._store.rows("mesh_open_deliveries", key)
            item = Close(ended, tuple(message for (message,) in rows))
            size = 128 * (len(rows) + 1)
            [answer] = await submit_and_wait(self._committer, item.names(), size, (item,))
            if isinstance(answer, Failure):
                raise answer.error
            if not rows:
                return
            await asyncio.sleep(0)
