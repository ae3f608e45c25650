"""The route that sends a channel as server-sent events (channels 6.5)."""

from functools import partial
from typing import Protocol

import msgspec

from tidelog.base.clock import Clock
from tidelog.base.serving.address_quota import AddressQuota
from tidelog.base.serving.surface import Handle, HttpRequest, HttpResponse, Route, Streamed, guarded
from tidelog.channels.front.api.openapi import CHANNEL, OPERATIONS
from tidelog.channels.front.sockets.listening import Listening
from tidelog.channels.protocol import fault, wire
from tidelog.channels.protocol.event_stream import Wanted
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.inbound import Refused
from tidelog.channels.protocol.signatures import Signed, read_query
from tidelog.channels.protocol.tokens import Claims, TokenRefused, verify
from tidelog.channels.protocol.version import SURFACE
from tidelog.channels.settings import App

ROUTE = ("GET", f"{CHANNEL}/stream")

FOR_PAGES = (b"access-control-allow-origin", b"*")
"""A page of any origin may listen if it has a token: no cookie could be borrowed for it."""

HEADERS = (
    FOR_PAGES,
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events until it has a buffer of them
)


class Listeners(Protocol):
    """What the route asks of channels."""

    def app(self, app_id: str) -> App | None:
        """The app of a path."""

    def is_revoked(self, app: App, claims: Claims) -> bool:
        """Whether a token was revoked."""

    def listener(
        self, app: App, wanted: Wanted, claims: Claims | None, quota: AddressQuota
    ) -> Listening:
        """A connection that is sent a channel; raises `Refused` or `Fault`."""


class Signatures(Protocol):
    """Whoever judges signed requests."""

    def judge(self, request: HttpRequest) -> Signed:
        """Who signed it; raises `Fault` if nobody did."""

    def check_rate(self, app: App) -> None:
        """Count a request; raises `Fault` if it is one too many."""


class EventStreams:
    """`GET /apps/{app_id}/channels/{channel}/stream`."""

    def __init__(self, service: Listeners, signatures: Signatures, clock: Clock) -> None:
        self._service = service
        self._signatures = signatures
        self._clock = clock

    def route(self) -> Route:
        """See `Surface.routes`."""
        return guarded(*ROUTE, self._admit, OPERATIONS[ROUTE], is_for_pages=True)

    async def _admit(self, request: HttpRequest) -> Handle | HttpResponse:
        try:
            query = read_query(request.query_string)
            claims = None
            if "token" in query:
                app, claims = self._bearer(request.params["app_id"], query["token"])
            else:
                signed = self._signatures.judge(request)
                signed.check_body(b"")
                app = signed.app
        except Fault as refused:
            return _refusal(refused)
        return partial(self._open, app, claims, query)

    def _bearer(self, app_id: str, token: str) -> tuple[App, Claims]:
        app = self._service.app(app_id)
        if app is None or not app.enabled:
            raise fault.auth_failed("the token is of no app that is served here")
        try:
            claims = verify(app, token, self._clock.now_ms() / 1000)
        except TokenRefused as error:
            raise fault.auth_failed(f"the token was refused: {error}") from None
        if self._service.is_revoked(app, claims):
            raise fault.auth_failed("the token was revoked")
        return app, claims

    async def _open(
        self, app: App, claims: Claims | None, query: dict[str, str], request: HttpRequest
    ) -> HttpResponse:
        try:
            if claims is None:
                self._signatures.check_rate(app)
            last_event_id = request.header(b"last-event-id")
            wanted = Wanted.from_request(request.params["channel"], query, last_event_id)
            listener = self._service.listener(app, wanted, claims, request.quota)
        except Fault as refused:
            return _refusal(refused)
        except Refused as refused:
            is_auth = refused.code == wire.UNAUTHORIZED
            make = fault.auth_failed if is_auth else fault.invalid_input
            return _refusal(make(str(refused)))
        return Streamed(
            200,
            content_type="text/event-stream; charset=utf-8",
            headers=HEADERS,
            conversation=listener,
            encode=listener.encode,
            quota=request.quota,
            slow_consumer_code=wire.OVER_CAPACITY,
            shutdown_code=wire.RECONNECT,
            path=ROUTE[1],
            surface=SURFACE,
        )


def _refusal(refused: Fault) -> HttpResponse:
    """In the usual envelope, and a page is told of it."""
    response = refused.response()
    return msgspec.structs.replace(response, headers=(*response.headers, FOR_PAGES))
