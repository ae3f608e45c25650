"""The surfaces of a server as its two kinds of programs open them: each half by itself."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import structs

from tidelog.base.clock import ServerClock
from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import Surface
from tidelog.config.settings import Settings
from tidelog.dashboard.schema import EXTENSION as DASHBOARD
from tidelog.dashboard.sessions import EndedLogins
from tidelog.link.ends import FrontEnd, OwnerHalf
from tidelog.link.message import Vocabulary
from tidelog.serve.gathering import GatheringFront
from tidelog.serve.server import Node
from tidelog.serve.workers import counted
from tidelog.store.engine import Store

EXTENSIONS = (DASHBOARD,)
"""What is in the store beside the surfaces below, in every process alike."""


class FrontNode(NamedTuple):
    """What a front's half is opened on, beside its link."""

    settings: Settings
    clock: ServerClock
    store: Store
    """Only to be read."""
    metrics: Metrics
    processes: GatheringFront
    mounted: list[Surface]
    """What was opened before."""
    ended_logins: EndedLogins
    """Of the dashboard; this process knows them longer than it has an owner."""


class Halved(NamedTuple):
    """A surface that may be in two processes."""

    vocabulary: Vocabulary
    open_owner: Callable[[Node], Awaitable[OwnerHalf]]
    open_front: Callable[[FrontNode, FrontEnd], Awaitable[Surface]]


def halved(settings: Settings) -> Sequence[Halved]:
    """Those that are served, in the order in which they are numbered on a link.

    The last is the dashboard, which shows what was mounted before it.
    """
    return [
        *([_channels()] if settings.served_apps else ()),
        *([_sync()] if settings.served_sync.is_served else ()),
        *([_mesh()] if settings.administration_token else ()),
        _dashboard(),
    ]


def whole(node: FrontNode) -> Sequence[Surface]:
    """Those that need no owner: they read, or ask the others."""
    settings, found = node.settings, list[Surface]()
    if settings.has_lake:
        from tidelog.web.search import SearchSurface

        found.append(SearchSurface(settings, settings.lake_path, node.store))
    if settings.dev:
        from tidelog.playground.surface import PlaygroundSurface

        found.append(PlaygroundSurface(settings))
    return found


def _channels() -> Halved:
    from tidelog.channels import surface
    from tidelog.channels.front.service import ChannelsService
    from tidelog.channels.messages import VOCABULARY
    from tidelog.channels.upkeep.owner import ChannelsOwner

    async def open_owner(node: Node) -> OwnerHalf:
        settings, clock, store, committer = node
        fronts = counted(settings.workers)
        return await ChannelsOwner.open(committer, store, settings.channels, clock, fronts=fronts)

    async def open_front(node: FrontNode, link: FrontEnd) -> Surface:
        settings, clock, store = node[:3]
        service = await ChannelsService.open(link, store, settings, clock)
        return surface.ChannelsFront(service, settings, clock)

    return Halved(VOCABULARY, open_owner, open_front)


def _sync() -> Halved:
    from tidelog.sync import surface
    from tidelog.sync.front.service import SyncService
    from tidelog.sync.messages import VOCABULARY
    from tidelog.sync.upkeep.owner import SyncOwner

    async def open_owner(node: Node) -> OwnerHalf:
        settings, _, store, committer = node
        sync = settings.served_sync
        rules = surface.Rules.of(sync, committer.metrics)
        return await SyncOwner.open(committer, store, sync, *rules)

    async def open_front(node: FrontNode, link: FrontEnd) -> Surface:
        settings, clock, store, metrics = node[:4]
        settings = structs.replace(settings, sync=settings.served_sync)
        rules = surface.Rules.of(settings.sync, metrics)
        service = await SyncService.open(link, store, settings.sync, clock, *rules)
        return surface.SyncFront(service, settings.administration_token)

    return Halved(VOCABULARY, open_owner, open_front)


def _mesh() -> Halved:
    from tidelog.mesh import surface
    from tidelog.mesh.messages import VOCABULARY
    from tidelog.mesh.upkeep.owner import MeshOwner

    async def open_owner(node: Node) -> OwnerHalf:
        settings, clock, store, committer = node
        owner = MeshOwner(committer, store, settings.mesh, clock)
        owner.periodic.start()
        return owner

    async def open_front(node: FrontNode, link: FrontEnd) -> Surface:
        service = await surface.open_service(
            link, node.store, node.settings, node.clock, node.metrics
        )
        return surface.MeshFront(service, node.settings.administration_token)

    return Halved(VOCABULARY, open_owner, open_front)


def _dashboard() -> Halved:
    from tidelog.dashboard.messages import VOCABULARY
    from tidelog.dashboard.owner import DashboardOwner
    from tidelog.dashboard.surface import DashboardSurface

    async def open_owner(node: Node) -> OwnerHalf:
        return DashboardOwner(node.committer, node.clock, has_many_fronts=True)

    async def open_front(node: FrontNode, link: FrontEnd) -> Surface:
        async def gather(topic: str) -> Sequence[tuple[str, bytes]]:
            return [(each.process, each.payload) for each in await node.processes.gather(topic)]

        settings, _, store, metrics, processes, mounted, ended = node
        mounted.extend(whole(node))
        dashboard = await DashboardSurface.open(
            link, store, settings, metrics, mounted, gather, ended
        )
        processes.add(dashboard.topics())
        return dashboard

    return Halved(VOCABULARY, open_owner, open_front)
