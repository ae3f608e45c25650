"""Closes the deliveries to recipients that are gone, some at a time (mesh 7.1)."""

import asyncio

from tidelog.log.committer import Committer
from tidelog.log.decision import Failure
from tidelog.log.request import submit_and_wait
from tidelog.mesh.decide.gone_recipients import CloseDeliveries, GoneRecipient
from tidelog.store.engine import Store

STEP_ROWS = 1000
"""Deliveries closed in one transaction, which other writers wait for."""

_NOTES = 100


class DeliveryCloser:
    """Goes through the notes of who is gone."""

    def __init__(self, committer: Committer, store: Store) -> None:
        self._committer = committer
        self._store = store

    async def close(self) -> None:
        """Go through the notes; usually there is none."""
        while notes := await self._store.rows("mesh_ended_recipients", (_NOTES,)):
            for note in notes:
                await self._close(GoneRecipient._make(note))

    async def _close(self, gone: GoneRecipient) -> None:
        key = (gone.mesh_id, gone.recipient, gone.through, STEP_ROWS)
        while True:
            rows = await self._store.rows("mesh_open_deliveries", key)
            item = CloseDeliveries(gone, tuple(message for (message,) in rows))
            size = 128 * (len(rows) + 1)
            [answer] = await submit_and_wait(self._committer, item.names(), size, (item,))
            if isinstance(answer, Failure):
                raise answer.error
            if not rows:
                return
            await asyncio.sleep(0)
