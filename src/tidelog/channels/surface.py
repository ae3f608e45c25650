"""Channels as a surface: sockets, the HTTP API and the helper proxy, mounted together."""

from collections.abc import Sequence

from tidelog.base.clock import Clock
from tidelog.base.serving.surface import Endpoint, Route
from tidelog.channels.front.api.admin import Admin
from tidelog.channels.front.api.event_stream import EventStreams
from tidelog.channels.front.api.proxy import Proxy
from tidelog.channels.front.api.routes import ChannelsHttp
from tidelog.channels.front.service import ChannelsService
from tidelog.channels.protocol.version import SURFACE
from tidelog.channels.settings import ServerSettings
from tidelog.log.committer import Committer
from tidelog.store.engine import Store


class ChannelsSurface:
    """What `tidelog serve` mounts."""

    name = SURFACE

    def __init__(self, service: ChannelsService, settings: ServerSettings, clock: Clock) -> None:
        self.service = service
        apps = settings.served_apps
        self._http = ChannelsHttp(service, apps, settings.channels, clock)
        self._event_streams = EventStreams(service, self._http, clock)
        self._proxy = Proxy(service, apps, settings.channels)
        self._admin = Admin(
            service.streams,
            service.erasing,
            clock,
            settings.administration_token,
            settings.channels.max_channel_name_bytes,
            frozenset(app.id for app in apps),
        )

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: Clock
    ) -> "ChannelsSurface":
        """Channels on a running committer."""
        service = await ChannelsService.open(committer, store, settings, clock)
        return cls(service, settings, clock)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        streams = self._event_streams.route()
        return (*self._http.routes(), streams, *self._proxy.routes(), *self._admin.routes())

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return self.service.endpoints()
