"""The broker as a surface: sockets and the HTTP API, mounted together."""

from collections.abc import Sequence

from tidelog.base.clock import Clock
from tidelog.base.settings import Settings
from tidelog.base.surface import Endpoint, Route
from tidelog.log.committer import Committer
from tidelog.mesh.http import MeshHttp
from tidelog.mesh.rules import SURFACE
from tidelog.mesh.service import MeshService
from tidelog.store.engine import Store


class MeshSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, service: MeshService, admin_token: str) -> None:
        self.service = service
        self._http = MeshHttp(service, admin_token)

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: Settings, clock: Clock
    ) -> "MeshSurface":
        """The broker on a running committer."""
        service = await MeshService.open(committer, store, settings, clock)
        return cls(service, settings.mesh_admin_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return self._http.routes()

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
