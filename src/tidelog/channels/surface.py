"""Channels as a surface: the owner's half, the front's half, and the link between them."""

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.base.clock import Clock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.channels.front.api.admin import Admin
from tidelog.channels.front.api.event_stream import EventStreams
from tidelog.channels.front.api.proxy import Proxy
from tidelog.channels.front.api.routes import ChannelsHttp
from tidelog.channels.front.service import ChannelsService
from tidelog.channels.messages import VOCABULARY
from tidelog.channels.protocol.version import SURFACE
from tidelog.channels.settings import ServerSettings
from tidelog.channels.upkeep.owner import ChannelsOwner
from tidelog.link.choice import connect
from tidelog.log.committer import Committer
from tidelog.store.engine import Store


class Halves(NamedTuple):
    """Both halves in one process."""

    owner: ChannelsOwner
    front: ChannelsService


async def open_halves(
    committer: Committer, store: Store, settings: ServerSettings, clock: Clock
) -> Halves:
    """Channels on a running committer, without routes."""
    owner = await ChannelsOwner.open(committer, store, settings.channels, clock)
    link = connect(owner, VOCABULARY)
    return Halves(owner, await ChannelsService.open(link, store, settings, clock))


class ChannelsFront:
    """The front's half with its routes, wherever the owner's is."""

    name = SURFACE

    def __init__(self, service: ChannelsService, settings: ServerSettings, clock: Clock) -> None:
        self.service = service
        apps = settings.served_apps
        self._http = ChannelsHttp(service, apps, settings.channels, clock)
        self._event_streams = EventStreams(service, self._http, clock)
        self._proxy = Proxy(service, apps, settings.channels)
        self._admin = Admin(
            service,
            service.store,
            clock,
            settings.administration_token,
            service.log_tag,
            settings.channels.max_channel_name_bytes,
            frozenset(app.id for app in apps),
        )

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        streams = self._event_streams.route()
        return (*self._http.routes(), streams, *self._proxy.routes(), *self._admin.routes())

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()


class ChannelsSurface(ChannelsFront):
    """Both halves in one process: what `tidelog serve` mounts."""

    def __init__(self, halves: Halves, settings: ServerSettings, clock: Clock) -> None:
        super().__init__(halves.front, settings, clock)
        self.owner = halves.owner

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: Clock
    ) -> "ChannelsSurface":
        """Channels on a running committer."""
        return cls(await open_halves(committer, store, settings, clock), settings, clock)
