"""The dashboard as a surface: its page, its JSON and its feed, mounted together."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

import msgspec

from tidelog import __version__
from tidelog.base.metric_totals import TOPIC as METRICS
from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import (
    Admit,
    Conversation,
    Endpoint,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    Surface,
    Upgrade,
    guarded,
)
from tidelog.config.settings import Settings
from tidelog.dashboard.access import (
    PATH,
    Access,
    Mode,
    has_own_origin,
    is_change,
    is_from_elsewhere,
)
from tidelog.dashboard.assets import NOT_KEPT, SAFE, Assets
from tidelog.dashboard.entries import MAX_LISTED, Filter, detail, listed
from tidelog.dashboard.feed import MAX_MESSAGE_BYTES, Feed, Page
from tidelog.dashboard.openapi import API, OPERATIONS
from tidelog.dashboard.sessions import EndedLogins
from tidelog.dashboard.views.channels import ChannelView
from tidelog.dashboard.views.mesh import MESH_PRESENT, MeshView
from tidelog.dashboard.views.outboxes import NoDaemon, OutboxView
from tidelog.dashboard.views.pipeline import PipelineView
from tidelog.dashboard.views.processes import ProcessView
from tidelog.dashboard.views.sync import SYNC_CLIENTS, SyncView
from tidelog.link.ends import FrontEnd
from tidelog.store.engine import Store

if TYPE_CHECKING:
    from tidelog.channels.surface import ChannelsFront
    from tidelog.client.mesh.http import Reply
    from tidelog.mesh.surface import MeshFront
    from tidelog.sync.surface import SyncFront

HOW_TO_OPEN = (
    "The dashboard is off: no admin token is set.\n\n"
    "Set one and start the server again:\n"
    "  TIDELOG_ADMIN_TOKEN=<a long random text> tidelog serve\n"
    'or admin_token = "..." in tidelog.toml. Or try tidelog on this machine: tidelog serve --dev\n'
)
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_POSITION = re.compile(r"[0-9]{1,18}")

Topics = Mapping[str, Callable[[], bytes]]
Gather = Callable[[str], Awaitable[Sequence[tuple[str, bytes]]]]
"""What every process of the server says of a topic, each with its name."""

Query = Mapping[str, str]
Handler = Callable[[HttpRequest, Query], Awaitable[object]]


class Refused(Exception):  # noqa: N818 - the failure is the noun
    """A request that is not answered as it asks."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RowAction(msgspec.Struct, frozen=True):
    """Body of a requeue or a drop."""

    id: str


class DashboardSurface:
    """What `tidelog serve` mounts after the others: the front's half, with its routes."""

    name = "dashboard"

    def __init__(
        self,
        link: FrontEnd,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        log_id: str,
        surfaces: Sequence[Surface],
        gather: Gather | None = None,
        ended: EndedLogins | None = None,
    ) -> None:
        """`surfaces` are those that are mounted already: it shows what they know.

        Other processes have the same, and `gather` asks them; None if there are none. `ended` are
        logins that this process has heard of before.
        """
        # By name: to import a surface that is not served would cost a third of the start.
        named = {surface.name: surface for surface in surfaces}
        channels = cast("ChannelsFront | None", named.get("channels"))
        sync = cast("SyncFront | None", named.get("sync"))
        mesh = cast("MeshFront | None", named.get("mesh"))
        self._store = store
        self._log_id = log_id
        self._has_playground = "playground" in named
        self._served = sorted(named.keys() - {"playground"})
        self._access = Access(settings, log_id, ended or EndedLogins())
        self._assets = Assets()
        self._gather = gather or self._own
        self._channels = ChannelView(store, settings, log_id, channels)
        self._sync = SyncView(sync)
        self._mesh = MeshView(store, mesh)
        self._processes = ProcessView(metrics)
        self._outbox = OutboxView()
        self._pipeline = PipelineView(*settings.lake)
        # What other processes have may change without anything that is seen here.
        has_others = gather is not None

        def others() -> int:
            return self._feed.ticks if has_others else 0

        self._feed: Feed = Feed(
            link,
            store,
            metrics,
            self._access,
            {
                "channels": lambda: (self._channels.signature(self._feed.position), others()),
                "sync": lambda: (self._sync.signature(), others()),
                "mesh": lambda: (self._mesh.signature(self._feed.commits), others()),
                "outbox": self._outbox.signature,
                "pipeline": self._pipeline.signature,
            },
            self._served,
        )

    @classmethod
    async def open(
        cls,
        link: FrontEnd,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        surfaces: Sequence[Surface],
        gather: Gather | None = None,
        ended: EndedLogins | None = None,
    ) -> "DashboardSurface":
        """The dashboard of a front; as of its constructor."""
        log_id = (await store.head()).log_id
        dashboard = cls(link, store, settings, metrics, log_id, surfaces, gather, ended)
        await dashboard._feed.open()
        return dashboard

    def topics(self) -> Topics:
        """What this process says of itself to whichever is asked."""
        return {
            SYNC_CLIENTS: self._sync.own,
            MESH_PRESENT: self._mesh.own,
            METRICS: self._processes.own,
        }

    async def _own(self, topic: str) -> Sequence[tuple[str, bytes]]:
        return [("server", self.topics()[topic]())]

    async def _of_all(self, topic: str) -> Sequence[bytes]:
        return [part for _, part in await self._gather(topic)]

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        reading: dict[str, Handler] = {
            f"{API}/state": self._get_state,
            f"{API}/processes": self._get_processes,
            f"{API}/log": self._get_log,
            f"{API}/entry/{{id}}": self._get_entry,
            f"{API}/channels": self._get_channels,
            f"{API}/messages": self._get_messages,
            f"{API}/versions": self._get_versions,
            f"{API}/sync": self._get_sync,
            f"{API}/mesh": self._get_meshes,
            f"{API}/mesh/{{id}}": self._get_mesh,
            f"{API}/outbox": self._get_daemons,
            f"{API}/outbox/{{daemon}}": self._get_outbox,
            f"{API}/pipeline": self._get_pipeline,
            f"{API}/search": self._get_search,
        }
        changing: dict[str, Handler] = {
            f"{API}/outbox/{{daemon}}/requeue": partial(self._change_row, self._outbox.requeue),
            f"{API}/outbox/{{daemon}}/drop": partial(self._change_row, self._outbox.drop),
        }
        open_to_all: dict[tuple[str, str], Handle] = {
            ("GET", PATH): self._get_page,
            **({} if self._has_playground else {("GET", "/"): self._lead_to_page}),
            ("GET", f"{PATH}/login"): self._get_login,
            ("POST", f"{PATH}/login"): self._log_in,
            ("POST", f"{PATH}/logout"): self._log_out,
            ("GET", f"{PATH}/static/{{file}}"): self._get_file,
        }
        judged = {
            **{("GET", path): self._guarded(handle) for path, handle in reading.items()},
            **{
                ("POST", path): self._guarded(handle, changes=True)
                for path, handle in changing.items()
            },
        }
        return (
            *(Route(*route, handle, OPERATIONS[route]) for route, handle in open_to_all.items()),
            *(guarded(*route, admit, OPERATIONS[route]) for route, admit in judged.items()),
        )

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return (Endpoint(f"{PATH}/feed", self._accept, MAX_MESSAGE_BYTES),)

    # Who asks.

    def _accept(self, upgrade: Upgrade) -> Conversation | HttpResponse:
        session = self._access.session(upgrade.headers)
        if session is None:
            return _json(401, {"error": "log in first"})
        if not has_own_origin(upgrade.headers):
            return _json(403, {"error": "only the dashboard's own page may follow the feed"})
        return Page(self._feed, session)

    def _guarded(self, handle: Handler, *, changes: bool = False) -> Admit:
        async def handled(request: HttpRequest) -> HttpResponse:
            query = dict(parse_qsl(request.query_string.decode("latin-1"), keep_blank_values=True))
            try:
                answer = await handle(request, query)
            except Refused as refused:
                return _json(refused.status, {"error": str(refused)})
            except NoDaemon as error:
                return _json(502, {"error": str(error)})
            return answer if isinstance(answer, HttpResponse) else _json(200, answer)

        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            if self._access.session(request.headers) is None:
                return _json(401, {"error": "log in first"})
            is_foreign = is_from_elsewhere(request.headers)
            if is_foreign or (changes and not is_change(request.headers)):
                return _json(403, {"error": "only the dashboard's own page may ask this"})
            return handled

        return admit

    async def _get_page(self, request: HttpRequest) -> HttpResponse:
        if self._access.mode is Mode.OFF:
            return _text(403, HOW_TO_OPEN)
        if self._access.session(request.headers) is not None:
            return self._assets.page("index.html")
        return _redirect(f"{PATH}/login")

    async def _lead_to_page(self, _request: HttpRequest) -> HttpResponse:
        return _redirect(PATH)

    async def _get_file(self, request: HttpRequest) -> HttpResponse:
        """They are the same in every installation; nothing of the log is in them."""
        return self._assets.file(request)

    async def _get_login(self, request: HttpRequest) -> HttpResponse:
        if self._access.mode is not Mode.TOKEN:
            return await self._get_page(request)
        return self._assets.page("login.html")

    async def _log_in(self, request: HttpRequest) -> HttpResponse:
        if is_from_elsewhere(request.headers):
            return _text(403, "only the dashboard's own page may log in\n")
        answer = request.quota.wait_seconds() or self._access.log_in(request)
        if answer is None:
            request.quota.failed()
            _log.warning("a login to the dashboard failed", extra={"peer": request.peer})
            return _redirect(f"{PATH}/login?wrong")
        if isinstance(answer, int):
            text = f"Too many wrong tokens. Wait {answer} s and try again.\n"
            return _text(429, text, (b"retry-after", b"%d" % answer))
        return _redirect(PATH, (b"set-cookie", answer))

    async def _log_out(self, request: HttpRequest) -> HttpResponse:
        if not is_change(request.headers):
            return _json(403, {"error": "only the dashboard's own page may log out"})
        forget, ended = self._access.log_out(request.headers)
        if ended is not None:
            await self._feed.log_out(ended)
        return _json(200, {}, (b"set-cookie", forget))

    # What is asked.

    async def _get_state(self, request: HttpRequest, query: Query) -> object:
        del request, query
        return {
            "version": __version__,
            "log_id": self._log_id,
            "surfaces": self._served,
            "is_open": self._access.mode is Mode.OPEN,
            "position": (await self._store.head()).committed_id,
        }

    async def _get_processes(self, request: HttpRequest, query: Query) -> object:
        del request, query
        return self._processes.processes(await self._gather(METRICS))

    async def _get_log(self, request: HttpRequest, query: Query) -> object:
        del request
        wanted = Filter(*(query.get(name, "") for name in ("surface", "stream", "kind", "actor")))
        before = _position(query, "before") or (await self._store.head()).committed_id + 1
        page = await listed(self._store, wanted, 0, before - 1, MAX_LISTED)
        return {"entries": page.entries, "low": page.low}

    async def _get_entry(self, request: HttpRequest, query: Query) -> object:
        del query
        position = _position(request.params, "id") or 0
        found = await detail(self._store, position) if position else None
        if found is None:
            raise Refused(404, "there is no such entry")
        return found

    async def _get_channels(self, request: HttpRequest, query: Query) -> object:
        del request
        return await self._channels.channels(query.get("prefix", ""))

    async def _get_messages(self, request: HttpRequest, query: Query) -> object:
        del request
        return await self._channels.messages(query.get("stream", ""), _position(query, "before"))

    async def _get_versions(self, request: HttpRequest, query: Query) -> object:
        del request
        return await self._channels.versions(query.get("message", ""), _position(query, "before"))

    async def _get_sync(self, request: HttpRequest, query: Query) -> object:
        del request, query
        return self._sync.clients(await self._of_all(SYNC_CLIENTS))

    async def _get_meshes(self, request: HttpRequest, query: Query) -> object:
        del request, query
        return await self._mesh.meshes()

    async def _get_mesh(self, request: HttpRequest, query: Query) -> object:
        del query
        return await self._mesh.mesh(request.params["id"], await self._of_all(MESH_PRESENT))

    async def _get_daemons(self, request: HttpRequest, query: Query) -> object:
        del request, query
        return await self._outbox.daemons()

    async def _get_outbox(self, request: HttpRequest, query: Query) -> object:
        return _of(await self._outbox.rows(request.params["daemon"], query.get("status", "")))

    async def _change_row(
        self,
        change: Callable[[str, str], Awaitable["Reply"]],
        request: HttpRequest,
        query: Query,
    ) -> object:
        del query
        try:
            row_id = msgspec.json.decode(request.body, type=RowAction).id
        except msgspec.MsgspecError:
            raise Refused(400, "the body names no row to change") from None
        return _of(await change(request.params["daemon"], row_id))

    async def _get_pipeline(self, request: HttpRequest, query: Query) -> object:
        del request, query
        return await self._pipeline.tables()

    async def _get_search(self, request: HttpRequest, query: Query) -> object:
        del request
        return await self._pipeline.search(query.get("q", ""))


def _position(values: Mapping[str, Any], name: str) -> int | None:
    """A position that was asked for; None if none was."""
    text = values.get(name, "")
    if not text:
        return None
    if not _POSITION.fullmatch(text):
        raise Refused(400, f"{name} is not a position")
    return int(text)


def _of(reply: "Reply") -> HttpResponse:
    """A daemon's answer as it is."""
    return _json(reply.status, reply.body)


def _json(status: int, body: object, *headers: tuple[bytes, bytes]) -> HttpResponse:
    return HttpResponse(status, _encode(body), headers=(*SAFE, NOT_KEPT, *headers))


def _text(status: int, text: str, *headers: tuple[bytes, bytes]) -> HttpResponse:
    kept = (*SAFE, NOT_KEPT, *headers)
    return HttpResponse(status, text.encode(), "text/plain; charset=utf-8", kept)


def _redirect(location: str, *headers: tuple[bytes, bytes]) -> HttpResponse:
    return _text(303, "", (b"location", location.encode()), *headers)
