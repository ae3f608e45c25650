"""From a stored send to what its receivers get (mesh 7.2)."""

from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.fingerprint import body_text
from tidelog.mesh.protocol.replies import rfc3339

_encode = msgspec.json.Encoder().encode


class Stored(NamedTuple):
    """A send as the query `mesh_entry` returns it."""

    history_id: int
    kind: str
    broker_message_id: str
    destination_ref: str
    created_at: int
    body: bytes
    data: bytes | None


class _Fields(Struct):
    """What a send's entry holds beside its raw body."""

    client_message_id: str
    sender_pubkey: str
    sender_name: str
    priority: str
    reply_to_id: str | None = None
    mentions: list[str] = []
    meta: Raw = Raw(b"null")


_fields = msgspec.json.Decoder(_Fields).decode


def received_envelope(stored: Stored, slug: str, member_pubkey: str) -> dict[str, Any]:
    """What a member gets of a message, without the claim that belongs to a delivery."""
    fields = _fields(stored.body)
    text, encoding = body_text(stored.data or b"")
    return {
        "broker_message_id": stored.broker_message_id,
        "client_message_id": fields.client_message_id,
        "history_id": stored.history_id,
        "mesh": slug,
        "topic": stored.destination_ref if stored.kind == "send.topic" else None,
        "sender_pubkey": fields.sender_pubkey,
        "sender_name": fields.sender_name,
        "priority": fields.priority,
        "reply_to_id": fields.reply_to_id,
        "meta": fields.meta,
        "body": text,
        "body_encoding": encoding,
        "created_at": rfc3339(stored.created_at),
        "mention": member_pubkey in fields.mentions,
    }


def history_item(stored: Stored, slug: str, member_pubkey: str) -> Raw:
    """An item of a page of history."""
    return Raw(_encode(received_envelope(stored, slug, member_pubkey)))


def deliver_frame(stored: Stored, slug: str, member_pubkey: str, claim_id: str) -> wire.Deliver:
    """A delivery to a member."""
    return wire.Deliver(**received_envelope(stored, slug, member_pubkey), claim_id=claim_id)
