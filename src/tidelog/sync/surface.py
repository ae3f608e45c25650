"""Sync as a surface: the owner's half, the front's half, and the link between them."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.base.clock import Clock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.link.choice import connect
from tidelog.log.committer import Committer
from tidelog.store.engine import Store
from tidelog.sync.decide.plugin_guard import Clocks, GuardedPlugin
from tidelog.sync.decide.rules import SURFACE
from tidelog.sync.front.admin import Admin
from tidelog.sync.front.files import read_model
from tidelog.sync.front.openapi import described
from tidelog.sync.front.polling import Polling
from tidelog.sync.front.service import SyncService
from tidelog.sync.messages import VOCABULARY
from tidelog.sync.metrics import SyncMetrics
from tidelog.sync.settings import ServerSettings, SyncSettings
from tidelog.sync.upkeep.owner import SyncOwner


class Halves(NamedTuple):
    """Both halves in one process."""

    owner: SyncOwner
    front: SyncService


async def open_halves(
    committer: Committer, store: Store, settings: SyncSettings, clock: Clock
) -> Halves:
    """Sync on a running committer, without routes."""
    model = read_model(settings)
    metrics = committer.metrics.part(SyncMetrics)
    clocks = Clocks(time.perf_counter, time.thread_time)
    plugin = GuardedPlugin.from_settings(settings, metrics, clocks)
    owner = await SyncOwner.open(committer, store, settings, model, plugin)
    link = connect(owner, VOCABULARY)
    return Halves(owner, await SyncService.open(link, store, settings, clock, model, plugin))


class SyncSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, halves: Halves, admin_token: str) -> None:
        self.owner, self.service = halves
        self._polling = Polling(self.service)
        self._admin = Admin(self.service, admin_token)

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: Clock
    ) -> "SyncSurface":
        """Sync on a running committer."""
        halves = await open_halves(committer, store, settings.sync, clock)
        return cls(halves, settings.administration_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return described((*self._polling.routes(), *self._admin.routes()))

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
