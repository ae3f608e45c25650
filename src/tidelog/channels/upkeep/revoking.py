"""Revoking tokens: stored before it is acknowledged, and known to every node.

The store is what counts. A node reads all of it when it starts and, from then on, what is new:
whenever another node says so, and every few seconds in case that was not heard.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from tidelog.base.clock import Clock
from tidelog.base.errors import StoreError
from tidelog.channels.decide.revocations import (
    MAX_REVOKED,
    REVOKED_MS,
    ForgetRevocations,
    Revocation,
    Revocations,
    Revoke,
)
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.tokens import Claims
from tidelog.log.committer import Committer
from tidelog.log.decision import Names
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.store.engine import Store

PAGE = 1000
"""Revocations read, or forgotten, at once."""

OVERLAP_MS = 60_000
"""Revocations up to this much older than the last known one are read again: the clocks of several
nodes may differ."""

RETRY_SECONDS = 1.0
"""Pause after the store could not be read."""

_log = logging.getLogger(__name__)


class Revoking:
    """The revocations of one log, as one node knows them."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        clock: Clock,
        *,
        close_connections: Callable[[str, Revocations], int],
    ) -> None:
        """`close_connections` closes those of an app that are revoked; returns how many."""
        self._committer = committer
        self._store = store
        self._clock = clock
        self._close_connections = close_connections
        self._revoked = Revocations()
        self._read_at = 0
        """Time of the last one that was read."""
        self._is_due = False
        self._reading: asyncio.Task[None] | None = None

    def covers(self, app_id: str, claims: Claims) -> bool:
        """Whether a token was revoked: itself, or its client since it was issued."""
        return self._revoked.covers(app_id, claims)

    async def revoke(self, app_id: str, named: Sequence[tuple[str, str]]) -> int:
        """Revoke tokens by kind and value; returns how many connections of this node that closed.

        Raises:
            Fault: The app has revoked as many as it may.
        """
        self._revoked.prune(self._clock.now_ms())
        if self._revoked.is_full(app_id):
            raise fault.limit_exceeded(
                f"this app has {MAX_REVOKED} revocations in force, the most allowed; revoke "
                "clients rather than single tokens, or give the app another secret"
            )
        item = Revoke([(app_id, kind, value) for kind, value in named])
        answers = await submit_and_wait(self._committer, Names(), 512, (item,))
        [at] = without_failure(answers)
        for kind, value in named:
            self._revoked.add(Revocation(app_id, kind, value, at))
        return self._close_connections(app_id, self._revoked)

    async def read(self) -> None:
        """Read what was revoked since the last time, and close the connections it affects."""
        after: tuple[int, str, str, str] = (max(0, self._read_at - OVERLAP_MS), "", "", "")
        apps: set[str] = set()
        while True:
            rows = await self._store.rows("channels_revocations_after", (*after, PAGE))
            found = [Revocation._make(row) for row in rows]
            apps.update(each.app_id for each in found if self._revoked.add(each))
            if found:
                last = found[-1]
                after = (last.at, last.app_id, last.kind, last.value)
                self._read_at = max(self._read_at, last.at)
            if len(found) < PAGE:
                break
        for app_id in apps:
            self._close_connections(app_id, self._revoked)

    def read_soon(self) -> None:
        """Something may have been revoked on another node."""
        self._is_due = True
        if self._reading is None:
            self._reading = asyncio.create_task(self._keep_reading(), name="tidelog-revocations")

    async def _keep_reading(self) -> None:
        try:
            while self._is_due and not self._committer.ended.is_set():
                self._is_due = False
                try:
                    await self.read()
                except StoreError as error:
                    _log.warning("what other nodes revoked could not be read: %s", error)
                    self._is_due = True
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._reading = None

    async def sweep(self) -> int:
        """Remove what no token can need any more; returns how many there were."""
        removed = 0
        before = self._clock.now_ms() - REVOKED_MS
        while True:
            rows = await self._store.rows("channels_old_revocations", (before, PAGE))
            if rows:
                item = ForgetRevocations([(app, kind, value) for app, kind, value in rows], before)
                size = 256 * len(rows)
                answers = await submit_and_wait(self._committer, Names(), size, (item,))
                without_failure(answers)
                removed += len(rows)
            if len(rows) < PAGE:
                return removed
