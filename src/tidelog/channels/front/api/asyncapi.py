"""What channels says over its WebSocket, as types: both protocols, from both sides.

They describe and decode nothing: `wire` builds frames byte by byte and reads them check by check.
Tests hold every frame of a live server against them. V1 says `pusher:`, V2 `sockudo:`; clients may
say either. `message_id`, `stream_id`, `serial`, `tags` and `extras` are V2's.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.base.serving.asyncapi import Address, Message, holds
from tidelog.channels.protocol import runs
from tidelog.channels.protocol.verbs import VERBS, kind_of
from tidelog.channels.protocol.wire import Failed, Recovered

Serial = Annotated[int, Meta(ge=0)]
Capability = Annotated[str, Meta(description="`{app_key}:{hex}`, see the protocol.")]
Text = str | UnsetType
Number = Serial | UnsetType
SentExtras = Annotated[
    dict[str, Any], Meta(description="The publisher's, with the `sockudo_` headers of the version.")
]


# Of clients. `data` may also be a text that holds the object.


class SubscribeData(Struct, kw_only=True):
    """What to subscribe to."""

    channel: str
    auth: Capability | UnsetType = UNSET
    channel_data: Text = UNSET
    rewind: Any = UNSET


class SubscribeEvent(Struct):
    """Subscribe to a channel."""

    event: Literal["pusher:subscribe", "sockudo:subscribe"]
    data: SubscribeData | str


class UnsubscribeData(Struct):
    """What to leave."""

    channel: str


class UnsubscribeEvent(Struct):
    """Leave a channel; there is no reply."""

    event: Literal["pusher:unsubscribe", "sockudo:unsubscribe"]
    data: UnsubscribeData | str


class SigninData(Struct):
    """Who the socket is."""

    auth: Capability
    user_data: Annotated[str, Meta(description="JSON text with an `id`; signed as it stands.")]


class SigninEvent(Struct):
    """Sign in as a user."""

    event: Literal["pusher:signin", "sockudo:signin"]
    data: SigninData | str


class AuthData(Struct):
    """The new token."""

    token: str


class AuthEvent(Struct):
    """Renew the token (V2)."""

    event: Literal["pusher:auth", "sockudo:auth"]
    data: AuthData | str


class PingEvent(Struct):
    """Ask for a `pong`; of the server: to a V1 client that is silent."""

    event: Literal["pusher:ping", "sockudo:ping"]
    data: Any = UNSET


class PongEvent(Struct):
    """The answer to a `ping`."""

    event: Literal["pusher:pong", "sockudo:pong"]
    data: Any = UNSET


class ClientEventFrame(Struct):
    """An event for the other subscribers."""

    event: Annotated[str, Meta(pattern="^client-")]
    channel: str
    data: Any = UNSET


if TYPE_CHECKING:
    RunEvent = str
else:  # a checker wants the texts written out, and they are listed elsewhere
    RunEvent = Literal[tuple(sorted(runs.EVENTS))]


class RunEventFrame(Struct, kw_only=True):
    """Publish an event of a run (V2); what is for agents needs an agent's token."""

    event: RunEvent
    channel: str
    data: Any = UNSET
    extras: dict[str, Any] | UnsetType | None = UNSET
    message_id: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType | None = UNSET


class PresenceUpdateData(Struct, kw_only=True):
    """The new info of the member, and the channel unless the frame names it."""

    user_info: Any
    channel: Text = UNSET


class PresenceUpdateRequest(Struct, kw_only=True):
    """Change one's own `user_info` (V2)."""

    event: Literal["pusher:presence_update", "sockudo:presence_update"]
    data: PresenceUpdateData | str
    channel: Text = UNSET


class HistoryRequestEvent(Struct, kw_only=True):
    """Ask for a page of the channel's history (V2)."""

    event: Literal["pusher:channel_history", "sockudo:channel_history"]
    data: Annotated[
        dict[str, Any] | str, Meta(description="`channel` and the parameters of the HTTP route.")
    ]
    channel: Text = UNSET


class ResumePosition(Struct, kw_only=True):
    """What the client has of a channel."""

    serial: Serial
    stream_id: str | UnsetType | None = UNSET
    last_message_id: str | UnsetType | None = UNSET


class ResumeData(Struct, kw_only=True):
    """Positions by channel."""

    channel_positions: dict[str, ResumePosition] | UnsetType = UNSET
    channel_serials: dict[str, Serial] | UnsetType = UNSET


class ResumeEvent(Struct):
    """Continue where an earlier connection was (V2)."""

    event: Literal["pusher:resume", "sockudo:resume"]
    data: ResumeData | str


# Of the server.


class ConnectionData(Struct):
    """Which socket this is."""

    socket_id: Annotated[str, Meta(pattern=r"^\d+\.\d+$")]
    activity_timeout: int


class ConnectionEstablished(Struct, kw_only=True):
    """The first frame."""

    event: Literal["pusher:connection_established", "sockudo:connection_established"]
    data: Annotated[str, holds(ConnectionData)]
    message_id: Text = UNSET


class ErrorData(Struct, kw_only=True):
    """What is wrong; of an event of a run also which one, and why in a word."""

    code: int
    message: str
    reason: Text = UNSET
    ai_code: int | UnsetType = UNSET
    channel: Text = UNSET
    message_id: Annotated[str, Meta(description="Of the event.")] | UnsetType = UNSET


class ErrorEvent(Struct, kw_only=True):
    """Something was refused; codes from 4001 to 4299 are followed by a close with the same code."""

    event: Literal["pusher:error", "sockudo:error"]
    data: ErrorData
    channel: Text = UNSET
    message_id: Text = UNSET


class SigninSuccessData(Struct):
    """As it was received."""

    user_data: str


class SigninSuccess(Struct, kw_only=True):
    """The socket is signed in."""

    event: Literal["pusher:signin_success", "sockudo:signin_success"]
    data: SigninSuccessData
    message_id: Text = UNSET


class AuthSuccessData(Struct):
    """Of the new token."""

    client_id: str
    jti: str
    exp: int


class AuthSuccess(Struct):
    """A new token was taken (V2)."""

    event: Literal["sockudo:auth_success"]
    data: AuthSuccessData
    message_id: str


class TokenExpiredData(Struct):
    """40142 expired, 40160 revoked."""

    code: int
    reason: str


class TokenExpired(Struct):
    """The token of this socket has ended (V2)."""

    event: Literal["sockudo:token_expired"]
    data: TokenExpiredData
    message_id: str


class PresenceSnapshot(Struct):
    """Who is on a presence channel."""

    ids: list[str]
    hash: dict[str, Any]
    count: int


class SubscriptionData(Struct, kw_only=True):
    """What there was when the subscription began."""

    presence: PresenceSnapshot | UnsetType = UNSET
    attach_serial: Number = UNSET


class SubscriptionSucceeded(Struct, kw_only=True):
    """The subscription stands."""

    event: Literal[
        "pusher_internal:subscription_succeeded", "sockudo_internal:subscription_succeeded"
    ]
    channel: str
    data: Annotated[str, holds(SubscriptionData)]
    stream_id: Text = UNSET
    serial: Number = UNSET
    message_id: Text = UNSET


class SubscriptionErrorData(Struct):
    """Why not."""

    type: str
    error: str
    status: int


class SubscriptionError(Struct, kw_only=True):
    """The subscription was refused."""

    event: Literal["pusher:subscription_error", "sockudo:subscription_error"]
    channel: str
    data: SubscriptionErrorData
    message_id: Text = UNSET


class CacheMiss(Struct, kw_only=True):
    """A cache channel holds no event."""

    event: Literal["pusher:cache_miss", "sockudo:cache_miss"]
    channel: str
    data: Literal["{}"]
    message_id: Text = UNSET


class MemberData(Struct):
    """A member and what it tells of itself."""

    user_id: str
    user_info: Any


class MemberAdded(Struct, kw_only=True):
    """A user's first socket joined."""

    event: Literal["pusher_internal:member_added", "sockudo_internal:member_added"]
    channel: str
    data: Annotated[str, holds(MemberData)]
    message_id: Text = UNSET


class MemberRemovedData(Struct):
    """Who left."""

    user_id: str


class MemberRemoved(Struct, kw_only=True):
    """A user's last socket left."""

    event: Literal["pusher_internal:member_removed", "sockudo_internal:member_removed"]
    channel: str
    data: Annotated[str, holds(MemberRemovedData)]
    message_id: Text = UNSET


class PresenceUpdated(Struct):
    """A member changed its info (V2)."""

    event: Literal["sockudo_internal:presence_update"]
    channel: str
    data: Annotated[str, holds(MemberData)]
    message_id: str


class HistoryItem(Struct, kw_only=True):
    """A message at its position in the history."""

    stream_id: str
    serial: Serial
    published_at_ms: int
    message_id: str
    event_name: str
    operation_kind: str
    payload_size_bytes: int
    message: dict[str, Any]


class HistoryBounds(Struct, kw_only=True):
    """What was asked for."""

    start_serial: int | None
    end_serial: int | None
    start_time_ms: int | None
    end_time_ms: int | None
    until_attach: bool
    attach_serial: int


class HistoryContinuity(Struct, kw_only=True):
    """What of the history is there."""

    stream_id: str
    oldest_available_serial: int | None
    newest_available_serial: int | None
    oldest_available_published_at_ms: int | None
    newest_available_published_at_ms: int | None
    retained_messages: int
    retained_bytes: int
    complete: bool
    truncated_by_retention: bool


class HistoryStreamState(Struct, kw_only=True):
    """How the stream is; a log that answers is healthy."""

    stream_id: str
    durable_state: Literal["healthy"]
    recovery_allowed: bool
    reset_required: bool
    reason: None
    node_id: None
    last_transition_at_ms: None
    authoritative_source: Literal["log"]
    observed_source: Literal["log"]


class ChannelHistoryPage(Struct, kw_only=True):
    """Messages of a channel as they are now."""

    items: list[HistoryItem]
    direction: Literal["newest_first", "oldest_first"]
    limit: int
    has_more: bool
    next_cursor: str | None
    bounds: HistoryBounds
    continuity: HistoryContinuity
    stream_state: HistoryStreamState


class ChannelHistory(Struct):
    """The answer to `channel_history` (V2)."""

    event: Literal["sockudo:channel_history"]
    channel: str
    data: ChannelHistoryPage
    message_id: str


class RewindData(Struct):
    """The first `historical_count` frames were states, the next `live_count` operations."""

    historical_count: int
    live_count: int
    complete: bool
    truncated_by_retention: bool
    truncated_by_limit: bool


class RewindComplete(Struct):
    """Everything a rewind asked for was sent (V2)."""

    event: Literal["sockudo:rewind_complete"]
    channel: str
    data: RewindData
    message_id: str


class ResumeFailed(Struct):
    """One channel could not be resumed (V2)."""

    event: Literal["sockudo:resume_failed"]
    channel: str
    data: Annotated[str, holds(Failed)]
    message_id: str


class ResumeSuccessData(Struct):
    """What became of each channel."""

    recovered: list[Recovered]
    failed: list[Failed]


class ResumeSuccess(Struct):
    """The end of a resume (V2)."""

    event: Literal["sockudo:resume_success"]
    data: Annotated[str, holds(ResumeSuccessData)]
    message_id: str


class PublishedEvent(Struct, kw_only=True):
    """An event that somebody published: under the name it was published with."""

    event: Annotated[str, Meta(pattern="^(?!sockudo:message\\.)")]
    channel: str
    data: Any = UNSET
    user_id: Text = UNSET
    message_id: Text = UNSET
    stream_id: Text = UNSET
    serial: Number = UNSET
    tags: dict[str, Any] | UnsetType = UNSET
    extras: SentExtras | UnsetType = UNSET


if TYPE_CHECKING:
    ChangeEvent = str
else:  # a checker wants the texts written out, and they are listed elsewhere
    ChangeEvent = Literal[tuple(f"sockudo:{kind_of(verb)}" for verb in VERBS)]


class MessageChange(Struct, kw_only=True):
    """An operation on a message, or, in a rewind, what the message looks like now (V2)."""

    event: ChangeEvent
    channel: str
    message_id: str
    stream_id: str
    serial: Serial
    extras: SentExtras
    name: Text = UNSET
    data: Any = UNSET
    user_id: Text = UNSET
    tags: dict[str, Any] | UnsetType = UNSET
    rolled: (
        Annotated[
            list[int],
            Meta(description="Of appends that came together: characters that each added."),
        ]
        | UnsetType
    ) = UNSET


class LatestVersion(Struct, kw_only=True):
    """The newest version of a message."""

    action: str
    version_serial: str
    timestamp_ms: int
    client_id: Text = UNSET


class SummaryData(Struct, kw_only=True):
    """A message without its content."""

    action: Literal["message.summary"]
    serial: Annotated[str, Meta(description="The `message_serial`.")]
    latest: LatestVersion
    versions: int
    appends: int
    data_bytes: int
    deleted: bool


class MessageSummary(Struct):
    """What a message has come to, for whoever asked that it be told (V2)."""

    event: Literal["sockudo:message.summary"]
    channel: str
    data: SummaryData
    message_id: str


EMBEDDED = (
    ConnectionData,
    SubscriptionData,
    MemberData,
    MemberRemovedData,
    Failed,
    ResumeSuccessData,
)
"""What stands in `data` as a text."""


def _said(sender: Literal["client", "server"], **kinds: type[Struct]) -> tuple[Message, ...]:
    return tuple(Message(name, sender, kind, str(kind.__doc__)) for name, kind in kinds.items())


ADDRESS = Address(
    name="channels",
    path="/app/{key}",
    title="Channels",
    description="Publish and subscribe; `?protocol=2` is the native protocol V2, any other is V1.",
    parameters={"key": "Public key of the app."},
    messages=(
        *_said(
            "client",
            subscribe=SubscribeEvent,
            unsubscribe=UnsubscribeEvent,
            signin=SigninEvent,
            auth=AuthEvent,
            ping=PingEvent,
            pong=PongEvent,
            client_event=ClientEventFrame,
            run_event=RunEventFrame,
            presence_update=PresenceUpdateRequest,
            channel_history=HistoryRequestEvent,
            resume=ResumeEvent,
        ),
        *_said(
            "server",
            connection_established=ConnectionEstablished,
            error=ErrorEvent,
            ping=PingEvent,
            pong=PongEvent,
            signin_success=SigninSuccess,
            auth_success=AuthSuccess,
            token_expired=TokenExpired,
            subscription_succeeded=SubscriptionSucceeded,
            subscription_error=SubscriptionError,
            cache_miss=CacheMiss,
            member_added=MemberAdded,
            member_removed=MemberRemoved,
            presence_update=PresenceUpdated,
            channel_history=ChannelHistory,
            rewind_complete=RewindComplete,
            resume_failed=ResumeFailed,
            resume_success=ResumeSuccess,
            event=PublishedEvent,
            message_change=MessageChange,
            message_summary=MessageSummary,
        ),
    ),
)
"""Everything that is said at `/app/{key}`."""
