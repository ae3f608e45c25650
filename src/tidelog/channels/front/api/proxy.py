"""The helper proxy of the client libraries (channels 9.2): no signature, but a token.

`sockudo-python` reads history and mutates messages through an endpoint of the application, because
a client must not hold the app's secret. These routes are such an endpoint for tests and small
installations. They know no users: whoever holds the proxy token acts as the app's own server, so
they are off unless `channels.proxy_enabled` and `channels.proxy_token` are both set.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from tidelog.base.serving.surface import (
    Admit,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    guarded,
    is_bearer,
)
from tidelog.channels.front.api.openapi import OPERATIONS, PROXY
from tidelog.channels.front.api.routes import Service, check_message
from tidelog.channels.protocol import bodies, fault, requests
from tidelog.channels.protocol.capabilities import history_off
from tidelog.channels.protocol.extras import compact
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.verbs import MutationVerb
from tidelog.channels.settings import App, Channels

T = TypeVar("T")
ProxyHandler = Callable[[App, bytes], Awaitable[bytes]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Proxy:
    """The two routes, if they are switched on."""

    def __init__(self, service: Service, apps: Iterable[App], settings: Channels) -> None:
        self._service = service
        self._apps = {app.id: app for app in apps}
        self._settings = settings
        self._max_values = settings.max_message_values

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        if not (self._settings.proxy_enabled and self._settings.proxy_token):
            return ()
        handlers: dict[tuple[str, str], ProxyHandler] = {
            ("POST", f"{PROXY}/history"): self._history,
            ("POST", f"{PROXY}/messages"): self._message,
        }
        return tuple(
            guarded(method, path, self._guarded(handle), OPERATIONS[method, path])
            for (method, path), handle in handlers.items()
        )

    def _guarded(self, handle: ProxyHandler) -> Admit:
        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            if not is_bearer(request, self._settings.proxy_token):
                error = "send the proxy token: Authorization: Bearer <channels.proxy_token>"
                return fault.auth_failed(error).response()
            app = self._apps.get(request.params["app_id"])
            if app is None or not app.enabled:
                return Fault(404, "app_not_found", "No app has this id").response()
            return partial(_handled, handle, app)

        return admit

    async def _history(self, app: App, body: bytes) -> bytes:
        given = requests.read_strictly(bodies.read_proxy_history, body, self._max_values)
        channel = given.channel
        requests.check_channel(channel, self._settings.max_channel_name_bytes)
        if setting := history_off(self._settings.history, channel):
            raise fault.history_disabled(channel, setting)
        query, attach_serial = history_query(given.params, self._settings.history.max_page_size)
        page = await self._service.history_api.page(app, channel, query)
        if attach_serial is None:
            return page
        return b'{"attach_serial":%d,%b' % (attach_serial, page[1:])

    async def _message(self, app: App, body: bytes) -> bytes:
        given = requests.read_strictly(bodies.read_proxy, body, self._max_values)
        if given.action == "create":
            ack = await self._create(app, given)
        else:
            ack = await self._mutate(app, given, given.action)
        return _encode({"ack": {"action": given.action, "channel": given.channel, **ack}})

    async def _create(self, app: App, given: bodies.ProxyBody) -> dict[str, Any]:
        params = given.params
        event = {
            "name": params.event,
            "data": params.data,
            "channel": given.channel,
            "info": "subscription_count",
            "message_id": params.message_id,
            "extras": params.extras,
        }
        publication = requests.parse_publication(_given_only(event), None, self._settings)
        published = await self._service.publish(
            app, (publication,), request_key=None, is_batch=False
        )
        receipt = _decode(_unless_refused(published).body)["channels"][given.channel]
        return {
            "event": params.event,
            "message_id": receipt.pop("acknowledgement_id", None),
            **{name: value for name, value in receipt.items() if name.endswith("_serial")},
        }

    async def _mutate(
        self, app: App, given: bodies.ProxyBody, verb: MutationVerb
    ) -> dict[str, Any]:
        params = given.params
        if params.message_id is None:
            raise fault.invalid_input("params.message_id is required: the message's serial")
        change = {
            "name": params.event if verb == "update" else None,
            "data": _as_text(params.data) if verb == "update" else params.data,
            "extras": params.extras,
            "description": params.reason,
        }
        mutation = requests.parse_mutation(
            verb,
            given.channel,
            params.message_id,
            _given_only(change),
            self._max_values,
        )
        check_message(self._settings, given.channel, params.message_id)
        result = _unless_refused(await self._service.mutate(app, mutation))
        return {
            "event": params.event,
            "message_id": params.message_id,
            "message_serial": params.message_id,
            "version_serial": result.version_serial,
            "history_serial": result.history_serial,
            "delivery_serial": result.delivery_serial,
            "status": "duplicate" if result.is_duplicate else "applied",
        }


async def _handled(handle: ProxyHandler, app: App, request: HttpRequest) -> HttpResponse:
    try:
        return HttpResponse(200, await handle(app, request.body))
    except Fault as refused:
        return refused.response()


def history_query(params: Mapping[str, Any], max_page_size: int) -> tuple[HistoryQuery, int | None]:
    """What a client library asks for, with its attach serial as the end if it says so.

    Raises:
        Fault: A parameter is not what it must be.
    """
    asked = {
        name: value
        for name, value in params.items()
        if name not in ("until_attach", "attach_serial")
    }
    try:
        query = HistoryQuery.from_frame(asked, max_page_size)
    except ValueError as error:
        raise fault.invalid_input(str(error)) from None
    attach_serial = params.get("attach_serial")
    if attach_serial is not None and not (type(attach_serial) is int and attach_serial >= 0):
        raise fault.invalid_input("attach_serial must be a whole number")
    if not params.get("until_attach"):
        return query, attach_serial
    if attach_serial is None:
        raise fault.invalid_input("until_attach needs attach_serial")
    ends = [end for end in (query.end_serial, attach_serial) if end is not None]
    return msgspec.structs.replace(query, end_serial=min(ends)), attach_serial


def _given_only(members: Mapping[str, object]) -> bytes:
    """A JSON object of those members that have a value."""
    return _encode(
        {name: value for name, value in members.items() if value is not None and value is not UNSET}
    )


def _as_text(data: Raw | msgspec.UnsetType) -> Raw | str | msgspec.UnsetType:
    """A value as a create would store it: a message's data does not change its type."""
    if data is UNSET or bytes(data).startswith(b'"') or bytes(data) == b"null":
        return data
    return compact(bytes(data)).decode()


def _unless_refused(answer: T | Fault) -> T:
    if isinstance(answer, Fault):
        raise answer
    return answer
