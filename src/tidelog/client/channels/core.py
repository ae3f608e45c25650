"""The channels client's protocol without sockets, sleep or clock: frames in, actions out.

The owner feeds it what arrives and does what `actions` gives it. It remembers every subscription
across connections: on a new one all positions are resumed first, then each channel is subscribed
to, so that nothing published in between is missed (channels 6.4).
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson, TidelogError
from tidelog.channels.protocol.names import is_cache, kind_of, needs_auth
from tidelog.channels.protocol.wire import (
    CHANNEL_ERROR,
    CLIENT_EVENT_REJECTED,
    NO_POSITIONS,
    UNAUTHORIZED,
    AppendMode,
    RollupWindow,
)
from tidelog.client.channels.message import (
    BadFrame,
    Operation,
    Reset,
    is_versioned,
    read_operation,
    read_operations,
)
from tidelog.client.channels.view import ChannelView, Verdict

TOKEN_EXPIRED = 40142
"""Code of `token_expired` that calls for a new token; a revoked one ends the connection."""

RESUME_CHANNELS = 100
"""Positions in one resume: at most 400 bytes each, below the 64 KiB a server takes."""

MAX_OUTBOX = 1000
"""Client events waiting to be sent; what comes beyond is refused."""


_encode = msgspec.json.Encoder().encode
_PING = b'{"event":"sockudo:ping"}'


class SubscriptionRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """The server, or whoever authorizes, does not let this client subscribe."""


class ChannelOffline(TidelogError):  # noqa: N818 - the failure is the noun
    """There is no connection now, or none will come any more."""


class EventRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """The server refused an event that this client published; nothing was published."""

    def __init__(self, code: str, error: str, ai_code: int | None = None) -> None:
        super().__init__(f"{code}: {error}")
        self.code = code
        """Stable name of the class of failure: `code` of channels 8.2 or runs 8."""
        self.error = error
        self.ai_code = ai_code


class Authorization(Struct, frozen=True):
    """What lets one socket subscribe to one private or presence channel."""

    auth: str
    channel_data: str | None = None
    """Who subscribes, on presence channels: exactly the text that was signed."""

    @property
    def body(self) -> dict[str, str]:
        """What an application's endpoint returns as JSON; client libraries expect it so."""
        data = {} if self.channel_data is None else {"channel_data": self.channel_data}
        return {"auth": self.auth, **data}


class Send(Struct, frozen=True):
    """Send this JSON text."""

    frame: bytes


class Authorize(Struct, frozen=True):
    """Ask the application, then call `authorized` or `denied`."""

    channel: str
    socket_id: str


class RenewToken(Struct, frozen=True):
    """The token has expired: call `renew` with a new one."""


class Reconnect(Struct, frozen=True):
    """Give this connection up and open another."""

    reason: str


Action = Send | Authorize | RenewToken | Reconnect


class Listener(Protocol):
    """Whoever subscribed."""

    def opened(self) -> None:
        """The subscription stands and its rewind is complete; again after every interruption."""

    def changed(self) -> None:
        """There is news in the view."""

    def was_reset(self, reset: Reset) -> None:
        """What was kept is gone."""

    def failed(self, error: TidelogError) -> None:
        """The subscription has ended."""


class Publishing:
    """An event on its way: sent over every connection until the server has confirmed it."""

    def __init__(
        self, channel: str, frame: bytes, settled: Callable[[TidelogError | None], None]
    ) -> None:
        self.channel = channel
        self.frame = frame
        self.settled = settled
        """Called once: with None when it is on the server's disk, else with why it is not."""
        self.is_sent = False
        """Over this connection."""


class Phase(Enum):
    """Where a subscription is."""

    DETACHED = "detached"
    RESUMING = "resuming"
    """A resume is asked for; subscribing follows."""
    SUBSCRIBING = "subscribing"
    REWINDING = "rewinding"
    LIVE = "live"
    RECOVERING = "recovering"
    """Live, but something was missing and a resume is asked for."""


_ATTACHED = (Phase.LIVE, Phase.RECOVERING, Phase.REWINDING)
"""The server has the subscription."""


class Subscription:
    """One channel, across all connections."""

    def __init__(
        self, view: ChannelView, rewind: int | dict[str, float] | None, listener: Listener
    ) -> None:
        self.channel = view.channel
        self.view = view
        self.rewind = rewind
        self.listener = listener
        self.members: dict[str, Any] = {}
        """Of a presence channel: user id to `user_info`."""
        self.phase = Phase.DETACHED
        self.is_resumed = False
        """Whether the server found the position good that the subscribe goes on from."""
        self.has_begun = False
        """Whether the caller has been shown a beginning, to which everything must connect."""
        self.expects_cached = False
        """Whether the next operation is the last event of a cache channel, from before the rest."""
        self.cached: Operation | None = None
        """That event, during a rewind, which has it too if it reaches back so far."""
        self.recovered_at = -1
        """Position at which something was missing last; missing again there means a reset."""
        self.reading: int | None = None
        """History serial of the message that is being asked for."""


class ChannelCore:
    """All subscriptions of one client over its changing connections."""

    def __init__(self, append_mode: AppendMode = "delta", rollup_window: RollupWindow = 0) -> None:
        self.append_mode: AppendMode = append_mode
        self.rollup_window: RollupWindow = rollup_window
        self.socket_id: str | None = None
        """Of the connection; None while there is none."""
        self._subscriptions: dict[str, Subscription] = {}
        self._actions: deque[Action] = deque()
        self._unanswered: Counter[str] = Counter()
        """Subscribes under way by channel: only the reply to the last one counts."""
        self._publishing: dict[str, Publishing] = {}
        """Events that are not confirmed yet, by `message_id`, in their order."""
        self._unconfirmed: deque[str] = deque()
        """Those sent over this connection: each was followed by a ping, whose pong confirms it."""
        self.last_error = ""
        """What the server's last error frame said."""

    # What the owner does.

    def subscribe(
        self,
        channel: str,
        listener: Listener,
        *,
        rewind: int | dict[str, float] | None,
        limit: int,
    ) -> Subscription:
        """Follow a channel, now or when there is a connection."""
        if channel in self._subscriptions:
            raise ValueError(f"this client is subscribed to {channel} already")
        view = ChannelView(channel, limit=limit, is_full=self.append_mode == "full")
        subscription = Subscription(view, rewind, listener)
        self._subscriptions[channel] = subscription
        if self.socket_id is not None:
            self._ask(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following a channel."""
        if self._subscriptions.get(subscription.channel) is subscription:
            del self._subscriptions[subscription.channel]
            self._say_unsubscribe(subscription)
            self._send_publishing()

    def trigger(self, subscription: Subscription, event: str, data: Any) -> None:
        """Send a client event; the server does not confirm it."""
        if subscription.phase not in _ATTACHED:
            raise ChannelOffline("not subscribed at the moment: the event was not sent")
        if len(self._actions) >= MAX_OUTBOX:
            raise ChannelOffline("too many events wait to be sent")
        self._send(event, data, channel=subscription.channel)

    def publish(
        self,
        channel: str,
        event: str,
        data: Any,
        extras: Mapping[str, Any] | None,
        message_id: str,
        settled: Callable[[TidelogError | None], None],
    ) -> None:
        """Publish an event of a run, now or when there is a connection (runs 3).

        On a channel that is subscribed to it waits for the subscription, which may be what allows
        it.
        """
        if message_id in self._publishing:
            raise ValueError(f"an event {message_id} is on its way already")
        if len(self._publishing) >= MAX_OUTBOX:
            raise ChannelOffline("too many events wait to be published")
        frame = {"event": event, "channel": channel, "data": data, "message_id": message_id}
        if extras is not None:
            frame["extras"] = extras
        self._publishing[message_id] = Publishing(channel, _encode(frame), settled)
        self._send_publishing()

    def drop_publishing(self, error: TidelogError) -> None:
        """No event is published any more; those on their way may have been."""
        for message_id in tuple(self._publishing):
            self._settle(message_id, error)

    def was_too_large(self) -> None:
        """The server closed the connection over a message beyond its limit (channels 1.6).

        It does not say which; sending the largest event again would end the next one too.
        """
        on_way = [each for each in self._unconfirmed if each in self._publishing]
        if on_way:
            largest = max(on_way, key=lambda each: len(self._publishing[each].frame))
            error = EventRefused("payload_too_large", "the server takes no message of this size")
            self._settle(largest, error)

    def give_up(self, message_id: str) -> None:
        """Whoever published an event does not wait for it any more; it may still be published."""
        self._publishing.pop(message_id, None)

    def _send_publishing(self) -> None:
        for message_id, event in self._publishing.items():
            subscription = self._subscriptions.get(event.channel)
            is_ready = subscription is None or subscription.phase in _ATTACHED
            if self.socket_id is not None and is_ready and not event.is_sent:
                event.is_sent = True
                self._unconfirmed.append(message_id)
                self._actions += (Send(event.frame), Send(_PING))

    def _settle(self, message_id: str, error: TidelogError | None) -> None:
        event = self._publishing.pop(message_id, None)
        if event is not None:
            event.settled(error)

    def actions(self) -> list[Action]:
        """What to do, in this order."""
        actions = list(self._actions)
        self._actions.clear()
        return actions

    @property
    def is_waiting(self) -> bool:
        """Whether the server still has to reply."""
        settled = (Phase.LIVE, Phase.DETACHED)
        return (
            self.socket_id is None
            or bool(self._unconfirmed)
            or any(
                subscription.phase not in settled for subscription in self._subscriptions.values()
            )
        )

    def disconnected(self) -> None:
        """The connection is gone."""
        self.socket_id = None
        self._actions.clear()
        self._unanswered.clear()
        self._unconfirmed.clear()
        for event in self._publishing.values():
            event.is_sent = False
        for subscription in self._subscriptions.values():
            subscription.phase = Phase.DETACHED
            subscription.is_resumed = False
            subscription.reading = None
            subscription.view.detached()

    def end(self, error: TidelogError) -> None:
        """There will be no connection any more."""
        self.drop_publishing(error)
        for subscription in tuple(self._subscriptions.values()):
            self._fail(subscription, error)

    def authorized(self, asked: Authorize, authorization: Authorization) -> None:
        """The application lets the socket subscribe."""
        subscription = self._subscriptions.get(asked.channel)
        if subscription is not None and asked.socket_id == self.socket_id:
            self._say_subscribe(subscription, authorization)

    def denied(self, asked: Authorize, error: Exception) -> None:
        """The application does not, or could not say.

        An application that has let it in before is asked again over a new connection.
        """
        subscription = self._subscriptions.get(asked.channel)
        if subscription is None or asked.socket_id != self.socket_id:
            return
        reason = f"authorizing {asked.channel} failed: {type(error).__name__}: {error}"
        if subscription.has_begun:
            self._actions.append(Reconnect(reason))
        else:
            self._fail(subscription, SubscriptionRefused(reason))

    def renew(self, token: str) -> None:
        """A new token for this connection."""
        if self.socket_id is not None:
            self._send("sockudo:auth", {"token": token})

    # What the server says.

    def receive(self, text: str | bytes) -> None:
        """A frame of the server.

        Raises:
            BadFrame: It is not what the protocol allows.
        """
        try:
            frame = strictjson.read(text)
            if not isinstance(frame, dict):
                raise BadFrame("a frame that is not an object")
            self._handle(frame)
        except (InvalidJson, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise BadFrame(f"{type(error).__name__}: {error}") from error

    def _handle(self, frame: dict[str, Any]) -> None:
        channel = frame.get("channel")
        subscription = self._subscriptions.get(channel) if isinstance(channel, str) else None
        if is_versioned(frame):
            if subscription is not None:
                is_full = self.append_mode == "full"
                for operation in read_operations(frame, is_full=is_full):
                    self._operation(subscription, operation)
            return
        match frame["event"]:
            case "sockudo:connection_established":
                self._established(_fields(frame))
            case "sockudo:error":
                self._error(_fields(frame))
            case "sockudo:pong":
                if self._unconfirmed:
                    self._settle(self._unconfirmed.popleft(), None)
            case "sockudo:token_expired":
                if _fields(frame).get("code") == TOKEN_EXPIRED:
                    self._actions.append(RenewToken())
            case "sockudo:resume_success":
                self._resumed(_fields(frame))
            case "sockudo_internal:subscription_succeeded" | "sockudo:subscription_error" as event:
                self._unanswered[str(channel)] -= 1
                if subscription is not None and self._unanswered[subscription.channel] <= 0:
                    self._answered(subscription, event, frame)
            case event if subscription is not None:
                self._handle_channel(subscription, event, frame)

    def _handle_channel(
        self, subscription: Subscription, event: str, frame: dict[str, Any]
    ) -> None:
        match event:
            case "sockudo:rewind_complete":
                self._rewound(subscription, _fields(frame)["historical_count"])
            case "sockudo:channel_history":
                self._history(subscription, _fields(frame))
            case "sockudo_internal:member_added" | "sockudo_internal:presence_update":
                member = _fields(frame)
                subscription.members[member["user_id"]] = member.get("user_info")
            case "sockudo_internal:member_removed":
                subscription.members.pop(_fields(frame)["user_id"], None)
            case "sockudo:resume_failed":
                if subscription.phase is Phase.LIVE:  # else it is repeated in resume_success
                    fields = _fields(frame)
                    self._start_anew(subscription, fields["code"], fields["reason"])
            case "sockudo:cache_miss":
                subscription.expects_cached = False
            case "sockudo:message.summary":
                pass  # it changes no message
            case _:
                self._operation(subscription, read_operation(frame))

    def _established(self, fields: Mapping[str, Any]) -> None:
        self.socket_id = fields["socket_id"]
        resumed: list[Subscription] = []
        for subscription in self._subscriptions.values():
            if subscription.view.position is not None:
                resumed.append(subscription)
                continue
            if subscription.has_begun:
                self._forget(subscription, "continuity_unverifiable", "no_position")
            self._ask(subscription)
        for start in range(0, len(resumed), RESUME_CHANNELS):
            self._resume(resumed[start : start + RESUME_CHANNELS], Phase.RESUMING)
        self._send_publishing()

    def _error(self, fields: Mapping[str, Any]) -> None:
        """What an event of a run met says so; other errors do not say what they refer to.

        Whatever could be meant by those counts as failed.
        """
        if "reason" in fields:
            self._refused(fields)
            return
        self.last_error = f"{fields.get('code')}: {fields.get('message')}"
        code = fields.get("code")
        if code in (CLIENT_EVENT_REJECTED, NO_POSITIONS):
            for subscription in tuple(self._subscriptions.values()):
                if subscription.phase in (Phase.RESUMING, Phase.RECOVERING):
                    self._start_anew(subscription, "continuity_unverifiable", "resume_refused")
        if code in (CHANNEL_ERROR, CLIENT_EVENT_REJECTED, UNAUTHORIZED):
            for subscription in self._subscriptions.values():
                self._was_read(subscription)

    def _refused(self, fields: Mapping[str, Any]) -> None:
        message_id, ai_code = fields.get("message_id"), fields.get("ai_code")
        if isinstance(message_id, str):
            error = EventRefused(str(fields["reason"]), str(fields.get("message")), ai_code)
            self._settle(message_id, error)

    # Subscribing.

    def _ask(self, subscription: Subscription) -> None:
        if self.socket_id is None:
            return
        subscription.phase = Phase.SUBSCRIBING
        if needs_auth(kind_of(subscription.channel)):
            self._actions.append(Authorize(subscription.channel, self.socket_id))
        else:
            self._say_subscribe(subscription, None)

    def _say_subscribe(
        self, subscription: Subscription, authorization: Authorization | None
    ) -> None:
        data: dict[str, Any] = {"channel": subscription.channel}
        if authorization is not None:
            data["auth"] = authorization.auth
            if authorization.channel_data is not None:
                data["channel_data"] = authorization.channel_data
        if subscription.rewind is not None and subscription.view.position is None:
            data["rewind"] = subscription.rewind
        self._unanswered[subscription.channel] += 1
        self._send("sockudo:subscribe", data)

    def _say_unsubscribe(self, subscription: Subscription) -> None:
        if subscription.phase not in (Phase.DETACHED, Phase.RESUMING):
            self._send("sockudo:unsubscribe", {"channel": subscription.channel})
        subscription.phase = Phase.DETACHED

    def _answered(self, subscription: Subscription, event: str, frame: dict[str, Any]) -> None:
        if event == "sockudo:subscription_error":
            text = f"{subscription.channel}: {_fields(frame).get('error')}"
            self._fail(subscription, SubscriptionRefused(text))
            return
        if subscription.phase is not Phase.SUBSCRIBING:
            return  # of a subscription that was given up while its answer was under way
        view = subscription.view
        presence = _fields(frame).get("presence")
        if presence is not None:
            subscription.members = dict(presence["hash"])
        is_fresh = view.position is None
        rewinds = subscription.rewind is not None and is_fresh
        subscription.expects_cached = is_fresh and is_cache(subscription.channel)
        subscription.cached = None
        serial = frame.get("serial")
        if subscription.is_resumed and view.position is not None and serial == view.position.serial:
            view.continues_as(frame.get("stream_id"))
        subscription.is_resumed = False
        verdict = view.attached(frame.get("stream_id"), serial, rewinds=rewinds)
        subscription.phase = Phase.REWINDING if rewinds else Phase.LIVE
        self._judge(subscription, verdict)
        if subscription.phase is Phase.LIVE:
            self._opened(subscription)
        self._send_publishing()

    def _rewound(self, subscription: Subscription, historical_count: int) -> None:
        if subscription.phase is not Phase.REWINDING:
            return
        subscription.view.rewound(historical_count)
        cached, subscription.cached = subscription.cached, None
        if cached is not None and subscription.view.get(cached.serial) is None:
            subscription.view.show(cached)
        subscription.phase = Phase.LIVE
        self._opened(subscription)

    def _opened(self, subscription: Subscription) -> None:
        subscription.has_begun = True
        subscription.listener.opened()
        self._tell(subscription)

    def _fail(self, subscription: Subscription, error: TidelogError) -> None:
        self._subscriptions.pop(subscription.channel, None)
        self._send_publishing()
        subscription.phase = Phase.DETACHED
        subscription.listener.failed(error)

    # Continuity.

    def _operation(self, subscription: Subscription, operation: Operation) -> None:
        if subscription.phase in (Phase.DETACHED, Phase.SUBSCRIBING):
            return  # of a subscription that was given up
        if subscription.phase is Phase.RESUMING:  # sent only because the position is good
            subscription.view.continues_as(operation.stream_id)
        is_cached, subscription.expects_cached = subscription.expects_cached, False
        if is_cached and operation.delivery_serial is not None:
            if subscription.phase is Phase.REWINDING:
                subscription.cached = operation
                return
            if subscription.view.has_passed(operation.delivery_serial):
                subscription.view.show(operation)
                self._tell(subscription)
                return
        self._judge(subscription, subscription.view.receive(operation))
        self._tell(subscription)

    def _judge(self, subscription: Subscription, verdict: Verdict) -> None:
        if verdict is Verdict.OTHER_STREAM:
            self._start_anew(subscription, "stream_reset", "stream_id_mismatch")
        elif verdict is Verdict.GAP and subscription.phase is Phase.LIVE:
            position = subscription.view.position
            if position is not None and position.serial != subscription.recovered_at:
                subscription.recovered_at = position.serial
                self._resume([subscription], Phase.RECOVERING)
            else:
                self._start_anew(subscription, "continuity_unverifiable", "gap_in_delivery")

    def _resume(self, subscriptions: list[Subscription], phase: Phase) -> None:
        positions = {}
        for subscription in subscriptions:
            subscription.phase = phase
            positions[subscription.channel] = subscription.view.position
        self._send("sockudo:resume", {"channel_positions": positions})

    def _resumed(self, fields: Mapping[str, Any]) -> None:
        for entry in fields["recovered"]:
            subscription = self._subscriptions.get(entry["channel"])
            if subscription is None:
                continue
            if subscription.phase is Phase.RESUMING:
                subscription.is_resumed = True
                self._ask(subscription)
            elif subscription.phase is Phase.RECOVERING:
                subscription.phase = Phase.LIVE
                self._tell(subscription)
        for entry in fields["failed"]:
            subscription = self._subscriptions.get(entry["channel"])
            if subscription is not None and subscription.phase in (
                Phase.RESUMING,
                Phase.RECOVERING,
            ):
                self._start_anew(subscription, entry["code"], entry["reason"])

    def _start_anew(self, subscription: Subscription, code: str, reason: str) -> None:
        self._say_unsubscribe(subscription)
        self._forget(subscription, code, reason)
        self._ask(subscription)

    def _forget(self, subscription: Subscription, code: str, reason: str) -> None:
        subscription.view.reset()
        subscription.members.clear()
        subscription.has_begun = subscription.is_resumed = False
        subscription.reading = None
        subscription.recovered_at = -1
        subscription.listener.was_reset(Reset(subscription.channel, code, reason))

    # Messages whose beginning is not known.

    def _tell(self, subscription: Subscription) -> None:
        if subscription.view.has_news:
            subscription.listener.changed()
        wanted = subscription.view.unfinished
        if wanted is not None and subscription.phase is Phase.LIVE and subscription.reading is None:
            subscription.reading = wanted
            data = {"channel": subscription.channel, "limit": 1}
            data |= {"start_serial": wanted, "end_serial": wanted}
            self._send("sockudo:channel_history", data)

    def _history(self, subscription: Subscription, page: Mapping[str, Any]) -> None:
        self._was_read(subscription)
        for item in page["items"]:
            if is_versioned(item["message"]):
                subscription.view.fill(read_operation(item["message"]))
        self._tell(subscription)

    def _was_read(self, subscription: Subscription) -> None:
        if subscription.reading is not None:
            subscription.view.was_asked(subscription.reading)
            subscription.reading = None

    def _send(self, event: str, data: Any, channel: str | None = None) -> None:
        frame = {"event": event, "data": data}
        if channel is not None:
            frame["channel"] = channel
        self._actions.append(Send(_encode(frame)))


def _fields(frame: dict[str, Any]) -> dict[str, Any]:
    """The data of a system event, which comes as an object or inside a string."""
    data = frame.get("data")
    fields = strictjson.read(data) if isinstance(data, str) else data
    if not isinstance(fields, dict):
        raise BadFrame(f"{frame['event']} without fields")
    return fields
