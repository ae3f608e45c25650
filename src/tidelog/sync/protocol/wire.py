"""What sync says on the wire: envelopes, message types, close codes.

Messages are checked in the order the protocol prescribes, each fault with its own error, so they
are read as plain JSON and not decoded into structs in one go; see `session`, and `submitted` for
those that have no fault.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tidelog.sync.protocol.fault import Fault

VERSION = "1.0"
SUPPORTED_VERSIONS = (VERSION,)

MAX_ID_BYTES = 128

SUBMIT = "submit_events"
CLIENT_TYPES = frozenset({"connect", SUBMIT, "sync", "heartbeat", "disconnect"})

# Close codes (sync D10).
NORMAL = 1000
GOING_AWAY = 1001
INTERNAL = 1011
AUTH_FAILED = 4401
PROJECT_FORBIDDEN = 4403
VERSION_UNSUPPORTED = 4406
PROFILE_UNSUPPORTED = 4407
HEARTBEAT_TIMEOUT = 4408
SUPERSEDED = 4409

CLOSE_CODES = {
    "auth_failed": AUTH_FAILED,
    "protocol_version_unsupported": VERSION_UNSUPPORTED,
    "profile_unsupported": PROFILE_UNSUPPORTED,
    "server_error": INTERNAL,
}
"""Errors that end the connection, and the code it is closed with."""

encode = msgspec.json.Encoder().encode


class _SubmittedItem(Struct):
    event: Raw = Raw(b"null")


class _SubmittedPayload(Struct):
    events: list[_SubmittedItem] = []


class _Submitted(Struct):
    type: str
    payload: _SubmittedPayload


_decode_submitted = msgspec.json.Decoder(_Submitted).decode


def raw_events(frame: bytes) -> list[Raw]:
    """The `event` of each item of a submit as it was sent; nothing for other messages.

    Well-formed as far as can be told without validating them. They are parts of the frame, not
    copies.
    """
    if b'"submit_events"' not in frame and b"\\u" not in frame:
        return []
    try:
        message = _decode_submitted(frame)
    except (ValueError, RecursionError):
        return []
    return [item.event for item in message.payload.events] if message.type == SUBMIT else []


def envelope(kind: str, msg_id: str, timestamp: int, payload: bytes) -> bytes:
    """A server message around an encoded payload."""
    head = f'{{"type":"{kind}","msg_id":"{msg_id}","timestamp":{timestamp},"payload":'
    return head.encode() + payload + b',"protocol_version":"1.0"}'


def error_payload(code: str, message: str, details: dict[str, Any] | None) -> bytes:
    """Payload of `error`."""
    payload: dict[str, Any] = {"code": code, "message": message}
    if details:
        payload["details"] = details
    return encode(payload)


def stored_body(item_id: str, client_id: str, partitions: bytes, event: bytes) -> bytes:
    """Body of an event's log entry: what is delivered but for its position and time.

    `partitions` and `event` are JSON already.
    """
    return b'{"id":%s,"client_id":%s,"partitions":%s,"event":%s}' % (
        encode(item_id),
        encode(client_id),
        partitions,
        event,
    )


def delivered(body: bytes, committed_id: int, committed_at: int) -> bytes:
    """Payload of `event_broadcast`, and element of `sync_response.events`."""
    return b'%s,"committed_id":%d,"status_updated_at":%d}' % (
        body[:-1],
        committed_id,
        committed_at,
    )


class Committed(Struct, tag_field="status", tag="committed"):
    """A result entry of a committed item."""

    id: str
    committed_id: int
    status_updated_at: int


class Rejected(Struct, tag_field="status", tag="rejected"):
    """A result entry of a rejected item."""

    id: str
    reason: str
    errors: tuple[Fault, ...]
    status_updated_at: int

    def as_json(self) -> dict[str, Any]:
        """`errors` are objects on the wire."""
        return {
            "id": self.id,
            "status": "rejected",
            "reason": self.reason,
            "errors": [fault._asdict() for fault in self.errors],
            "status_updated_at": self.status_updated_at,
        }


class NotProcessed(Struct, tag_field="status", tag="not_processed"):
    """A result entry of an item that was not looked at, because one before it was not taken."""

    id: str
    reason: str
    blocked_by: str
    """The id of that item."""
    status_updated_at: int


Result = Committed | Rejected | NotProcessed
"""What becomes of a submitted item."""

PRIOR_ITEM_FAILED = "prior_item_failed"
"""Why an item was not processed: one before it was rejected."""


class Page(Struct):
    """What a sync found."""

    events: Sequence[bytes]
    next_since: int
    watermark: int
    has_more: bool
    subscriptions: Sequence[str] = ()
    model_version: int | None = None
    more: Mapping[str, Any] = {}
    """Members that only some responses have."""


def result_payload(results: Sequence[Result]) -> bytes:
    """Payload of `submit_events_result`."""
    return encode(
        {
            "results": [
                result.as_json() if isinstance(result, Rejected) else result for result in results
            ]
        }
    )
