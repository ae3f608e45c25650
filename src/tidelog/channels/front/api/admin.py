"""Administration of channels over HTTP, for whoever runs the server: open streams, and erasure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from tidelog.base.clock import Clock
from tidelog.base.serving.surface import (
    Admit,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    guarded,
    is_bearer,
)
from tidelog.channels.front.api.openapi import ADMIN, OPERATIONS
from tidelog.channels.protocol import bodies, fault, requests
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.names import STREAM_PREFIX, split_stream, stream_name
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.requests import Asked, ForgetTarget
from tidelog.channels.protocol.version import version_serial
from tidelog.channels.stored import AFTER_ALL, PAGE_STREAMS, OpenStreamKey, has_app, open_streams
from tidelog.store.engine import Store

AdminHandler = Callable[[HttpRequest], Awaitable[object]]

MAX_DIGITS = 18
"""Of a number in a query."""

_encode = msgspec.json.Encoder().encode


class Service(Protocol):
    """What the routes ask of channels; either raises `Fault`."""

    async def forget(self, app_id: str, target: ForgetTarget, asked: Asked | None) -> bytes:
        """Erase something, or say how far that has come, as JSON."""

    async def close_stream(
        self, app_id: str, channel: str, message_serial: str, silent_ms: int
    ) -> bool:
        """End the stream of a message, if nobody has written to it for so long."""


class Admin:
    """The routes under `/channels/admin`; all need the admin token."""

    def __init__(
        self,
        service: Service,
        store: Store,
        clock: Clock,
        admin_token: str,
        log_tag: str,
        max_channel_name_bytes: int,
        apps: frozenset[str],
    ) -> None:
        """`apps` are the ids of those that are configured."""
        self._apps = apps
        self._service = service
        self._store = store
        self._tag = log_tag
        self._max_channel_name_bytes = max_channel_name_bytes
        self._clock = clock
        self._token = admin_token

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        handlers: dict[tuple[str, str], AdminHandler] = {
            ("GET", f"{ADMIN}/streams"): self._get_streams,
            ("POST", f"{ADMIN}/streams/close"): self._close_stream,
            ("POST", f"{ADMIN}/forget"): self._forget,
            ("GET", f"{ADMIN}/forget"): self._get_forgotten,
        }
        return tuple(
            guarded(method, path, self._guarded(handle), OPERATIONS[method, path])
            for (method, path), handle in handlers.items()
        )

    def _guarded(self, handle: AdminHandler) -> Admit:
        async def handled(request: HttpRequest) -> HttpResponse:
            try:
                return HttpResponse(200, _encode(await handle(request)))
            except Fault as refused:
                return refused.response()

        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            if is_bearer(request, self._token):
                return handled
            error = "send the admin token: Authorization: Bearer <admin_token>"
            return fault.auth_failed(error).response()

        return admit

    async def _get_streams(self, request: HttpRequest) -> object:
        query = dict(parse_qsl(request.query_string.decode("ascii", "replace")))
        if "app_id" in query:
            await self._require_app(_app(query["app_id"]))
        first, last = _range(query.get("app_id"), query.get("channel"))
        after = _key_of(query["cursor"]) if "cursor" in query else None
        if after is not None and after[0] < first:
            raise fault.invalid_input("cursor does not belong to this list")
        limit = _limit(query)
        page = await open_streams(self._store, after or (first, 0), last, MAX_INTEGER, limit)
        more = f"{page[-1].message}@{page[-1].stream}" if len(page) == limit else None
        now = self._clock.now_ms()
        return {
            "streams": [
                {
                    **dict(zip(("app_id", "channel"), split_stream(each.stream), strict=True)),
                    "message_serial": version_serial(self._tag, each.published_at, each.message),
                    "published_at_ms": each.published_at,
                    "written_at_ms": each.written_at,
                    "silent_seconds": max(0, now - each.written_at) / 1000,
                }
                for each in page
            ],
            "next_cursor": more,
        }

    async def _require_app(self, app_id: str) -> None:
        """Refuse a mistyped id; what is stored of an app outlives its configuration."""
        if app_id not in self._apps and not await has_app(self._store, app_id):
            known = f"; configured are {', '.join(sorted(self._apps)[:5])}" if self._apps else ""
            raise Fault(404, "not_found", f"there is no app {app_id!r}{known}")

    async def _close_stream(self, request: HttpRequest) -> object:
        given = requests.read_strictly(bodies.read_close_stream, request.body)
        closed = await self._service.close_stream(
            given.app_id, given.channel, given.message_serial, int(given.silent_seconds * 1000)
        )
        return {"closed": closed}

    async def _forget(self, request: HttpRequest) -> object:
        given = requests.read_strictly(bodies.read_admin_forget, request.body)
        target, asked = requests.order_of(given, self._max_channel_name_bytes)
        app_id = _app(given.app_id)
        await self._require_app(app_id)
        return Raw(await self._service.forget(app_id, target, asked))

    async def _get_forgotten(self, request: HttpRequest) -> object:
        query = dict(parse_qsl(request.query_string.decode("ascii", "replace")))
        target = requests.parse_forgotten(query, self._max_channel_name_bytes)
        app_id = _app(query.get("app_id", ""))
        return Raw(await self._service.forget(app_id, target, None))


def _app(app_id: str) -> str:
    """An id that an app can have."""
    if not app_id or "/" in app_id or "\0" in app_id:
        raise fault.invalid_input("app_id must be the id of an app")
    return app_id


def _range(app_id: str | None, channel: str | None) -> tuple[str, str]:
    """The first and the last stream of an app, of a channel, or of all."""
    if channel is not None:
        if app_id is None:
            raise fault.invalid_input("a channel is an app's: name app_id too")
        return (stream_name(app_id, channel),) * 2
    if app_id is not None:
        return stream_name(app_id, ""), f"{STREAM_PREFIX}{app_id}0"  # what follows the `/`
    return STREAM_PREFIX, AFTER_ALL


def _limit(query: Mapping[str, str]) -> int:
    limit = _whole(query.get("limit", str(PAGE_STREAMS)))
    if limit is None or not 1 <= limit <= PAGE_STREAMS:
        raise fault.invalid_input(f"limit must be a whole number from 1 to {PAGE_STREAMS}")
    return limit


def _key_of(cursor: str) -> OpenStreamKey:
    message, _, stream = cursor.partition("@")
    number = _whole(message)
    if number is None or not stream or "\0" in stream:
        raise fault.invalid_input("cursor must be the next_cursor of the previous page")
    return stream, number


def _whole(digits: str) -> int | None:
    """A number that both engines can hold; None if it is not one."""
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
    return int(digits) if is_number else None
