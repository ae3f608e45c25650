"""The playground as a surface: its page, what the page is told, and what it asks for."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl

import jwt
import msgspec
from msgspec import Meta, Struct

from tidelog.base.errors import TidelogError
from tidelog.base.serving.openapi import TEXT, Operation
from tidelog.base.serving.surface import (
    Endpoint,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    guarded,
)
from tidelog.config.settings import DEVELOPMENT_APP, DEVELOPMENT_JWT_SECRET, Settings
from tidelog.dashboard.access import is_change
from tidelog.dashboard.assets import NOT_KEPT, SAFE, Assets
from tidelog.playground.answers import Answers
from tidelog.playground.daemons import MEMBERS, Daemons

if TYPE_CHECKING:
    from tidelog.channels.settings import App

PATH = "/playground"
CHANNEL = "playground"
PARTITION = "playground"
TOKEN_SECONDS = 3600

MAX_TEXT = 2000
MAX_BODY_BYTES = 16 * 1024

Name = Annotated[str, Meta(pattern=r"^[a-z]{1,20}\Z")]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class Question(Struct, frozen=True):
    """What the stand-in for a model is asked, and by whom."""

    question: Text
    client_id: Name


class Message(Struct, frozen=True):
    """What one daemon is to send to the other."""

    sender: Name
    text: Text


class PlaygroundSurface:
    """Mounted by `tidelog serve --dev` before the dashboard, and by nothing else."""

    name = "playground"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._assets = Assets("tidelog.playground")
        has_app = DEVELOPMENT_APP in settings.served_apps
        self._app: App | None = DEVELOPMENT_APP if has_app else None
        self._answers = Answers(DEVELOPMENT_APP)
        self._no_mesh = _why_no_mesh(settings)
        self._daemons = None if self._no_mesh else Daemons(settings.administration_token)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        page = Operation(
            summary="With --dev the playground; else it leads to the dashboard.",
            tag="dashboard",
            answer=TEXT,
            media_type="text/html",
        )
        reads: dict[str, Handle] = {
            f"{PATH}/static/{{file}}": self._get_file,
            f"{PATH}/server": self._get_server,
            f"{PATH}/token": self._get_token,
            f"{PATH}/sync-token": self._get_sync_token,
            f"{PATH}/daemons": self._get_daemons,
        }
        changes: dict[str, Handle] = {
            f"{PATH}/answers": self._answer,
            f"{PATH}/daemons": self._start_daemons,
            f"{PATH}/sends": self._send,
        }
        return (
            Route("GET", "/", self._get_page, page),
            *(Route("GET", path, _told(handle)) for path, handle in reads.items()),
            *(
                msgspec.structs.replace(
                    guarded("POST", path, _from_our_page(handle)), max_body_bytes=MAX_BODY_BYTES
                )
                for path, handle in changes.items()
            ),
        )

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return ()

    # The page.

    async def _get_page(self, _request: HttpRequest) -> HttpResponse:
        return self._assets.page("index.html")

    async def _get_file(self, request: HttpRequest) -> HttpResponse:
        return self._assets.file(request)

    async def _get_server(self, request: HttpRequest) -> HttpResponse:
        """What everybody may know under `--dev`; a configured secret is never shown."""
        app, has_sync = self._app, self._settings.served_sync.jwt_secret == DEVELOPMENT_JWT_SECRET
        return _json(
            200,
            {
                "url": self._url(request),
                "app": app and {"id": app.id, "key": app.key, "secret": app.secret},
                "channel": CHANNEL,
                "sync": {"secret": DEVELOPMENT_JWT_SECRET} if has_sync else None,
                "partition": PARTITION,
                "members": MEMBERS,
                "no_mesh": self._no_mesh,
            },
        )

    async def _get_token(self, request: HttpRequest) -> HttpResponse:
        """Your own backend does this for the user who is logged in there."""
        app = self._app
        if app is None:
            return _json(404, {"error": "the development app is not served here"})
        from tidelog.client.channels.granting import Granting  # when it is used, as with answers

        allowed = {f"{CHANNEL}*": ["subscribe", "publish", "history", "run_cancel_any"]}
        granting = Granting(app.key, app.secret)
        token = granting.token(_client_id(request), allowed, lifetime_s=TOKEN_SECONDS)
        return _json(200, {"token": token})

    async def _get_sync_token(self, request: HttpRequest) -> HttpResponse:
        claims = {
            "client_id": _client_id(request),
            "exp": int(time.time()) + TOKEN_SECONDS,
            "allowed_partitions": [PARTITION],
        }
        return _json(200, {"token": jwt.encode(claims, DEVELOPMENT_JWT_SECRET, "HS256")})

    # What it asks for.

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        asked = msgspec.json.decode(request.body, type=Question)
        if self._app is None:
            return _json(404, {"error": "the development app is not served here"})
        if self._answers.is_full:
            return _json(429, {"error": "many answers are under way: stop one, or wait for it"})
        self._answers.begin(self._url(request), CHANNEL, asked.question, asked.client_id)
        return _json(202, {})

    async def _start_daemons(self, request: HttpRequest) -> HttpResponse:
        if self._daemons is None:
            return _json(404, {"error": self._no_mesh})
        await self._daemons.start(self._url(request))
        return _json(200, await self._daemons.shown())

    async def _get_daemons(self, _request: HttpRequest) -> HttpResponse:
        return _json(200, {} if self._daemons is None else await self._daemons.shown())

    async def _send(self, request: HttpRequest) -> HttpResponse:
        message = msgspec.json.decode(request.body, type=Message)
        if self._daemons is None or message.sender not in MEMBERS:
            return _json(400, {"error": f"the daemons are {' and '.join(MEMBERS)}"})
        return _json(200, await self._daemons.send(message.sender, message.text))

    def _url(self, request: HttpRequest) -> str:
        """The address by which this machine reaches the server that was asked."""
        scheme = "https" if self._settings.tls_certificate else "http"
        host, port = request.local or (self._settings.host, self._settings.port)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _why_no_mesh(settings: Settings) -> str:
    if settings.admin_token:
        return "This server has an admin token of its own, which no page may use."
    if settings.workers != 1:
        return "The page's daemons are run by a server of one process: tidelog serve --dev"
    return ""


def _from_our_page(handle: Handle) -> Callable[[HttpRequest], Awaitable[Handle | HttpResponse]]:
    """Only the page itself may have something done: another one on this machine may not."""

    async def admit(request: HttpRequest) -> Handle | HttpResponse:
        if not is_change(request.headers):
            return _json(403, {"error": "only the playground's own page may ask this"})
        return _told(handle)

    return admit


def _told(handle: Handle) -> Handle:
    """The same, with failures in words that the page shows."""

    async def handled(request: HttpRequest) -> HttpResponse:
        try:
            return await handle(request)
        except msgspec.MsgspecError as error:
            return _json(400, {"error": str(error)})
        except TidelogError as error:
            return _json(502, {"error": str(error)})

    return handled


def _client_id(request: HttpRequest) -> str:
    """Whom the page says its user is: under `--dev` everybody may be anybody."""
    query = dict(parse_qsl(request.query_string.decode("latin-1")))
    return msgspec.convert(query.get("client_id", "somebody"), Name)


def _json(status: int, body: object) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(body), headers=(*SAFE, NOT_KEPT))
