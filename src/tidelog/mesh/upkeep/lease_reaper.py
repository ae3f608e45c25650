"""Ends the leases whose time is over, so that their messages are pushed again (mesh 7.1)."""

from collections.abc import Callable

from tidelog.base.clock import Clock
from tidelog.log.committer import Committer
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.mesh.decide.claims import DeliveryKey, Reap
from tidelog.store.engine import Store

REAP_ROWS = 1000
"""Leases ended in one transaction, which other writers wait for."""


class LeaseReaper:
    """Looks for leases whose time is over."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        clock: Clock,
        wake_waiting: Callable[[], None],
    ) -> None:
        """`wake_waiting` is called afterwards, also when there was nothing to end."""
        self._committer = committer
        self._store = store
        self._clock = clock
        self._wake_waiting = wake_waiting

    async def reap(self) -> int:
        """End leases and wake whoever has something to get; returns how many leases that were."""
        reaped = 0
        while True:
            rows = await self._store.rows("mesh_expired_leases", (self._clock.now_ms(), REAP_ROWS))
            if rows:
                item = Reap(tuple(DeliveryKey._make(row) for row in rows))
                without_failure(
                    await submit_and_wait(self._committer, item.names(), 128 * len(rows), (item,))
                )
                reaped += len(rows)
            if len(rows) < REAP_ROWS:
                break
        self._wake_waiting()
        return reaped
