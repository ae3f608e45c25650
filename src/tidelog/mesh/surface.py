"""The broker as a surface: sockets and the HTTP API, mounted together."""

from collections.abc import Sequence

from tidelog.base.clock import ServerClock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.log.committer import Committer
from tidelog.mesh.decide.rules import SURFACE
from tidelog.mesh.front.delivery import PushDelivery
from tidelog.mesh.front.http import MeshHttp
from tidelog.mesh.front.public_hosts import PublicHosts
from tidelog.mesh.front.service import MeshService
from tidelog.mesh.settings import ServerSettings
from tidelog.mesh.upkeep.chores import Chores
from tidelog.mesh.upkeep.endings import Endings
from tidelog.mesh.upkeep.retention import Retention
from tidelog.mesh.upkeep.webhooks import Webhooks
from tidelog.store.engine import Store


class MeshSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, service: MeshService, chores: Chores, admin_token: str) -> None:
        self.service = service
        self.chores = chores
        self._http = MeshHttp(service, admin_token)

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: ServerClock
    ) -> "MeshSurface":
        """The broker on a running committer."""
        mesh = settings.mesh
        webhooks = Webhooks(committer, store, mesh, clock)
        delivery = PushDelivery(committer, store, mesh, clock, on_wake=webhooks.nudge)
        public_hosts = PublicHosts(mesh.listed_hosts, settings.host)
        service = MeshService(committer, store, mesh, clock, delivery, public_hosts)
        chores = Chores(
            committer,
            store,
            mesh,
            clock,
            delivery=delivery,
            webhooks=webhooks,
            retention=Retention(committer, store, clock),
            endings=Endings(committer, store),
        )
        chores.start()
        return cls(service, chores, settings.administration_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return self._http.routes()

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
