"""What is said over the WebSocket in insieme's dialect, as types (sync 21).

They only describe, as `asyncapi` does for the protocol's own messages.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.base.serving.asyncapi import Address, tagged

NonEmpty = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]


class _InsiemeEnvelope(Struct, kw_only=True, rename="camel", tag_field="type"):
    protocol_version: Literal["1.0"]
    msg_id: Annotated[str, Meta(description="Of the message that this replies to.")] | UnsetType = (
        UNSET
    )
    timestamp: Annotated[float, Meta(description="Of the sender's clock, in ms.")] | UnsetType = (
        UNSET
    )


class InsiemeConnectPayload(Struct, kw_only=True, rename="camel"):
    """Who connects, and to which project."""

    token: str
    client_id: NonEmpty
    project_id: Annotated[str, Meta(min_length=1, description="Contains no slash.")]


class InsiemeConnect(_InsiemeEnvelope, tag="connect"):
    """The handshake."""

    payload: InsiemeConnectPayload


class InsiemeSubmittedMeta(Struct, kw_only=True, rename="camel"):
    """Beside these whatever the application likes."""

    client_ts: float
    client_id: str | UnsetType = UNSET


class InsiemeSubmittedItem(Struct, kw_only=True, rename="camel"):
    """A draft to be committed."""

    id: Annotated[str, Meta(min_length=1, description="At most 128 bytes of UTF-8.")]
    partition: NonEmpty
    project_id: NonEmpty
    type: NonEmpty
    schema_version: Annotated[int, Meta(ge=1)]
    payload: dict[str, Any]
    meta: InsiemeSubmittedMeta
    user_id: NonEmpty | UnsetType = UNSET


class InsiemeSubmitPayload(Struct):
    """Drafts in their order; after one that is rejected no other is processed."""

    events: Annotated[list[InsiemeSubmittedItem], Meta(min_length=1)]


class InsiemeSubmitEvents(_InsiemeEnvelope, tag="submit_events"):
    """Drafts."""

    payload: InsiemeSubmitPayload


class InsiemeSyncPayload(Struct, kw_only=True, rename="camel"):
    """From where to fetch."""

    project_id: NonEmpty
    since_committed_id: Count
    limit: int | UnsetType = UNSET


class InsiemeSync(_InsiemeEnvelope, tag="sync"):
    """Ask for a page of committed events of the project."""

    payload: InsiemeSyncPayload


class InsiemeConnectedPayload(Struct, kw_only=True, rename="camel"):
    """What the client is told first."""

    client_id: str
    project_id: str
    project_last_committed_id: Annotated[
        int, Meta(ge=0, description="No event of the project is after it.")
    ]


class InsiemeConnected(_InsiemeEnvelope, tag="connected"):
    """The handshake succeeded, and broadcasts begin."""

    payload: InsiemeConnectedPayload


class InsiemeItemFault(Struct):
    """Which member of an item is wrong, and why."""

    field: Annotated[str, Meta(description="Dot path from the item: `payload.title`.")]
    message: str


class InsiemeCommittedResult(
    Struct, kw_only=True, rename="camel", tag_field="status", tag="committed"
):
    """The item is in the log."""

    id: str
    committed_id: int
    server_ts: int


class InsiemeRejectedResult(
    Struct, kw_only=True, rename="camel", tag_field="status", tag="rejected"
):
    """The item was refused; nothing of it is remembered."""

    id: str
    reason: Literal["validation_failed", "forbidden"]
    errors: list[InsiemeItemFault]
    created: int


class InsiemeNotProcessedResult(
    Struct, kw_only=True, rename="camel", tag_field="status", tag="not_processed"
):
    """Nobody has looked at the item; submit it again."""

    id: str
    reason: Literal["prior_item_failed", "batch_limit"]
    blocked_by_id: str
    created: int


class InsiemeResultPayload(Struct):
    """One entry for each item, in the order of the items."""

    results: list[InsiemeCommittedResult | InsiemeRejectedResult | InsiemeNotProcessedResult]


class InsiemeSubmitEventsResult(_InsiemeEnvelope, tag="submit_events_result"):
    """What became of drafts."""

    payload: InsiemeResultPayload


class InsiemeCommittedEvent(Struct, kw_only=True, rename="camel"):
    """An event as everybody in the project gets it."""

    id: str
    project_id: str
    partition: str
    committed_id: int
    type: str
    schema_version: Annotated[int, Meta(ge=1)]
    payload: dict[str, Any]
    meta: Annotated[
        dict[str, Any], Meta(description="`clientId`, `clientTs`, and what its author put there.")
    ]
    server_ts: int
    user_id: str | UnsetType = UNSET
    partitions: (
        Annotated[list[str], Meta(description="All of them, if there are several.")] | UnsetType
    ) = UNSET


class InsiemeEventBroadcast(_InsiemeEnvelope, tag="event_broadcast"):
    """An event that somebody else committed."""

    payload: InsiemeCommittedEvent


class InsiemePagePayload(Struct, kw_only=True, rename="camel"):
    """A page of committed events, ascending."""

    project_id: str
    events: list[InsiemeCommittedEvent]
    next_since_committed_id: Count
    has_more: bool
    sync_to_committed_id: Count


class InsiemeSyncResponse(_InsiemeEnvelope, tag="sync_response"):
    """The answer to `sync`."""

    payload: InsiemePagePayload


class InsiemeErrorDetails(Struct, kw_only=True, rename="camel"):
    """What a program can do about it; which members there are depends on the error."""

    reason: Literal["rate_limited"] | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET
    max_message_bytes: int | UnsetType = UNSET
    max_message_values: int | UnsetType = UNSET
    since_committed_id: int | UnsetType = UNSET
    supported_versions: list[str] | UnsetType = UNSET


class InsiemeErrorPayload(Struct, kw_only=True, rename="camel"):
    """What is wrong."""

    code: Literal[
        "auth_failed",
        "bad_request",
        "forbidden",
        "history_reset",
        "server_error",
        "protocolVersion_unsupported",
    ]
    message: str
    details: InsiemeErrorDetails


class InsiemeError(_InsiemeEnvelope, tag="error"):
    """A message was refused; some errors close the connection."""

    payload: InsiemeErrorPayload


ADDRESS = Address(
    name="insieme",
    path="/sync",
    title="Sync in insieme's dialect",
    description="The same for npm's `insieme` 2.1, whose messages name their version "
    "`protocolVersion`.",
    parameters={},
    messages=(
        *tagged("client", InsiemeConnect, InsiemeSubmitEvents, InsiemeSync),
        *tagged(
            "server",
            InsiemeConnected,
            InsiemeSubmitEventsResult,
            InsiemeEventBroadcast,
            InsiemeSyncResponse,
            InsiemeError,
        ),
    ),
)
"""Everything that is said at `/sync` in that dialect."""
