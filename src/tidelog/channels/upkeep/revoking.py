"""Revoking tokens: stored before it is acknowledged, and known to every node.

The store is what counts. A node reads all of it when it starts and, from then on, what is new:
whenever another node says so, and every few seconds in case that was not heard.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from tidelog.base.clock import Clock
from tidelog.base.errors import StoreError
from tidelog.channels.decide.revocations import ForgetRevocations, Revoke
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.revocations import (
    MAX_REVOKED,
    REVOKED_MS,
    Revocation,
    Revocations,
)
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
        heard: Callable[[Sequence[Revocation]], None],
    ) -> None:
        """`heard` takes what was revoked on other nodes, or before this one began."""
        self._committer = committer
        self._store = store
        self._clock = clock
        self._heard = heard
        self.known = Revocations()
        """All that count."""
        self._read_at = 0
        """Time of the last one that was read."""
        self._is_due = False
        self._reading: asyncio.Task[None] | None = None

    async def revoke(self, app_id: str, named: Sequence[tuple[str, str]]) -> tuple[Revocation, ...]:
        """Revoke tokens by kind and value; they are stored when it returns.

        Raises:
            Fault: The app has revoked as many as it may.
        """
        self.known.prune(self._clock.now_ms())
        if self.known.is_full(app_id):
            raise fault.limit_exceeded(
                f"this app has {MAX_REVOKED} revocations in force, the most allowed; revoke "
                "clients rather than single tokens, or give the app another secret"
            )
        item = Revoke([(app_id, kind, value) for kind, value in named])
        answers = await submit_and_wait(self._committer, Names(), 512, (item,))
        [at] = without_failure(answers)
        revoked = tuple(Revocation(app_id, kind, value, at) for kind, value in named)
        for each in revoked:
            self.known.add(each)
        return revoked

    async def read(self) -> None:
        """Read what was revoked since the last time."""
        after: tuple[int, str, str, str] = (max(0, self._read_at - OVERLAP_MS), "", "", "")
        while True:
            rows = await self._store.rows("channels_revocations_after", (*after, PAGE))
            found = [Revocation._make(row) for row in rows]
            new = [each for each in found if self.known.add(each)]
            if new:
                self._heard(new)
            if found:
                last = found[-1]
                after = (last.at, last.app_id, last.kind, last.value)
                self._read_at = max(self._read_at, last.at)
            if len(found) < PAGE:
                break

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
