"""The broker as a surface: the owner's half, the front's half, and the link between them."""

from collections.abc import Sequence

from tidelog.base.clock import ServerClock
from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.link.choice import connect
from tidelog.link.ends import FrontEnd
from tidelog.log.committer import Committer
from tidelog.mesh.front.http import MeshHttp
from tidelog.mesh.front.public_hosts import PublicHosts
from tidelog.mesh.front.service import MeshService
from tidelog.mesh.messages import VOCABULARY
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol.model import SURFACE
from tidelog.mesh.settings import ServerSettings
from tidelog.mesh.upkeep.owner import MeshOwner
from tidelog.store.engine import Store


class MeshFront:
    """The front's half with its routes, wherever the owner's is."""

    name = SURFACE

    def __init__(self, service: MeshService, admin_token: str) -> None:
        self.service = service
        self._http = MeshHttp(service, admin_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return self._http.routes()

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()


async def open_service(
    link: FrontEnd, store: Store, settings: ServerSettings, clock: ServerClock, metrics: Metrics
) -> MeshService:
    """The front's half on a link to the owner's, without routes."""
    mesh = settings.mesh
    public_hosts = PublicHosts(mesh.listed_hosts, settings.host)
    part = metrics.part(MeshMetrics)
    return await MeshService.open(link, store, mesh, clock, part, public_hosts)


class MeshSurface(MeshFront):
    """Both halves in one process: what `tidelog serve` mounts."""

    def __init__(self, owner: MeshOwner, service: MeshService, admin_token: str) -> None:
        super().__init__(service, admin_token)
        self.owner = owner

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: ServerClock
    ) -> "MeshSurface":
        """The broker on a running committer."""
        owner = MeshOwner(committer, store, settings.mesh, clock)
        link = connect(owner, VOCABULARY)
        service = await open_service(link, store, settings, clock, committer.metrics)
        owner.periodic.start()
        return cls(owner, service, settings.administration_token)
