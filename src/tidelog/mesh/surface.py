"""The broker as a surface: the owner's half, the front's half, and the link between them."""

from collections.abc import Sequence

from tidelog.base.clock import ServerClock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.link.choice import connect
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


class MeshSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, owner: MeshOwner, service: MeshService, admin_token: str) -> None:
        self.owner = owner
        self.service = service
        self._http = MeshHttp(service, admin_token)

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: ServerClock
    ) -> "MeshSurface":
        """The broker on a running committer: both halves, and the link between them."""
        mesh = settings.mesh
        owner = MeshOwner(committer, store, mesh, clock)
        link = connect(owner, VOCABULARY)
        metrics = committer.metrics.part(MeshMetrics)
        public_hosts = PublicHosts(mesh.listed_hosts, settings.host)
        service = await MeshService.open(link, store, mesh, clock, metrics, public_hosts)
        owner.periodic.start()
        return cls(owner, service, settings.administration_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return self._http.routes()

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
