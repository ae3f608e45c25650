"""The broker as a surface: sockets and the HTTP API, mounted together."""

from collections.abc import Sequence

from tidelog.base.clock import ServerClock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.log.committer import Committer
from tidelog.mesh.front.delivery import PushDelivery
from tidelog.mesh.front.http import MeshHttp
from tidelog.mesh.front.public_hosts import PublicHosts
from tidelog.mesh.front.service import MeshService
from tidelog.mesh.protocol.model import SURFACE
from tidelog.mesh.settings import ServerSettings
from tidelog.mesh.upkeep.delivery_closer import DeliveryCloser
from tidelog.mesh.upkeep.lease_reaper import LeaseReaper
from tidelog.mesh.upkeep.periodic import PeriodicWork
from tidelog.mesh.upkeep.retention import Retention
from tidelog.mesh.upkeep.webhooks import Webhooks
from tidelog.store.engine import Store


class MeshSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, service: MeshService, periodic: PeriodicWork, admin_token: str) -> None:
        self.service = service
        self.periodic = periodic
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
        periodic = PeriodicWork(
            committer,
            store,
            mesh,
            clock,
            reaper=LeaseReaper(committer, store, clock, delivery.wake_waiting),
            webhooks=webhooks,
            retention=Retention(committer, store, clock),
            closer=DeliveryCloser(committer, store),
        )
        periodic.start()
        return cls(service, periodic, settings.administration_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return self._http.routes()

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
