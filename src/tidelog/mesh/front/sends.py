"""A front's half of an accept: parse, look the id up, check, ask the owner, reply (mesh 6.1).

Sends of a mesh may come by the thousand, from many connections and few from each. So nothing here
is made for one of them but what it consists of: no task, and nobody who waits. Each goes on when
what it needs has come, and all that came meanwhile share one look into the store.
"""

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from tidelog.base.errors import (
    DataError,
    OutcomeUnknown,
    QueueFull,
    ShuttingDown,
    StoreError,
    TidelogError,
    TooLargeToSend,
)
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.link.ends import FrontEnd
from tidelog.link.message import Failed, Message, NotSent
from tidelog.mesh.messages import Accept, Budget, Change, Replied
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.fingerprint import (
    KINDS,
    RequestRefused,
    SendEnvelope,
    is_client_message_id,
    mentions_in,
    read_envelope,
)
from tidelog.mesh.protocol.known_ids import reply_of_known
from tidelog.mesh.protocol.model import Member, Mesh, stream_name
from tidelog.mesh.protocol.replies import Reply, refusal
from tidelog.store.batched_reads import BATCH, MAX_WAITING
from tidelog.store.engine import Store
from tidelog.store.rows import DedupeRow

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")

_log = logging.getLogger(__name__)

Replier = Callable[[Reply], None]
"""Takes the reply to a send; called once, on the event loop, and must not raise."""


class _Send(Struct):
    """A send whose id is being looked up."""

    mesh: Mesh
    member: Member
    client_message_id: str
    fields: Mapping[str, Any]
    envelope: SendEnvelope
    fingerprint: bytes
    replied: Replier


class Sends:
    """The way of sends from a front's connections and routes to the owner, in their order."""

    def __init__(
        self, link: FrontEnd, store: Store, metrics: MeshMetrics, max_inline_bytes: int
    ) -> None:
        self._link = link
        self._store = store
        self._metrics = metrics
        self._max_inline_bytes = max_inline_bytes
        self._waiting: deque[_Send] = deque()
        self._looking: asyncio.Task[None] | None = None

    def accept(
        self,
        mesh: Mesh,
        member: Member,
        client_message_id: object,
        fields: Mapping[str, Any],
        replied: Replier,
    ) -> None:
        """Accept a send of a member; whatever happens, there is a reply, perhaps at once."""
        try:
            if not is_client_message_id(client_message_id):
                replied(refusal(400, "client_message_id_invalid"))
                return
            envelope = _envelope(fields)
            if len(self._waiting) >= MAX_WAITING:
                raise QueueFull("more waits for the store than is kept; retry in a moment")
        except Exception as error:  # noqa: BLE001 - `_refused` says which are mistakes of ours
            replied(_refused(error))
            return
        fingerprint = envelope.fingerprint()
        self._waiting.append(
            _Send(mesh, member, client_message_id, fields, envelope, fingerprint, replied)
        )
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="tidelog-mesh-known-ids")

    async def _look(self) -> None:
        """Phase B0: who is known already, by plain reads, no transaction and no budget."""
        try:
            while self._waiting:
                count = min(BATCH, len(self._waiting))
                sends = [self._waiting.popleft() for _ in range(count)]
                try:
                    known = await self._known(sends)
                except Exception as error:  # noqa: BLE001 - those who wait must hear of it
                    reply = _refused(error)
                    for send in sends:
                        send.replied(reply)
                else:
                    for send in sends:
                        self._go_on(send, known.get((send.mesh.id, send.client_message_id)))
        finally:
            self._looking = None

    async def _known(self, sends: Sequence[_Send]) -> dict[tuple[str, str], DedupeRow]:
        """The rows of their ids, by mesh and id; one question for each mesh."""
        ids: dict[str, list[str]] = {}
        for send in sends:
            ids.setdefault(send.mesh.id, []).append(send.client_message_id)
        asked = [(stream_name(mesh_id), json.dumps(named)) for mesh_id, named in ids.items()]
        found = await self._store.rows_of("mesh_known_ids", asked)
        return {
            (mesh_id, row[1]): DedupeRow._make(row)
            for mesh_id, rows in zip(ids, found, strict=True)
            for row in rows
        }

    def _go_on(self, send: _Send, known: DedupeRow | None) -> None:
        try:
            if known is not None:
                self._reply(send, reply_of_known(known, send.member.id, send.fingerprint))
                return
            mesh, envelope = send.mesh, send.envelope
            accept = Accept(
                Budget(mesh.id, mesh.rate_limit, mesh.rate_window_ms),
                send.member,
                send.client_message_id,
                envelope,
                send.fingerprint,
                mentions_in(envelope.meta),
                _supersedes(send.fields),
            )
            refused = self._check(accept, send.fields.get("request_fingerprint"))
            if refused is not None:
                self._reply(send, refused)
                return
            reach(FaultPoint.BROKER_PARSED)
        except Exception as error:  # noqa: BLE001 - `_refused` says which are mistakes of ours
            send.replied(_refused(error))
            return
        self._link.ask(accept, partial(self._answered, send))

    def _check(self, accept: Accept, claimed: object) -> Reply | None:
        """What is left of B1: size, and that nothing changed the send on its way."""
        if len(accept.envelope.body) > self._max_inline_bytes:
            return refusal(413, "payload_too_large", f"at most {self._max_inline_bytes} bytes")
        if claimed is None or claimed == accept.fingerprint.hex():
            return None
        if not isinstance(claimed, str) or not _FINGERPRINT.fullmatch(claimed):
            return refusal(400, "schema_invalid", "request_fingerprint is not 64 hex digits")
        self._metrics.fingerprint_mismatches.labels(accept.sender.id, accept.mesh.id).inc()
        return replies.conflict(
            accept.client_message_id, "request_fingerprint_mismatch", accept.fingerprint
        )

    def _answered(self, send: _Send, answer: Message) -> None:
        self._reply(send, reply_to(Accept, answer))

    def _reply(self, send: _Send, reply: Reply) -> None:
        try:
            reach(FaultPoint.BROKER_ACCEPTED)
        except OSError as error:
            reply = _refused(error)
        send.replied(reply)


def reply_to(question: type[Accept | Change], answer: Message) -> Reply:
    """What a caller is told of the owner's answer."""
    if isinstance(answer, Replied):
        return answer.reply
    if isinstance(answer, NotSent):
        is_large = isinstance(answer.raised(), TooLargeToSend)
        status, code = (413, "payload_too_large") if is_large else (400, "schema_invalid")
        return refusal(status, code, f"the request was not taken: {answer.text}")
    assert isinstance(answer, Failed), answer  # noqa: S101 - both halves are ours
    _log.warning("%s was not kept: %s", question.__name__, answer.text)
    return reply_of(answer.raised())


def reply_of(error: TidelogError) -> Reply:
    """What a caller is told of a failure: whether to come again, and nothing of the inside."""
    if isinstance(error, DataError):
        return replies.internal()
    if isinstance(error, (StoreError, QueueFull, ShuttingDown, OutcomeUnknown)):
        return replies.unavailable()
    return replies.internal()


def _refused(error: Exception) -> Reply:
    """The reply to a send that failed before the owner was asked."""
    if isinstance(error, RequestRefused):
        return replies.of_request(error)
    if isinstance(error, TidelogError):
        _log.warning("a send was not accepted: %s", error)
        return reply_of(error)
    # A mistake of ours; the daemon keeps the row and retries.
    _log.error("a send failed", exc_info=error)
    return replies.internal()


def _envelope(fields: Mapping[str, Any]) -> SendEnvelope:
    """As the daemon reads it, but for the code of a kind that there is not (mesh 6.1)."""
    kind = fields.get("destination_kind")
    if isinstance(kind, str) and kind not in KINDS:
        raise RequestRefused(400, "destination_kind_invalid", f"not one of {', '.join(KINDS)}")
    return read_envelope(fields)


def _supersedes(fields: Mapping[str, Any]) -> str | None:
    given = fields.get("supersedes")
    if given is None:
        return None
    if not is_client_message_id(given):
        raise RequestRefused(400, "schema_invalid", "supersedes is not a client_message_id")
    return given
