"""What is said over the WebSocket, as types (sync 3, 4, 8 and 10 to 12).

They only describe: `session` reads messages check by check, because each fault has an error of its
own. Tests compare every message of a live server with them.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.base.serving.asyncapi import Address, tagged

NonEmpty = Annotated[str, Meta(min_length=1)]
Id = Annotated[str, Meta(min_length=1, description="At most 128 bytes of UTF-8.")]
Count = Annotated[int, Meta(ge=0)]
Profile = Literal["compatibility", "canonical"]
Nothing = Annotated[dict[str, Any], Meta(description="Empty.")]


class _Envelope(Struct, kw_only=True, tag_field="type"):
    msg_id: NonEmpty
    timestamp: Annotated[float, Meta(description="Of the sender's clock, in ms.")]
    protocol_version: Literal["1.0"]


class SyncEvent(Struct):
    """What the application did; stored and sent on as it came."""

    type: str
    payload: dict[str, Any]
    meta: (
        Annotated[dict[str, Any], Meta(description="Carried, and never looked into.")] | UnsetType
    ) = UNSET


class ConnectPayload(Struct, kw_only=True):
    """Who connects, and what it can speak."""

    token: str
    client_id: NonEmpty
    last_committed_id: Count | UnsetType = UNSET
    supported_profiles: list[str] | UnsetType = UNSET
    required_profile: str | UnsetType = UNSET
    required_tree_policy: str | UnsetType = UNSET
    incarnation: (
        Annotated[str, Meta(min_length=1, description="The history that the client has followed.")]
        | UnsetType
    ) = UNSET


class Connect(_Envelope, tag="connect"):
    """The handshake."""

    payload: ConnectPayload


class SubmittedItem(Struct, kw_only=True):
    """A draft to be committed."""

    id: Id
    partitions: list[str]
    event: SyncEvent
    client_id: str | UnsetType = UNSET


class SubmitPayload(Struct, kw_only=True):
    """Drafts in their order; each is decided by itself."""

    events: Annotated[list[SubmittedItem], Meta(min_length=1)]
    stop_at_rejection: (
        Annotated[bool, Meta(description="After a rejected item process no other.")] | UnsetType
    ) = UNSET
    client_id: str | UnsetType = UNSET


class SubmitEvents(_Envelope, tag="submit_events"):
    """Drafts."""

    payload: SubmitPayload


class SyncPayload(Struct, kw_only=True):
    """What to fetch, and what to be told of from now on."""

    partitions: Annotated[list[NonEmpty], Meta(min_length=1)]
    since_committed_id: Count
    subscription_partitions: list[NonEmpty] | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    accept_snapshot: (
        Annotated[
            bool,
            Meta(
                description="When one partition is synced from 0: send its state instead of its "
                "events."
            ),
        ]
        | UnsetType
    ) = UNSET
    snapshot_committed_id: (
        Annotated[int, Meta(ge=0, description="The state whose next part is wanted.")] | UnsetType
    ) = UNSET
    snapshot_from: (
        Annotated[int, Meta(ge=0, description="The `snapshot_next` of the part before.")]
        | UnsetType
    ) = UNSET
    client_id: str | UnsetType = UNSET


class SyncRequest(_Envelope, tag="sync"):
    """Ask for a page of committed events."""

    payload: SyncPayload


class Heartbeat(_Envelope, tag="heartbeat"):
    """The client is there."""

    payload: Nothing


class DisconnectPayload(Struct):
    """Why."""

    reason: str | UnsetType = UNSET


class Disconnect(_Envelope, tag="disconnect"):
    """The client leaves; answered by closing."""

    payload: DisconnectPayload


class SyncCapabilities(Struct, kw_only=True):
    """What the connection speaks."""

    profile: Profile
    accepted_event_types: list[str]
    tree_policy: Literal["strict"] | UnsetType = UNSET
    snapshots: (
        Annotated[bool, Meta(description="Whether `accept_snapshot` is supported.")] | UnsetType
    ) = UNSET


class SyncLimits(Struct, kw_only=True):
    """What the server takes."""

    max_batch_size: int
    sync_limit_min: int
    sync_limit_max: int
    max_message_bytes: int
    max_in_flight_drafts: int
    heartbeat_timeout_ms: int


class ConnectedPayload(Struct, kw_only=True):
    """What the client is told first."""

    client_id: str
    server_time: int
    server_last_committed_id: Count
    incarnation: Annotated[str, Meta(description="Names the history of the log.")]
    began: Annotated[
        int,
        Meta(
            ge=0, description="Up to where it is the history that the client named; 0 if unknown."
        ),
    ]
    capabilities: SyncCapabilities
    limits: SyncLimits
    model_version: int | UnsetType = UNSET


class ConnectedMessage(_Envelope, tag="connected"):
    """The handshake succeeded."""

    payload: ConnectedPayload


class ItemFault(Struct):
    """Which value of an item is wrong, and why."""

    field: Annotated[str, Meta(description="Dot path from the item: `event.payload.data.id`.")]
    message: str


class CommittedResult(Struct, kw_only=True, tag_field="status", tag="committed"):
    """The item is in the log."""

    id: str
    committed_id: int
    status_updated_at: int


class RejectedResult(Struct, kw_only=True, tag_field="status", tag="rejected"):
    """The item was refused; nothing of it is remembered."""

    id: str
    reason: Literal["validation_failed", "forbidden"]
    errors: list[ItemFault]
    status_updated_at: int


class NotProcessedResult(Struct, kw_only=True, tag_field="status", tag="not_processed"):
    """The item was not looked at, because one before it was rejected."""

    id: str
    reason: Literal["prior_item_failed"]
    blocked_by: Annotated[str, Meta(description="The id of the rejected item.")]
    status_updated_at: int


class ResultPayload(Struct):
    """One entry for each item, in the order of the items."""

    results: list[CommittedResult | RejectedResult | NotProcessedResult]


class SubmitEventsResult(_Envelope, tag="submit_events_result"):
    """What became of drafts."""

    payload: ResultPayload


class CommittedEvent(Struct, kw_only=True):
    """An event as everybody gets it."""

    id: str
    client_id: str
    partitions: list[str]
    event: SyncEvent
    committed_id: int
    status_updated_at: int


class EventBroadcast(_Envelope, tag="event_broadcast"):
    """An event that somebody else committed."""

    payload: CommittedEvent


class PagePayload(Struct, kw_only=True):
    """A page of committed events, ascending."""

    partitions: list[str]
    effective_subscriptions: list[str]
    events: list[CommittedEvent]
    next_since_committed_id: Count
    sync_to_committed_id: Count
    has_more: bool
    model_version: int | UnsetType = UNSET
    snapshot: (
        Annotated[str, Meta(description="JSON text of the partition's state, or a part of it.")]
        | UnsetType
    ) = UNSET
    snapshot_committed_id: (
        Annotated[int, Meta(ge=1, description="The state includes the events up to here.")]
        | UnsetType
    ) = UNSET
    snapshot_next: (
        Annotated[int, Meta(ge=1, description="Where the next part starts; absent in the last.")]
        | UnsetType
    ) = UNSET


class SyncResponse(_Envelope, tag="sync_response"):
    """The answer to `sync`."""

    payload: PagePayload


class HeartbeatAck(_Envelope, tag="heartbeat_ack"):
    """The server is there."""

    payload: Nothing


class ErrorDetails(Struct, kw_only=True):
    """What a program can do about it; which members there are depends on the error."""

    request_msg_id: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET
    max_message_bytes: int | UnsetType = UNSET
    max_message_values: int | UnsetType = UNSET
    max_partitions: int | UnsetType = UNSET
    max_batch_size: int | UnsetType = UNSET
    supported_versions: list[str] | UnsetType = UNSET
    requested_version: str | UnsetType = UNSET
    supported_profiles: list[str] | UnsetType = UNSET
    partitions: list[str] | UnsetType = UNSET


class ErrorPayload(Struct, kw_only=True):
    """What is wrong."""

    code: Literal[
        "auth_failed",
        "bad_request",
        "validation_failed",
        "forbidden",
        "rate_limited",
        "server_error",
        "protocol_version_unsupported",
        "profile_unsupported",
    ]
    message: str
    details: ErrorDetails | UnsetType = UNSET


class ErrorMessage(_Envelope, tag="error"):
    """A message was refused; some errors close the connection."""

    payload: ErrorPayload


class VersionChangedPayload(Struct):
    """From which model to which."""

    old_model_version: int
    new_model_version: int


class VersionChanged(_Envelope, tag="version_changed"):
    """The application's model is another one."""

    payload: VersionChangedPayload


ADDRESS = Address(
    name="sync",
    path="/sync",
    title="Sync",
    description="Offline-first events: clients submit drafts and are told what was committed.",
    parameters={},
    messages=(
        *tagged("client", Connect, SubmitEvents, SyncRequest, Heartbeat, Disconnect),
        *tagged(
            "server",
            ConnectedMessage,
            SubmitEventsResult,
            EventBroadcast,
            SyncResponse,
            HeartbeatAck,
            ErrorMessage,
            VersionChanged,
        ),
    ),
)
"""Everything that is said at `/sync`."""
