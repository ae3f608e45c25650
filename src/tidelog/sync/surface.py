"""Sync as a surface: the socket, polling and administration, mounted together."""

from collections.abc import Sequence

from tidelog.base.clock import Clock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.log.committer import Committer
from tidelog.store.engine import Store
from tidelog.sync.decide.rules import SURFACE
from tidelog.sync.front.admin import Admin
from tidelog.sync.front.openapi import described
from tidelog.sync.front.polling import Polling
from tidelog.sync.front.service import SyncService
from tidelog.sync.settings import ServerSettings


class SyncSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, service: SyncService, admin_token: str) -> None:
        self.service = service
        self._polling = Polling(service)
        self._admin = Admin(service, admin_token)

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: Clock
    ) -> "SyncSurface":
        """Sync on a running committer."""
        service = await SyncService.open(committer, store, settings.sync, clock)
        return cls(service, settings.administration_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return described((*self._polling.routes(), *self._admin.routes()))

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
