"""One channels connection as a state machine: messages in, actions out; no sockets, no clock.

Everything that can be decided without other sockets and without the log is decided here: names,
signatures, capabilities, sizes and rates. A failure is an error frame and leaves the socket open,
except where a token is at fault.
"""

import math
from typing import Any, NamedTuple

import msgspec

from tidelog.base.errors import InvalidJson
from tidelog.channels.protocol import fault, runs, wire
from tidelog.channels.protocol.actions import (
    Action,
    ClientEvent,
    Close,
    Member,
    Ping,
    Position,
    PresenceUpdate,
    PublishEvent,
    ReadHistory,
    Resume,
    Rewind,
    Send,
    SignedIn,
    Subscribe,
    TokenAccepted,
    Unsubscribe,
)
from tidelog.channels.protocol.capabilities import (
    RUN_CANCEL_ANY,
    Actor,
    Capabilities,
    history_off,
)
from tidelog.channels.protocol.extras import with_transport
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.inbound import (
    Refused,
    raw_user_info,
    read_member,
    read_positions,
    read_rewind,
    read_user,
)
from tidelog.channels.protocol.names import (
    ChannelKind,
    kind_of,
    name_fault,
    needs_auth,
    takes_client_events,
    user_of,
)
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.requests import Publication, parse_frame
from tidelog.channels.protocol.signatures import is_channel_auth, is_signin_auth
from tidelog.channels.protocol.tokens import (
    EXPIRED,
    REVOKED,
    Claims,
    TokenRefused,
    is_id,
    verify,
)
from tidelog.channels.protocol.wire import (
    CHANNEL_ERROR,
    CLIENT_EVENT_REJECTED,
    MALFORMED,
    PONG_MISSING,
    UNAUTHORIZED,
    V1,
    V2,
    AppendMode,
    Inbound,
    ProtocolVersion,
)
from tidelog.channels.settings import App, set_by
from tidelog.channels.settings import Channels as ChannelsSettings

MAX_HISTORY_READS = 2
"""Pages of history one socket may wait for: each is held in memory until it is sent."""

MESSAGES = {
    wire.APP_UNKNOWN: "Application does not exist",
    wire.APP_DISABLED: "Application is disabled" + set_by("apps.enabled"),
    wire.OVER_QUOTA: "Application is over its connection quota" + set_by("apps.max_connections"),
    wire.UNAUTHORIZED: "Connection not authorized",
    wire.OVER_CAPACITY: "Over capacity",
    wire.RECONNECT: "Reconnect immediately",
    wire.PONG_MISSING: "Pong reply not received",
}
"""What is said when a connection is closed with a code of channels 1.5."""


def refusal(
    frames: Frames, version: ProtocolVersion, code: int, message: str | None = None
) -> list[Action]:
    """An error frame and a close of the same code, for connections that never get a session."""
    text = MESSAGES.get(code, "") if message is None else message
    return [Send(frames.error(version, code, text)), Close(code, text)]


class _Window(NamedTuple):
    """A second and what was counted in it."""

    started: float
    events: int


class Session:
    """The server's end of one connection."""

    def __init__(
        self,
        app: App,
        settings: ChannelsSettings,
        frames: Frames,
        *,
        socket_id: str,
        version: ProtocolVersion,
        append_mode: AppendMode = "delta",
        echo: bool = True,
        token: Claims | None = None,
        now: float,
    ) -> None:
        self.app = app
        self.socket_id = socket_id
        self.version: ProtocolVersion = version
        self.append_mode: AppendMode = append_mode
        self.echo = echo
        self.claims = token
        """Of the token; None on a socket without one."""
        self.user_id: str | None = None
        """Who signed in; None otherwise."""
        self.capabilities: Capabilities | None = token.capabilities if token else None
        """None on a socket that neither signed in nor has a token."""
        self.subscribed: dict[str, Member | None] = {}
        """Channels, and who this socket is on those with presence."""
        self.failures = 0
        """Signatures and tokens that proved nothing."""
        self.closed = False
        self._settings = settings
        self._frames = frames
        self._joining: dict[str, Member | None] = {}
        """Asked for, neither `joined` nor `left` yet, and not subscribed to before; they count."""
        self._presence_id: str | None = None
        self._history_reads = 0
        self._window = _Window(now, 0)
        self._heard_at = now
        self._pinged_at: float | None = None
        self._expired_at: float | None = None
        """When the client was told that its token has expired."""

    @property
    def client_id(self) -> str | None:
        """Who this socket speaks for: by sign-in, else by token, else by presence."""
        if self.user_id is not None:
            return self.user_id
        return self._presence_id if self.claims is None else self.claims.client_id

    @property
    def actor(self) -> Actor:
        """What a mutation in the name of this socket is judged by."""
        return Actor(self.client_id, self.capabilities)

    # What happens to it.

    def opening(self) -> list[Action]:
        """The connection is open."""
        timeout = max(1, math.ceil(self._settings.activity_timeout_seconds))
        return [Send(self._frames.connection_established(self.version, self.socket_id, timeout))]

    def receive(
        self, payload: bytes, *, is_text: bool, now: float, unix_now: float
    ) -> list[Action]:
        """A message came; `now` is a steady clock in seconds, `unix_now` is what `exp` means."""
        if self.closed:
            return []
        self._heard(now)
        try:
            if not is_text:
                raise Refused(MALFORMED, "messages must be text frames")
            return self._handle(self._parse(payload), now, unix_now)
        except (InvalidJson, msgspec.DecodeError) as error:
            return [self._error(MALFORMED, str(error))]
        except Refused as refused:
            if refused.is_fatal:
                return self.end(refused.code, str(refused))
            return [self._error(refused.code, str(refused))]

    def _parse(self, payload: bytes) -> Inbound:
        return wire.parse(payload, self._settings.max_message_values)

    def due(self, now: float, unix_now: float, heard_at: float | None = None) -> list[Action]:
        """Time passed: ping a silent peer, close one that stays silent, end a token.

        Args:
            now: the steady clock.
            unix_now: Unix seconds.
            heard_at: when a frame of any kind came last, by the steady clock; answers to a
                WebSocket ping do not come through `receive`.
        """
        if self.closed:
            return []
        if heard_at is not None and heard_at > self._heard_at:
            self._heard(heard_at)
        actions: list[Action] = []
        if self.claims is not None and unix_now >= self.claims.expires_at:
            if self._expired_at is None:
                self._expired_at = now
                actions.append(Send(self._frames.token_expired(EXPIRED, "expired")))
            elif now - self._expired_at >= self._settings.token_grace_seconds:
                return self.end(UNAUTHORIZED, "the token has expired")
        if self._pinged_at is not None:
            if now - self._pinged_at >= self._settings.pong_timeout_seconds:
                return [*actions, *self.end(PONG_MISSING)]
        elif now - self._heard_at >= self._settings.activity_timeout_seconds:
            self._pinged_at = now
            actions.append(Ping() if self.version == V2 else Send(wire.PUSHER_PING))
        return actions

    def check_subscription(self, fields: dict[str, Any]) -> None:
        """Judge a subscribe that is yet to come, by its data.

        Raises:
            Refused: it would be refused.
        """
        self._subscription(fields["channel"], fields)

    def joined(self, channel: str, member: Member | None) -> None:
        """What `Subscribe` asked for is done."""
        self._joining.pop(channel, None)
        self.subscribed[channel] = member
        if member is not None and self._presence_id is None:
            self._presence_id = member.user_id

    def left(self, channel: str) -> None:
        """It is not, or not any longer, subscribed to a channel."""
        self._joining.pop(channel, None)
        self.subscribed.pop(channel, None)

    def history_done(self) -> None:
        """The page that `ReadHistory` asked for was sent, or why there is none."""
        self._history_reads -= 1

    def revoke(self) -> list[Action]:
        """Its token was revoked."""
        if self.closed:
            return []
        self.closed = True
        return [
            Send(self._frames.token_expired(REVOKED, "revoked")),
            Close(UNAUTHORIZED, "the token was revoked"),
        ]

    def end(self, code: int, message: str | None = None) -> list[Action]:
        """Close it with an error frame and a code such as `UNAUTHORIZED` or `RECONNECT`."""
        if self.closed:
            return []
        self.closed = True
        return refusal(self._frames, self.version, code, message)

    def _heard(self, now: float) -> None:
        self._heard_at, self._pinged_at = now, None

    def _error(self, code: int, message: str) -> Send:
        return Send(self._frames.error(self.version, code, message))

    # Messages.

    def _handle(self, inbound: Inbound, now: float, unix_now: float) -> list[Action]:
        name = wire.system_name(inbound.event)
        if name is None:
            if inbound.event.startswith("client-"):
                return [self._client_event(inbound, now)]
            if inbound.event.startswith(runs.PREFIX):
                return [self._run_event(inbound, now)]
            return []
        match name:
            case "ping":
                return [Send(wire.PONGS[self.version])]
            case "subscribe":
                return self._subscribe(inbound)
            case "unsubscribe":
                return self._unsubscribe(inbound)
            case "signin":
                return self._sign_in(inbound)
            case "resume":
                return [self._resume(inbound)]
            case "auth":
                return self._renew(inbound, unix_now)
            case "presence_update":
                return [self._presence_update(inbound, now)]
            case "channel_history":
                return [self._history(inbound)]
            case _:
                return []

    def _need_v2(self, code: int = CHANNEL_ERROR) -> None:
        if self.version == V1:
            raise Refused(code, "this needs protocol 2")

    def _allows(self, operation: str, channel: str) -> bool:
        """A socket that was granted nothing is bound by the channels' own rules only."""
        return self.capabilities is None or self.capabilities.allows(operation, channel)

    # Subscriptions.

    def _subscribe(self, inbound: Inbound) -> list[Action]:
        fields = inbound.fields()
        channel = fields.get("channel")
        if not isinstance(channel, str):
            raise Refused(MALFORMED, "channel is missing")
        try:
            action = self._subscription(channel, fields)
        except Refused as refused:
            is_auth = refused.code == UNAUTHORIZED
            frame = self._frames.subscription_error(
                self.version,
                channel,
                str(refused),
                kind="AuthError" if is_auth else "ChannelError",
                status=401 if is_auth else 400,
            )
            return [self._error(refused.code, str(refused)), Send(frame)]
        if channel not in self.subscribed:
            self._joining[channel] = action.member
        return [action]

    def _subscription(self, channel: str, fields: dict[str, Any]) -> Subscribe:
        self._check_name(channel)
        if not self._is_held(channel):
            held = len(self.subscribed) + len(self._joining)
            if held >= self._settings.max_subscriptions_per_connection:
                text = "too many subscriptions on this connection"
                setting = set_by("channels.max_subscriptions_per_connection")
                raise Refused(CHANNEL_ERROR, text + setting)
        kind = kind_of(channel)
        channel_data = self._check_auth(kind, channel, fields)
        if not self._may_subscribe(kind, channel):
            raise Refused(UNAUTHORIZED, f"Not allowed to subscribe to channel '{channel}'")
        member = None if channel_data is None else self._member(channel, channel_data)
        return Subscribe(channel, member, self._rewind(channel, fields.get("rewind")))

    def _check_name(self, channel: str) -> None:
        problem = name_fault(channel, self._settings.max_channel_name_bytes)
        if problem is not None:
            raise Refused(CHANNEL_ERROR, problem)

    def _check_auth(self, kind: ChannelKind, channel: str, fields: dict[str, Any]) -> str | None:
        """Check the signature; returns the signed `channel_data` of a presence channel."""
        if not needs_auth(kind):
            return None
        channel_data = None
        if kind is ChannelKind.PRESENCE:
            channel_data = fields.get("channel_data")
            if not isinstance(channel_data, str):
                raise Refused(CHANNEL_ERROR, "channel_data is missing")
        auth = fields.get("auth")
        if not isinstance(auth, str) or not is_channel_auth(
            self.app, auth, self.socket_id, channel, channel_data
        ):
            self.failures += 1
            raise Refused(UNAUTHORIZED, f"Invalid signature for channel '{channel}'")
        return channel_data

    def _may_subscribe(self, kind: ChannelKind, channel: str) -> bool:
        if kind is ChannelKind.USER:
            return self.user_id is not None and user_of(channel) == self.user_id
        return self._allows("subscribe", channel) and (
            kind is not ChannelKind.PRESENCE or self._allows("presence", channel)
        )

    def _member(self, channel: str, channel_data: str) -> Member:
        member = read_member(channel_data, self._settings.max_presence_user_info_bytes)
        present = self.subscribed.get(channel) or self._joining.get(channel)
        if present is None:
            return member
        if present.user_id != member.user_id:
            raise Refused(CHANNEL_ERROR, "already subscribed as another member")
        return present

    def _rewind(self, channel: str, wish: Any) -> Rewind | None:
        rewind = read_rewind(wish)
        if rewind is None:
            return None
        self._need_v2()
        setting = history_off(self._settings.history, channel)
        if not self._settings.rewind_enabled:
            setting = "channels.rewind_enabled"
        if setting is not None:
            text = f"Rewind is disabled for channel '{channel}'"
            raise Refused(CHANNEL_ERROR, text + set_by(setting))
        self._need_history(channel)
        return rewind

    def _unsubscribe(self, inbound: Inbound) -> list[Action]:
        channel = inbound.fields().get("channel")
        if not isinstance(channel, str):
            raise Refused(MALFORMED, "channel is missing")
        return [Unsubscribe(channel)]

    def _is_held(self, channel: str) -> bool:
        return channel in self.subscribed or channel in self._joining

    # Identity.

    def _sign_in(self, inbound: Inbound) -> list[Action]:
        if not self.app.enable_user_authentication:
            setting = set_by("apps.enable_user_authentication")
            raise Refused(UNAUTHORIZED, f"User authentication is not enabled{setting}")
        if self.claims is not None:
            raise Refused(UNAUTHORIZED, "a connection with a token cannot sign in")
        fields = inbound.fields()
        auth, user_data = fields.get("auth"), fields.get("user_data")
        if not isinstance(auth, str) or not isinstance(user_data, str):
            raise Refused(UNAUTHORIZED, "auth and user_data are required")
        limit = self._settings.max_user_data_bytes
        if len(user_data.encode()) > limit:
            setting = set_by("channels.max_user_data_bytes")
            raise Refused(UNAUTHORIZED, f"user_data has more than {limit} bytes{setting}")
        if not is_signin_auth(self.app, auth, self.socket_id, user_data):
            self.failures += 1
            raise Refused(UNAUTHORIZED, "Invalid signature of user_data")
        user_id, capabilities = read_user(user_data)
        if self.user_id not in (None, user_id):
            raise Refused(UNAUTHORIZED, "already signed in as another user")
        self.user_id, self.capabilities = user_id, capabilities
        return [SignedIn(user_id), Send(self._frames.signin_success(self.version, user_data))]

    def _renew(self, inbound: Inbound, unix_now: float) -> list[Action]:
        self._need_v2()
        if self.claims is None:
            raise Refused(UNAUTHORIZED, "this connection has no token")
        token = inbound.fields().get("token")
        try:
            claims = verify(self.app, token if isinstance(token, str) else "", unix_now)
        except TokenRefused as error:
            self.failures += 1
            raise Refused(UNAUTHORIZED, f"the token was refused: {error}", is_fatal=True) from None
        if claims.client_id != self.claims.client_id:
            raise Refused(UNAUTHORIZED, "the token belongs to another client", is_fatal=True)
        self.claims, self.capabilities, self._expired_at = claims, claims.capabilities, None
        sent = self._frames.auth_success(claims.client_id, claims.jti, claims.expires_at)
        actions: list[Action] = [TokenAccepted(claims), Send(sent)]
        for channel in [*self.subscribed, *self._joining]:
            if not self._may_subscribe(kind_of(channel), channel):
                text = f"Not allowed to subscribe to channel '{channel}' any longer"
                frame = self._frames.subscription_error(self.version, channel, text)
                actions += [Send(frame), Unsubscribe(channel)]
        return actions

    # Events.

    def _client_event(self, inbound: Inbound, now: float) -> ClientEvent:
        settings, channel = self._settings, inbound.channel
        if not self.app.enable_client_messages:
            setting = set_by("apps.enable_client_messages")
            raise Refused(CLIENT_EVENT_REJECTED, f"Client events are not enabled{setting}")
        if channel is None or not takes_client_events(kind_of(channel)):
            raise Refused(CLIENT_EVENT_REJECTED, "Client events need a private or presence channel")
        if channel not in self.subscribed:
            raise Refused(CLIENT_EVENT_REJECTED, "Client events need a subscription")
        if not self._allows("publish", channel):
            raise Refused(CLIENT_EVENT_REJECTED, f"Not allowed to publish on channel '{channel}'")
        if len(inbound.event.encode()) > settings.max_event_name_bytes:
            setting = set_by("channels.max_event_name_bytes")
            raise Refused(CLIENT_EVENT_REJECTED, f"the event's name is too long{setting}")
        if len(inbound.raw_data) > settings.max_event_payload_bytes:
            setting = set_by("channels.max_event_payload_bytes")
            raise Refused(CLIENT_EVENT_REJECTED, f"the event's data is too large{setting}")
        self._count(now)
        member = self.subscribed[channel]
        return ClientEvent(
            channel,
            inbound.event,
            inbound.raw_data or b"null",
            None if member is None else member.user_id,
        )

    def _run_event(self, inbound: Inbound, now: float) -> Action:
        """An event of a run, which is published like one of the HTTP API."""
        self._need_v2(CLIENT_EVENT_REJECTED)
        try:
            return self._run_publication(inbound, now)
        except Refused as refused:
            told = Fault(429, "rate_limited", str(refused))
        except Fault as refused:
            told = refused
        message_id = inbound.message_id if is_id(inbound.message_id) else None
        return Send(self._frames.publish_refused(inbound.channel, told, message_id))

    def _run_publication(self, inbound: Inbound, now: float) -> PublishEvent:
        settings, channel, name = self._settings, inbound.channel, inbound.event
        if channel is None:
            raise fault.missing_channel_info()
        if not runs.is_covered(settings.ai_transport.channels, channel):
            setting = set_by("channels.ai_transport.channels")
            raise fault.event_not_permitted(f"No runs on channel '{channel}'{setting}")
        if not self._may_publish(channel):
            raise fault.event_not_permitted(f"Not allowed to publish on channel '{channel}'")
        is_agent = self.claims is not None and self.claims.is_agent
        if name not in (runs.EVENTS if is_agent else runs.CLIENT_EVENTS):
            raise fault.event_not_permitted(f"Not allowed to publish {name}: that is for agents")
        publication = parse_frame(inbound.payload, settings)
        any_run = self.capabilities is not None and self.capabilities.allows(
            RUN_CANCEL_ANY, channel
        )
        own_run = self._check_cancel(publication, any_run=any_run)
        runs.check_client_ids(name, publication.transport, self.client_id, any_run=any_run)
        self._count(now)
        if name in runs.CLIENT_EVENTS:
            extras = publication.extras
            if self.client_id is not None or "input-client-id" in publication.transport:
                extras = with_transport(extras, input_client_id=self.client_id)
            publication = msgspec.structs.replace(publication, extras=extras)
        member = self.subscribed.get(channel)
        return PublishEvent(publication, None if member is None else member.user_id, own_run)

    def _may_publish(self, channel: str) -> bool:
        """Whether it may publish events of runs, which are kept.

        A token says so itself. Whoever signed in may by default, so where a subscription is signed
        it must have one. Whoever was granted nothing may where it may send client events.
        """
        kind, is_subscribed = kind_of(channel), channel in self.subscribed
        if kind not in (ChannelKind.PUBLIC, ChannelKind.PRIVATE, ChannelKind.PRESENCE):
            return False
        if self.capabilities is None:
            is_open = self.app.enable_client_messages and takes_client_events(kind)
            return is_open and is_subscribed
        is_entitled = self.claims is not None or is_subscribed or not needs_auth(kind)
        return is_entitled and self.capabilities.allows("publish", channel)

    def _check_cancel(self, publication: Publication, *, any_run: bool) -> str | None:
        """Refuse a cancel that cannot be allowed; returns the run that must be the sender's own."""
        cancel = publication.cancels
        if cancel is None:
            return None
        if not runs.may_cancel(cancel, self.client_id, any_run=any_run):
            raise fault.event_not_permitted(runs.NOT_OWN)
        return None if any_run else cancel.run_id

    def _count(self, now: float) -> None:
        """Count what every other subscriber will be sent."""
        started, events = self._window if now - self._window.started < 1 else (now, 0)
        if events >= self.app.max_client_events_per_second:
            setting = set_by("apps.max_client_events_per_second")
            raise Refused(CLIENT_EVENT_REJECTED, f"too many client events{setting}")
        self._window = _Window(started, events + 1)

    def _presence_update(self, inbound: Inbound, now: float) -> PresenceUpdate:
        self._need_v2()
        fields = inbound.fields()
        channel = fields.get("channel") if inbound.channel is None else inbound.channel
        member = self.subscribed.get(channel) if isinstance(channel, str) else None
        if not isinstance(channel, str) or member is None:
            raise Refused(CLIENT_EVENT_REJECTED, "a presence update needs a presence channel")
        if not self._allows("presence", channel):
            raise Refused(CLIENT_EVENT_REJECTED, f"No presence on channel '{channel}'")
        if "user_info" not in fields:
            raise Refused(CLIENT_EVENT_REJECTED, "user_info is missing")
        info = raw_user_info(inbound.object_text())
        if len(info) > self._settings.max_presence_user_info_bytes:
            setting = set_by("channels.max_presence_user_info_bytes")
            raise Refused(CLIENT_EVENT_REJECTED, f"user_info is too large{setting}")
        self._count(now)
        self.subscribed[channel] = Member(member.user_id, info)
        return PresenceUpdate(channel, member.user_id, info)

    # The past.

    def _need_history(self, channel: str) -> None:
        if not self._allows("history", channel):
            raise Refused(UNAUTHORIZED, f"Not allowed to read the history of channel '{channel}'")

    def _history(self, inbound: Inbound) -> ReadHistory:
        self._need_v2()
        fields = inbound.fields()
        channel = fields.get("channel", inbound.channel)
        if not isinstance(channel, str) or channel not in self.subscribed:
            raise Refused(CHANNEL_ERROR, "history needs a subscription to the channel")
        history = self._settings.history
        if setting := history_off(history, channel):
            text = f"Durable history is disabled by policy for channel '{channel}'"
            raise Refused(CHANNEL_ERROR, text + set_by(setting))
        self._need_history(channel)
        if self._history_reads >= MAX_HISTORY_READS:
            raise Refused(
                CLIENT_EVENT_REJECTED, f"at most {MAX_HISTORY_READS} history reads at a time"
            )
        try:
            query = HistoryQuery.from_frame(fields, history.max_page_size)
        except ValueError as error:
            raise Refused(CHANNEL_ERROR, str(error)) from None
        self._history_reads += 1
        return ReadHistory(channel, query)

    def _resume(self, inbound: Inbound) -> Resume:
        self._need_v2(CLIENT_EVENT_REJECTED)
        if not self._settings.connection_recovery.enabled:
            setting = set_by("channels.connection_recovery.enabled")
            raise Refused(CLIENT_EVENT_REJECTED, f"Connection recovery is not enabled{setting}")
        positions = read_positions(
            inbound.fields(), self._settings.max_subscriptions_per_connection
        )
        allowed: list[Position] = []
        denied: list[Position] = []
        for position in positions:
            self._check_name(position.channel)
            (allowed if self._may_resume(position) else denied).append(position)
        return Resume(tuple(allowed), tuple(denied))

    def _may_resume(self, position: Position) -> bool:
        """Before it subscribes, only `stream_id` shows that a socket could read the channel once.

        It gets nothing for it: what was missed follows the subscribe, which is signed.
        """
        channel = position.channel
        if channel in self.subscribed:
            return True
        kind = kind_of(channel)
        return self._may_subscribe(kind, channel) and (
            position.stream_id is not None or not needs_auth(kind)
        )
