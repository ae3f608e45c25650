"""The signed HTTP API under `/apps`: who asks, what for, and the response in one envelope.

What goes wrong below (a full queue, a store that does not respond, a bug) is raised through
here: the web room returns it in the same envelope, and counts and logs it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from tidelog.base.allowance import Allowance
from tidelog.base.clock import Clock
from tidelog.base.serving.surface import Admit, Handle, HttpRequest, HttpResponse, Route, guarded
from tidelog.base.told import Told
from tidelog.base.until_told import until_told
from tidelog.channels.front.api.history import HistoryApi
from tidelog.channels.front.api.openapi import APP, CHANNEL, MESSAGE, OPERATIONS
from tidelog.channels.front.reads.message_reader import MessageReader
from tidelog.channels.protocol import fault, requests
from tidelog.channels.protocol.capabilities import history_off, versions_off
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.names import ChannelKind, kind_of
from tidelog.channels.protocol.requests import (
    OK,
    Asked,
    ForgetTarget,
    Mutation,
    MutationResult,
    Publication,
    Published,
)
from tidelog.channels.protocol.signatures import Signed, signed_by
from tidelog.channels.protocol.verbs import MUTATION_VERBS, MutationVerb
from tidelog.channels.settings import App, Channels

NOT_OFFERED = (
    ("GET", f"{CHANNEL}/presence/history", "Presence history"),
    ("GET", f"{CHANNEL}/presence/history/{{operation}}", "Presence history"),
    ("POST", f"{CHANNEL}/presence/history/{{operation}}", "Presence history"),
    ("GET", f"{MESSAGE}/annotations", "Annotations"),
    ("POST", f"{MESSAGE}/annotations", "Annotations"),
    ("DELETE", f"{MESSAGE}/annotations/{{annotation_serial}}", "Annotations"),
    *(
        (method, f"{APP}/push{rest}", "Push")
        for method in ("GET", "POST", "DELETE")
        for rest in ("/{kind}", "/{kind}/{name}", "/{kind}/{name}/{part}")
    ),
)
"""Routes the SDK knows and this server does not offer."""

Query = Mapping[str, str]
AppHandler = Callable[[App, HttpRequest, Query], Awaitable[bytes | Fault]]
HotHandler = Callable[[App, HttpRequest, Told[bytes]], None]
"""For what is asked so often that a task for each would cost much; it may raise a `Fault`, too."""

_encode = msgspec.json.Encoder().encode


class Service(Protocol):
    """What the routes ask of channels; bytes are finished JSON. A `Fault` is returned or raised."""

    @property
    def messages(self) -> MessageReader:
        """Messages by their serials."""

    @property
    def history_api(self) -> HistoryApi:
        """HistoryApi by their channels."""

    async def publish(
        self,
        app: App,
        publications: Sequence[Publication],
        *,
        request_key: str | None,
        is_batch: bool,
    ) -> Published | Fault:
        """Publish in order; `request_key` covers the whole request."""

    def begin_publish(
        self,
        app: App,
        publications: Sequence[Publication],
        *,
        request_key: str | None,
        is_batch: bool,
        told: Told[bytes],
    ) -> None:
        """The same, told."""

    async def mutate(self, app: App, mutation: Mutation) -> MutationResult | Fault:
        """Make the next version of a message."""

    def begin_mutation(self, app: App, mutation: Mutation, told: Told[MutationResult]) -> None:
        """The same, told."""

    async def emit_summary(
        self, app: App, channel: str, message_serial: str, socket_id: str | None
    ) -> bytes | Fault:
        """Send the figures to the subscribers, on behalf of a socket or of the server."""

    async def channels(self, app: App, prefix: str, info: frozenset[str]) -> bytes | Fault:
        """Occupied channels."""

    async def channel(self, app: App, channel: str, info: frozenset[str]) -> bytes | Fault:
        """One channel."""

    async def channel_users(self, app: App, channel: str) -> bytes | Fault:
        """Members of a presence channel."""

    async def terminate(self, app: App, user_id: str) -> None:
        """Close a user's sockets for good."""

    async def force_reconnect(self, app: App, user_id: str) -> None:
        """Close a user's sockets so that they come back."""

    async def revoke(self, app: App, jti: str | None, client_id: str | None) -> bytes | Fault:
        """Revoke a token, or all tokens of a client."""

    async def forget(self, app_id: str, target: ForgetTarget, asked: Asked | None) -> bytes | Fault:
        """Erase something, or say how far that has come if it is not asked for now."""


class ChannelsHttp:
    """The routes under `/apps`."""

    def __init__(
        self, service: Service, apps: Iterable[App], settings: Channels, clock: Clock
    ) -> None:
        self._service = service
        self._apps = {app.key: app for app in apps}
        self._settings = settings
        self._clock = clock
        self._allowances = {
            app.key: Allowance(app.max_api_requests_per_minute, clock.now_ms())
            for app in self._apps.values()
            if app.max_api_requests_per_minute
        }

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        handlers: dict[tuple[str, str], AppHandler] = {
            ("GET", f"{APP}/channels"): self._get_channels,
            ("GET", CHANNEL): self._get_channel,
            ("GET", f"{CHANNEL}/users"): self._get_users,
            ("POST", f"{APP}/users/{{user_id}}/terminate_connections"): self._terminate,
            ("POST", f"{APP}/users/{{user_id}}/force_reconnect"): self._force_reconnect,
            ("POST", f"{APP}/revocations"): self._revoke,
            ("POST", f"{APP}/forget"): self._forget,
            ("GET", f"{APP}/forget"): self._get_forgotten,
            ("GET", f"{CHANNEL}/history"): self._get_history,
            ("GET", f"{CHANNEL}/history/state"): self._get_history_state,
            ("POST", f"{CHANNEL}/history/reset"): self._reset_history,
            ("POST", f"{CHANNEL}/history/purge"): self._purge_history,
            ("GET", MESSAGE): self._get_message,
            ("GET", f"{MESSAGE}/versions"): self._get_versions,
            ("GET", f"{MESSAGE}/summary"): self._get_summary,
            ("POST", f"{MESSAGE}/summary"): self._emit_summary,
        }
        hot: dict[tuple[str, str], HotHandler] = {
            ("POST", f"{APP}/events"): self._publish,
            ("POST", f"{APP}/batch_events"): self._publish_batch,
            **{("POST", f"{MESSAGE}/{verb}"): self._mutation(verb) for verb in MUTATION_VERBS},
        }
        return (
            *(
                guarded(
                    *route,
                    self._signed(_awaited(begin)),
                    OPERATIONS[route],
                    answer=partial(self._answer, begin),
                )
                for route, begin in hot.items()
            ),
            *(
                guarded(method, path, self._signed(handle), OPERATIONS[method, path])
                for (method, path), handle in handlers.items()
            ),
            *(
                guarded(method, path, self._signed(_not_offered(what)))
                for method, path, what in NOT_OFFERED
            ),
        )

    def _signed(self, handle: AppHandler) -> Admit:
        """Only what an app has signed is handled, and only as often as it may ask."""

        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            try:
                signed = self.judge(request)
            except Fault as refused:
                return refused.response()
            return partial(self._handled, handle, signed)

        return admit

    def judge(self, request: HttpRequest) -> Signed:
        """Who signed a request, by its head.

        Raises:
            Fault: nobody did.
        """
        return signed_by(
            self._apps.get,
            request.params["app_id"],
            request.method,
            request.raw_path,
            request.query_string,
            self._clock.now_ms() / 1000,
        )

    def check_rate(self, app: App) -> None:
        """Count a request of an app.

        Raises:
            Fault: it is one too many.
        """
        allowance = self._allowances.get(app.key)
        if allowance is not None and (seconds := allowance.take(self._clock.now_ms())):
            raise fault.rate_limited(seconds)

    async def _handled(
        self, handle: AppHandler, signed: Signed, request: HttpRequest
    ) -> HttpResponse:
        app = signed.app
        try:
            signed.check_body(request.body)
            self.check_rate(app)
            answer = await handle(app, request, signed.query)
        except Fault as refused:
            return refused.response()
        return answer.response() if isinstance(answer, Fault) else HttpResponse(200, answer)

    def _answer(self, begin: HotHandler, request: HttpRequest, reply: Told[HttpResponse]) -> None:
        """Judge and handle a request at once; see `Route.answer`."""

        def told(outcome: bytes | Exception) -> None:
            if isinstance(outcome, bytes):
                reply(HttpResponse(200, outcome))
            else:
                reply(outcome.response() if isinstance(outcome, Fault) else outcome)

        try:
            signed = self.judge(request)
            signed.check_body(request.body)
            self.check_rate(signed.app)
            begin(signed.app, request, told)
        except Fault as refused:
            told(refused)

    def _publish(self, app: App, request: HttpRequest, told: Told[bytes]) -> None:
        header_key = requests.parse_header_key(request.header(b"x-idempotency-key"))
        publication = requests.parse_publication(request.body, header_key, self._settings)
        key = publication.idempotency_key
        self._service.begin_publish(app, (publication,), request_key=key, is_batch=False, told=told)

    def _publish_batch(self, app: App, request: HttpRequest, told: Told[bytes]) -> None:
        header_key = requests.parse_header_key(request.header(b"x-idempotency-key"))
        publications = requests.parse_batch(request.body, self._settings)
        self._service.begin_publish(
            app, publications, request_key=header_key, is_batch=True, told=told
        )

    async def _get_channels(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del request
        prefix = query.get("filter_by_prefix", "")
        info = requests.parse_info(query)
        if "user_count" in info and not prefix.startswith("presence-"):
            raise fault.invalid_input("user_count needs filter_by_prefix to begin with presence-")
        return await self._service.channels(app, prefix, info)

    async def _get_channel(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        channel = self._channel(request)
        info = requests.parse_info(query)
        if "user_count" in info and kind_of(channel) is not ChannelKind.PRESENCE:
            raise fault.invalid_input("user_count is only known of presence channels")
        return await self._service.channel(app, channel, info)

    async def _get_users(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        channel = self._channel(request)
        if kind_of(channel) is not ChannelKind.PRESENCE:
            raise fault.invalid_input("users are only known of presence channels")
        return await self._service.channel_users(app, channel)

    async def _terminate(self, app: App, request: HttpRequest, query: Query) -> bytes:
        del query
        requests.parse_socket(request.body)
        await self._service.terminate(app, request.params["user_id"])
        return OK

    async def _force_reconnect(self, app: App, request: HttpRequest, query: Query) -> bytes:
        del query
        requests.parse_socket(request.body)
        await self._service.force_reconnect(app, request.params["user_id"])
        return OK

    async def _revoke(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        given = requests.parse_revocation(request.body)
        return await self._service.revoke(app, given.jti, given.client_id)

    async def _forget(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        most = self._settings.max_channel_name_bytes
        target, asked = requests.parse_forget(request.body, most)
        return await self._service.forget(app.id, target, asked)

    async def _get_forgotten(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del request
        target = requests.parse_forgotten(query, self._settings.max_channel_name_bytes)
        return await self._service.forget(app.id, target, None)

    async def _get_history(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        channel = self._channel_with_history(request)
        page = requests.parse_history(query, self._settings.history.max_page_size)
        return await self._service.history_api.page(app, channel, page)

    async def _get_history_state(
        self, app: App, request: HttpRequest, query: Query
    ) -> bytes | Fault:
        del query
        return await self._service.history_api.state(app, self._channel_with_history(request))

    async def _reset_history(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        reset = requests.parse_reset(request.body, request.params["channel"])
        channel = self._channel_with_history(request)
        return await self._service.history_api.reset(app, channel, reset.reason, reset.requested_by)

    async def _purge_history(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        purge = requests.parse_purge(request.body, request.params["channel"])
        channel = self._channel_with_history(request)
        return await self._service.history_api.purge(
            app, channel, purge.mode, purge.bound, purge.reason, purge.requested_by
        )

    async def _get_message(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        return await self._service.messages.item(app, *self._message(request))

    async def _get_versions(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        channel, message_serial = self._message(request)
        page = requests.parse_versions(query, self._settings.versioned_messages.max_page_size)
        return await self._service.messages.versions(app, channel, message_serial, page)

    async def _get_summary(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        return await self._service.messages.summary(app, *self._message(request))

    async def _emit_summary(self, app: App, request: HttpRequest, query: Query) -> bytes | Fault:
        del query
        socket_id = requests.parse_socket(request.body)
        return await self._service.emit_summary(app, *self._message(request), socket_id)

    def _mutation(self, verb: MutationVerb) -> HotHandler:
        def mutate(app: App, request: HttpRequest, told: Told[bytes]) -> None:
            params = request.params
            mutation = requests.parse_mutation(
                verb,
                params["channel"],
                params["message_serial"],
                request.body,
                self._settings.max_message_values,
            )
            self._message(request)

            def made(result: MutationResult | Exception) -> None:
                told(result if isinstance(result, Exception) else mutation_body(mutation, result))

            self._service.begin_mutation(app, mutation, made)

        return mutate

    def _channel(self, request: HttpRequest) -> str:
        channel = request.params["channel"]
        requests.check_channel(channel, self._settings.max_channel_name_bytes)
        return channel

    def _channel_with_history(self, request: HttpRequest) -> str:
        channel = self._channel(request)
        if setting := history_off(self._settings.history, channel):
            raise fault.history_disabled(channel, setting)
        return channel

    def _message(self, request: HttpRequest) -> tuple[str, str]:
        """Channel and serial of the path, in the order of checks of channels 5.7."""
        named = (request.params["channel"], request.params["message_serial"])
        check_message(self._settings, *named)
        return named


def check_message(settings: Channels, channel: str, message_serial: str) -> None:
    """Refuse what can name no message.

    Raises:
        Fault: No channel has this name, or it has no versions, or no message has this serial.
    """
    requests.check_channel(channel, settings.max_channel_name_bytes)
    if setting := versions_off(settings, channel):
        raise fault.feature_disabled(channel, setting)
    requests.check_serial("message_serial", message_serial)


def mutation_body(mutation: Mutation, result: MutationResult) -> bytes:
    """The response to a mutation (channels 5.7)."""
    return _encode(
        {
            "channel": mutation.channel,
            "message_serial": mutation.message_serial,
            "action": mutation.verb,
            "accepted": True,
            "version_serial": result.version_serial,
            "history_serial": result.history_serial,
            "delivery_serial": result.delivery_serial,
            "status": "duplicate" if result.is_duplicate else "applied",
        }
    )


def _awaited(begin: HotHandler) -> AppHandler:
    async def handle(app: App, request: HttpRequest, query: Query) -> bytes:
        del query
        return await until_told(partial(begin, app, request))

    return handle


def _not_offered(what: str) -> AppHandler:
    async def refuse(app: App, request: HttpRequest, query: Query) -> Fault:
        del app, request, query
        return fault.not_offered(f"{what}: not offered by this server")

    return refuse
