"""What a broker does now and then, for as long as it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.log.committer import Committer
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.upkeep.delivery_closer import DeliveryCloser
from tidelog.mesh.upkeep.lease_reaper import LeaseReaper
from tidelog.mesh.upkeep.orphan_check import RULES, find_orphans
from tidelog.mesh.upkeep.retention import Retention
from tidelog.mesh.upkeep.webhooks import Webhooks
from tidelog.store.engine import Store

LOGGED_FINDINGS = 100
"""Findings of one check that are logged one by one; all are counted."""

_log = logging.getLogger(__name__)


class PeriodicWork:
    """Leases that end, webhooks that are due, messages that are too old, relations that differ."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        settings: MeshSettings,
        clock: Clock,
        *,
        reaper: LeaseReaper,
        webhooks: Webhooks,
        retention: Retention,
        closer: DeliveryCloser,
    ) -> None:
        self._committer = committer
        self._store = store
        self._settings = settings
        self._clock = clock
        self._reaper = reaper
        self._webhooks = webhooks
        self._retention = retention
        self._closer = closer
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; everything ends with the committer."""
        settings = self._settings
        self._tasks.append(asyncio.create_task(self._end(), name="tidelog-mesh-end"))
        self._tasks.append(asyncio.create_task(self._webhooks.work(), name="tidelog-mesh-webhooks"))
        self._every(settings.reaper_interval_ms / 1000, self._reaper.reap)
        self._every(settings.reaper_interval_ms / 1000, self._closer.close, is_due=True)
        self._every(settings.retention_interval_seconds, self._retention.tick, is_due=True)
        self._every(settings.orphan_check_interval_seconds, self.check)

    def _every(
        self, seconds: float, work: Callable[[], Awaitable[object]], *, is_due: bool = False
    ) -> None:
        async def repeat() -> None:
            if not is_due:
                await asyncio.sleep(seconds)
            while True:
                try:
                    await work()
                except (QueueFull, StoreError) as error:
                    _log.warning("periodic work was put off: %s", error)
                except ShuttingDown:
                    return
                except Exception:  # noqa: BLE001 - a mistake of ours; the others go on, and so does it
                    _log.exception("periodic work failed")
                await asyncio.sleep(seconds)

        self._tasks.append(asyncio.create_task(repeat(), name="tidelog-mesh-periodic"))

    async def _end(self) -> None:
        """Stop all that reads the store, before it is closed."""
        await self._committer.ended.wait()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._webhooks.stop()

    async def check(self) -> int:
        """Compare the stored relations; returns how many findings there were."""
        by_rule = dict.fromkeys(RULES, 0)
        async for finding in find_orphans(self._store, self._clock.now_ms()):
            by_rule[finding.rule] += 1
            if sum(by_rule.values()) <= LOGGED_FINDINGS:
                _log.error("broker_atomicity_violation_found: %s", finding)
        metrics = self._committer.metrics.part(MeshMetrics)
        metrics.orphan_checks.inc()
        metrics.orphans.set(sum(by_rule.values()))
        for rule, count in by_rule.items():
            metrics.atomicity_violations.labels(str(rule)).set(count)
        return sum(by_rule.values())
