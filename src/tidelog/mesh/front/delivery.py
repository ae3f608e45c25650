"""Brings committed messages to connected members and to the consumers of queues (mesh 7.1, 7.3).

A push is a lease: the owner claims rows, they are read from the store, pushed, and closed by the
receiver's acknowledgement. Whatever gets lost in between is pushed again when the lease has ended.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.link.ends import FrontEnd
from tidelog.mesh.messages import (
    Acknowledge,
    Acknowledgement,
    Claim,
    Complete,
    Completed,
    Leased,
    RecipientKey,
    Release,
    Replied,
    Wake,
)
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol import replies, wire
from tidelog.mesh.protocol.envelopes import Stored, deliver_frame, received_envelope
from tidelog.mesh.protocol.fingerprint import RequestRefused
from tidelog.mesh.protocol.model import Member, Mesh, stream_name
from tidelog.mesh.protocol.replies import Reply
from tidelog.mesh.protocol.wire import ClientAck
from tidelog.mesh.settings import MeshSettings
from tidelog.store.engine import Store

MAX_QUEUE_CLAIM = 100
"""Messages in one claim of a queue."""

MAX_LEASE_MS = 300_000
"""Longest lease that a consumer of a queue may ask for (mesh 7.3)."""

LOOK_ROWS = 1000
"""Recipients or posts that one read of the store looks for."""

MAX_WAITING_ACKS = 10_000
"""Acknowledgements of one turn of the event loop; more are dropped, and their messages come
again."""

MAX_ID_CHARACTERS = 128
"""Of the ids in an acknowledgement. The broker makes none that is longer, so there is nothing to
close; and what members of all meshes acknowledge crosses the link together."""

RETRY_SECONDS = 1.0
"""Pause after the store refused a claim."""

_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """A connected member that has negotiated: deliveries can be pushed to it."""

    @property
    def mesh(self) -> Mesh:
        """Where it is connected."""

    @property
    def member(self) -> Member:
        """Who it is."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""

    def send(self, json: bytes) -> None:
        """Queue a frame."""

    async def drained(self) -> None:
        """Wait until the socket has taken what was sent."""


class _Lease(Struct):
    claim_id: str
    expires_at: int


class _Lane:
    """What is on its way to one connection."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.leases: dict[str, _Lease] = {}
        """Pushed and not acknowledged, by `broker_message_id`."""
        self.is_woken = False
        self.is_open = True
        self.task: asyncio.Task[None] | None = None

    def has_ended(self) -> bool:
        """Whether the connection is gone."""
        return not self.is_open

    @property
    def recipient_key(self) -> RecipientKey:
        return self.receiver.mesh.id, self.receiver.member.public_hex

    def forget_ended(self, now_ms: int) -> None:
        """Leases whose time is over do not count: their rows may be anybody's by now."""
        self.leases = {
            message: lease for message, lease in self.leases.items() if lease.expires_at > now_ms
        }


class PushDelivery:
    """Brings committed rows of the delivery queue to the receivers of a front.

    All calls come from the event loop; those that are not awaited neither block nor raise, but for
    a fault that a test has armed.
    """

    def __init__(
        self,
        link: FrontEnd,
        store: Store,
        settings: MeshSettings,
        clock: Clock,
        metrics: MeshMetrics,
    ) -> None:
        self._link = link
        self._store = store
        self._settings = settings
        self._clock = clock
        self._lanes: dict[RecipientKey, list[_Lane]] = {}
        self._posts: list[tuple[str, str]] = []
        """Mesh and message: posts to topics whose recipients are not woken yet."""
        self._is_looking = False
        self._is_looking_again = False
        self._acks: list[Acknowledgement] = []
        self._tasks: set[asyncio.Task[None]] = set()
        steps = metrics.deliveries
        self._pushed, self._claimed = steps.labels("pushed"), steps.labels("claimed")
        self._acknowledged = steps.labels("acknowledged")

    # Delivery.

    def wake(self, woken: Wake) -> None:
        """There may be new rows; posts of one turn and those meanwhile are looked up together."""
        for recipient_key in woken.recipients:
            for lane in self._lanes.get(recipient_key, ()):
                self._wake(lane)
        if woken.posts and self._lanes:
            if not self._is_looking:
                self._is_looking = True
                self._spawn(self._look())
            self._posts += woken.posts

    def look_again(self) -> None:
        """There may be rows that nobody was woken for."""
        if not self._is_looking_again:
            self._is_looking_again = True
            self._spawn(self._wake_waiting())

    def attached(self, receiver: Receiver) -> None:
        """A member can receive; what waited for it comes first."""
        lane = _Lane(receiver)
        self._lanes.setdefault(lane.recipient_key, []).append(lane)
        self._wake(lane)

    def detached(self, receiver: Receiver) -> None:
        """It no longer can; what was pushed and not acknowledged waits again at once.

        Called once for each that was attached, perhaps also for others.
        """
        recipient_key = receiver.mesh.id, receiver.member.public_hex
        lanes = self._lanes.pop(recipient_key, [])
        others = [lane for lane in lanes if lane.receiver is not receiver]
        if others:
            self._lanes[recipient_key] = others
        for lane in lanes:
            if lane.receiver is receiver:
                lane.is_open = False
                self._release(lane)

    def acknowledged(self, receiver: Receiver, frame: ClientAck) -> None:
        """A receiver has a message on its disk; that can only close a row of its own member."""
        reach(FaultPoint.BROKER_ACKNOWLEDGED)
        if max(len(frame.broker_message_id), len(frame.claim_id)) > MAX_ID_CHARACTERS:
            return
        recipient_key = receiver.mesh.id, receiver.member.public_hex
        for lane in self._lanes.get(recipient_key, ()):
            lease = lane.leases.get(frame.broker_message_id)
            if lease is not None and lease.claim_id == frame.claim_id:
                del lane.leases[frame.broker_message_id]
                self._wake(lane)
        if len(self._acks) >= MAX_WAITING_ACKS:
            return
        self._acknowledged.inc()
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._tell_acks)
        self._acks.append(Acknowledgement(*recipient_key, frame.broker_message_id, frame.claim_id))

    async def claim(
        self, mesh: Mesh, member: Member, queue_id: str, fields: Mapping[str, Any]
    ) -> Reply:
        """Lease messages of a queue; `fields` is the body of the request."""
        limit = _whole(fields, "limit", 1, most=MAX_QUEUE_CLAIM)
        lease_ms = _whole(
            fields, "lease_ms", min(self._settings.lease_ms, MAX_LEASE_MS), most=MAX_LEASE_MS
        )
        answer = await self._claim(Claim(mesh.id, member, limit, lease_ms, queue_id))
        if isinstance(answer, Reply):
            return answer
        reach(FaultPoint.BROKER_CLAIMED)
        claim_id = answer.claim_id
        items = [
            {**received_envelope(stored, mesh.slug, member.public_hex), "claim_id": claim_id}
            for stored in await self._stored(mesh, answer)
        ]
        self._claimed.inc(len(items))
        expires_at = replies.rfc3339(answer.expires_at)
        return Reply(200, {"claim_id": claim_id, "claim_expires_at": expires_at, "items": items})

    async def complete(
        self, mesh: Mesh, member: Member, queue_id: str, fields: Mapping[str, Any]
    ) -> Reply:
        """Messages of a queue are done; `fields` is the body of the request.

        409 when a lease was lost, and the rest is done all the same.
        """
        claim_id, messages = _completed_messages(fields)
        question = Complete(mesh.id, member.id, queue_id, claim_id, messages)
        done = (await self._link.reply(question, Completed)).broker_message_ids
        self._acknowledged.inc(len(done))
        return _completed(done, [message for message in messages if message not in done])

    # Its own doing.

    async def _wake_waiting(self) -> None:
        """Wake whoever has something to get.

        Rows may wait although nobody was woken for them: the node that claimed them has died, or
        the store refused a claim.
        """
        try:
            recipient_keys = tuple(self._lanes)
            for start in range(0, len(recipient_keys), LOOK_ROWS):
                page = recipient_keys[start : start + LOOK_ROWS]
                now = self._clock.now_ms()
                found = await self._store.rows_of(
                    "mesh_waiting", [(*recipient_key, now) for recipient_key in page]
                )
                for recipient_key, waiting in zip(page, found, strict=True):
                    if waiting:
                        for lane in self._lanes.get(recipient_key, ()):
                            self._wake(lane)
        except (StoreError, QueueFull) as error:
            _log.warning("recipients were not looked for; they will be again: %s", error)
        finally:
            self._is_looking_again = False

    async def _look(self) -> None:
        """Wake whom the posts wait for: a claim by every connected member would cost more."""
        try:
            while self._posts:
                posts, self._posts = self._posts[:LOOK_ROWS], self._posts[LOOK_ROWS:]
                keys = [(message,) for _, message in posts]
                found = await self._store.rows_of("mesh_recipients", keys)
                recipient_keys = {
                    (mesh_id, recipient)
                    for (mesh_id, _), rows in zip(posts, found, strict=True)
                    for (recipient,) in rows
                }
                for recipient_key in recipient_keys:
                    for lane in self._lanes.get(recipient_key, ()):
                        self._wake(lane)
        except StoreError as error:
            _log.warning("recipients were not woken; the reaper will: %s", error)
        finally:
            self._is_looking = False

    def _wake(self, lane: _Lane) -> None:
        lane.is_woken = True
        if lane.task is None and lane.is_open:
            lane.task = self._spawn(self._serve(lane))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name="tidelog-mesh-delivery")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, lane: _Lane) -> None:
        """Push until nothing waits or the connection has as much as it may."""
        try:
            while lane.is_woken and lane.is_open:
                lane.is_woken = False
                while await self._push_some(lane):
                    pass
        except (StoreError, QueueFull) as error:
            _log.warning("deliveries were put off: %s", error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake, lane)
        except ShuttingDown:
            pass
        except Exception:  # noqa: BLE001 - a mistake of ours; what is leased comes again
            _log.exception("a delivery failed")
        finally:
            lane.task = None

    async def _push_some(self, lane: _Lane) -> bool:
        """Claim and push once; False if there was nothing to claim or no room."""
        lane.forget_ended(self._clock.now_ms())
        room = self._settings.max_in_flight_deliveries - len(lane.leases)
        if room <= 0 or lane.has_ended():
            return False
        receiver = lane.receiver
        answer = await self._claim(
            Claim(receiver.mesh.id, receiver.member, room, self._settings.lease_ms)
        )
        if isinstance(answer, Reply) or not answer.messages:
            return False
        for message, _ in answer.messages:
            lane.leases[message] = _Lease(answer.claim_id, answer.expires_at)
        reach(FaultPoint.BROKER_CLAIMED)
        messages = await self._stored(receiver.mesh, answer)
        if lane.has_ended():
            self._release(lane)
            return False
        for stored in messages:
            frame = deliver_frame(
                stored, receiver.mesh.slug, receiver.member.public_hex, answer.claim_id
            )
            receiver.send(wire.encode(frame))
        self._pushed.inc(len(messages))
        await receiver.drained()
        return True

    async def _claim(self, claim: Claim) -> Leased | Reply:
        answer = await self._link.reply(claim, Leased, Replied)
        if isinstance(answer, Leased):
            return answer
        assert isinstance(answer, Replied)  # noqa: S101 - or it was not returned
        return answer.reply

    async def _stored(self, mesh: Mesh, leased: Leased) -> list[Stored]:
        """The messages of a lease; retention may have taken some since."""
        stream = stream_name(mesh.id)
        keys = [(stream, history_id) for _, history_id in leased.messages]
        found = await self._store.rows_of("mesh_entry", keys) if keys else []
        return [Stored._make(rows[0]) for rows in found if rows]

    def _tell_acks(self) -> None:
        """All acknowledgements of this turn."""
        arrived, self._acks = self._acks, []
        self._link.tell(Acknowledge(arrived))

    def _release(self, lane: _Lane) -> None:
        leases = [(message, lease.claim_id) for message, lease in lane.leases.items()]
        lane.leases = {}
        if leases:
            self._link.tell(Release(*lane.recipient_key, leases))


def _whole(fields: Mapping[str, Any], name: str, default: int, *, most: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise RequestRefused(400, "schema_invalid", f"{name} is not an integer from 1 to {most}")
    return value


def _completed_messages(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The lease and the messages of a completion: one, or a list of them."""
    claim_id = fields.get("claim_id")
    given = fields.get("broker_message_ids", [fields.get("broker_message_id")])
    if not isinstance(claim_id, str):
        raise RequestRefused(400, "schema_invalid", "claim_id is missing or not text")
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_QUEUE_CLAIM:
        raise RequestRefused(
            400, "schema_invalid", f"broker_message_ids is not a list of 1 to {MAX_QUEUE_CLAIM}"
        )
    messages = [each for each in given if isinstance(each, str)]
    if len(messages) != len(given) or len(set(messages)) != len(messages):
        raise RequestRefused(
            400, "schema_invalid", "a broker_message_id is not text, or is there twice"
        )
    return claim_id, messages


def _completed(done: Sequence[str], lost: Sequence[str]) -> Reply:
    body: dict[str, Any] = {"completed": list(done), "lost": list(lost)}
    return Reply(409, {"error": "claim_lost", **body}) if lost else Reply(200, body)
