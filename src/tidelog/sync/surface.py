"""Sync as a surface: the owner's half, the front's half, and the link between them."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.base.clock import Clock
from tidelog.base.metrics import Metrics
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
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.settings import ServerSettings, SyncSettings
from tidelog.sync.upkeep.owner import SyncOwner


class Halves(NamedTuple):
    """Both halves in one process."""

    owner: SyncOwner
    front: SyncService


class Rules(NamedTuple):
    """What an application has sync check; both halves have the same."""

    model: Model
    plugin: GuardedPlugin | None

    @classmethod
    def of(cls, settings: SyncSettings, metrics: Metrics) -> "Rules":
        """As the settings name them."""
        clocks = Clocks(time.perf_counter, time.thread_time)
        part = metrics.part(SyncMetrics)
        return cls(read_model(settings), GuardedPlugin.from_settings(settings, part, clocks))


async def open_halves(
    committer: Committer, store: Store, settings: SyncSettings, clock: Clock
) -> Halves:
    """Sync on a running committer, without routes."""
    rules = Rules.of(settings, committer.metrics)
    owner = await SyncOwner.open(committer, store, settings, *rules)
    link = connect(owner, VOCABULARY)
    return Halves(owner, await SyncService.open(link, store, settings, clock, *rules))


class SyncFront:
    """The front's half with its routes, wherever the owner's is."""

    name = SURFACE

    def __init__(self, service: SyncService, admin_token: str) -> None:
        self.service = service
        self._polling = Polling(service)
        self._admin = Admin(service, admin_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return described((*self._polling.routes(), *self._admin.routes()))

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()


class SyncSurface(SyncFront):
    """Both halves in one process: what `tidelog serve` mounts."""

    def __init__(self, halves: Halves, admin_token: str) -> None:
        super().__init__(halves.front, admin_token)
        self.owner = halves.owner

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: Clock
    ) -> "SyncSurface":
        """Sync on a running committer."""
        halves = await open_halves(committer, store, settings.sync, clock)
        return cls(halves, settings.administration_token)
