"""What a send does: one pure decision (mesh 6.1, 6.6 and 6.7).

Everything stateless was checked before, and the rate limiter has counted the id. The decision sees
the state as its predecessors in the same batch left it, and returns what to append and what to say;
a refusal leaves nothing, so the next send under the same id is a first accept.
"""

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.log.draft import Draft
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.fingerprint import SendEnvelope
from tidelog.mesh.protocol.known_ids import reply_of_known, stored_outcome
from tidelog.mesh.protocol.model import (
    DAY_MS,
    PUSH,
    SURFACE,
    WEBHOOK,
    Member,
    Mesh,
    member_of,
    queue_recipient,
    stream_name,
)
from tidelog.store.rows import DedupeRow

_encode = msgspec.json.Encoder().encode

REMEMBERED_READS = 1024
"""Pairs of a sender and a destination; a name has up to 512 bytes."""


class CommitSend(Struct, frozen=True, kw_only=True):
    """A send whose id the broker does not know yet, or did not when it was looked up."""

    mesh_id: str
    sender: Member
    client_message_id: str
    broker_message_id: str
    """Minted before the transaction."""
    envelope: SendEnvelope
    fingerprint: bytes
    mentions: tuple[str, ...] = ()
    supersedes: str | None = None
    """The id that an operator retired for this one; outside the fingerprint."""

    def names(self) -> Names:
        """What `decide` reads."""
        mesh_id, envelope = self.mesh_id, self.envelope
        rows = _reads(
            mesh_id,
            self.sender.public_hex,
            envelope.destination_kind,
            envelope.destination_ref,
        )
        if self.mentions:
            rows += tuple([("mesh_member", (mesh_id, key)) for key in self.mentions])
        stream = stream_name(mesh_id)
        return Names(((stream, self.client_message_id),), (stream,), rows)

    @property
    def size_bytes(self) -> int:
        """About what it holds in memory while it waits."""
        return 1024 + len(self.envelope.body) + 2 * len(self.envelope.meta)

    def decide(self, view: View) -> Accept | Refuse:
        """Gate, claim, destination; then everything of mesh 6.6 at once, or nothing."""
        mesh_rows = view.rows("mesh_by_id", (self.mesh_id,))
        if not mesh_rows:
            return Refuse(replies.mesh_not_found())
        if self._member(view, self.sender.public_hex) is None:
            return Refuse(replies.not_a_member())
        stream = stream_name(self.mesh_id)
        known = view.dedupe(stream, self.client_message_id)
        if known is not None:
            return Refuse(reply_of_known(known, self.sender.id, self.fingerprint))
        mesh = Mesh(*mesh_rows[0])
        recipients = self._recipients(view, mesh)
        if isinstance(recipients, replies.Reply):
            return Refuse(recipients)
        return self._accept(view, mesh, stream, recipients)

    def _member(self, view: View, public_hex: str) -> Member | None:
        return member_of(view.rows("mesh_member", (self.mesh_id, public_hex)), public_hex)

    def _recipients(self, view: View, mesh: Mesh) -> tuple[str, ...] | replies.Reply:
        """Whom it is delivered to, or why it has no destination."""
        ref = self.envelope.destination_ref
        match self.envelope.destination_kind:
            case "topic":
                rows = view.rows("mesh_topic", (self.mesh_id, ref))
                if not rows:
                    return replies.refusal(404, "topic_not_found")
                sender = self.sender.public_hex
                subscribers = tuple([key for key, _ in rows if key is not None])
                if sender not in subscribers:
                    return replies.refusal(403, "not_subscribed")
                if mesh.echo_to_sender:
                    return subscribers
                return tuple([key for key in subscribers if key != sender])
            case "dm":
                if self._member(view, ref) is None:
                    return replies.refusal(404, "recipient_not_found")
                return (ref,)
            case _:
                if not view.rows("mesh_queue", (self.mesh_id, ref)):
                    return replies.refusal(404, "queue_not_found")
                return (queue_recipient(ref),)

    def _accept(self, view: View, mesh: Mesh, stream: str, recipients: tuple[str, ...]) -> Accept:
        history_id = view.serial(stream) + 1
        now, message_id, mesh_id = view.now_ms, self.broker_message_id, self.mesh_id
        envelope = self.envelope
        topic = _webhook_topic(envelope.destination_kind, envelope.destination_ref)
        endpoints = view.rows("mesh_webhooks", (mesh_id, topic))
        mentioned = [key for key in self.mentions if self._member(view, key) is not None]
        targets = [(key, PUSH, "") for key in recipients]
        targets += [("", WEBHOOK, endpoint_id) for (endpoint_id,) in endpoints]
        rows = [
            RowChange("mesh_add_delivery", (message_id, *target, mesh_id, history_id, now))
            for target in targets
        ]
        rows += [
            RowChange("mesh_add_mention", (message_id, key, mesh_id, history_id, now))
            for key in mentioned
        ]
        return Accept(
            replies.accepted(self.client_message_id, message_id, history_id),
            entries=(self._draft(stream, mentioned, len(recipients), len(endpoints)),),
            dedupe=(self._dedupe_row(view, mesh, stream, history_id),),
            rows=tuple(rows),
        )

    def _dedupe_row(self, view: View, mesh: Mesh, stream: str, history_id: int) -> DedupeRow:
        envelope = self.envelope
        expires_at = None
        if mesh.dedupe_retention_mode != "permanent":
            expires_at = view.now_ms + mesh.dedupe_retention_days * DAY_MS
        outcome = stored_outcome(
            self.broker_message_id, history_id, envelope.destination_kind, envelope.destination_ref
        )
        return DedupeRow(
            stream,
            self.client_message_id,
            view.next_committed_id,
            self.fingerprint,
            self.sender.id,
            outcome,
            1,
            view.now_ms,
            expires_at,
        )

    def _draft(self, stream: str, mentioned: list[str], recipients: int, webhooks: int) -> Draft:
        envelope, sender = self.envelope, self.sender
        fields: dict[str, Any] = {
            "client_message_id": self.client_message_id,
            "sender_pubkey": sender.public_hex,
            "sender_name": sender.name,
            "priority": envelope.priority,
        }
        if envelope.reply_to_id:
            fields["reply_to_id"] = envelope.reply_to_id
        if self.supersedes is not None:
            fields["supersedes"] = self.supersedes
        if mentioned:
            fields["mentions"] = mentioned
        # How many deliveries were written with it, where the entry does not say it already: a
        # direct message and one to a queue have the one that `ref` names.
        if envelope.destination_kind == "topic":
            fields["recipients"] = recipients
        if webhooks:
            fields["webhooks"] = webhooks
        body = _encode(fields)
        if envelope.meta:
            # As it is, and last: the views of PostgreSQL cut it off there.
            body = body[:-1] + b',"meta":' + envelope.meta + b"}"
        return Draft(
            stream,
            SURFACE,
            f"send.{envelope.destination_kind}",
            self.broker_message_id,
            envelope.destination_ref,
            sender.id,
            body,
            envelope.body,
        )


@lru_cache(REMEMBERED_READS)
def _reads(
    mesh_id: str, sender: str, kind: str, ref: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What a decision reads of a sender and a destination, whatever the message.

    A member sends to the same again and again, so they are remembered.
    """
    destination = {"topic": "mesh_topic", "dm": "mesh_member", "queue": "mesh_queue"}[kind]
    return (
        ("mesh_by_id", (mesh_id,)),
        ("mesh_member", (mesh_id, sender)),
        ("mesh_webhooks", (mesh_id, _webhook_topic(kind, ref))),
        (destination, (mesh_id, ref)),
    )


def _webhook_topic(kind: str, ref: str) -> str:
    """What selects endpoints of a topic; other messages go to those of the whole mesh."""
    return ref if kind == "topic" else ""
