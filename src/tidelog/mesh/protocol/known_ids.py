"""Ids of sends that are taken: what is stored of the first reply, and what a second one is."""

from typing import Protocol

import msgspec
from msgspec import Struct

from tidelog.mesh.protocol import replies


class _Outcome(Struct):
    """What the dedupe row of a send remembers of its answer, in the order of its members."""

    broker_message_id: str
    history_id: int
    destination_kind: str
    destination_ref: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Outcome).decode


class KnownId(Protocol):
    """The stored row of an id."""

    @property
    def key(self) -> str:
        """The `client_message_id`."""

    @property
    def owner(self) -> str:
        """The id of the member that sent it."""

    @property
    def fingerprint(self) -> bytes:
        """Of the send that was accepted."""

    @property
    def outcome(self) -> bytes:
        """As `stored_outcome` made it."""

    @property
    def available(self) -> int:
        """Whether the message is still there: 1 or 0."""

    @property
    def first_seen_at(self) -> int:
        """When it was accepted."""


def stored_outcome(message_id: str, history_id: int, kind: str, ref: str) -> bytes:
    """What the dedupe row of a send remembers of its answer."""
    return _encode(_Outcome(message_id, history_id, kind, ref))


def reply_of_known(row: KnownId, sender_id: str, fingerprint: bytes) -> replies.Reply:
    """The id is taken: by this very send, by another one, or by another member (mesh 6.2)."""
    if row.owner != sender_id:
        return replies.conflict(row.key, "sender_mismatch", fingerprint)
    if row.fingerprint != fingerprint:
        return replies.conflict(row.key, "request_fingerprint_mismatch", fingerprint)
    outcome = _decode(row.outcome)
    is_available = bool(row.available)
    return replies.Reply(
        200,
        {
            "broker_message_id": outcome.broker_message_id,
            "client_message_id": row.key,
            "history_id": outcome.history_id if is_available else None,
            "duplicate": True,
            "history_available": is_available,
            "first_seen_at": replies.rfc3339(row.first_seen_at),
            "destination_kind": outcome.destination_kind,
            "destination_ref": outcome.destination_ref,
        },
    )
