"""The owner's half of the mesh: what fronts ask of the log, and what the log tells them.

It has the committer, the limiter, the leases, the used tokens and the register of who is present;
it has no connection. What is due now and then (`periodic`) belongs to it too.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import msgspec

from tidelog.base.clock import ServerClock
from tidelog.base.ids import UlidFactory
from tidelog.link.ends import OwnerEnd, Send, failed
from tidelog.link.message import Message
from tidelog.log.committer import Committer
from tidelog.mesh import messages
from tidelog.mesh.messages import Accept, Arrive, Change, LookAgain, RecipientKey, Replied, Wake
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol.model import SURFACE, Member, Mesh, mesh_id_of
from tidelog.mesh.protocol.replies import Reply
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.upkeep.accepting import Accepting
from tidelog.mesh.upkeep.changes import Changes
from tidelog.mesh.upkeep.delivery_closer import DeliveryCloser
from tidelog.mesh.upkeep.lease_reaper import LeaseReaper
from tidelog.mesh.upkeep.leasing import Leasing
from tidelog.mesh.upkeep.limiter import limiter_for
from tidelog.mesh.upkeep.peers import Peers
from tidelog.mesh.upkeep.periodic import PeriodicWork
from tidelog.mesh.upkeep.pushed_leases import PushedLeases
from tidelog.mesh.upkeep.questions import Question, Tell
from tidelog.mesh.upkeep.retention import Retention
from tidelog.mesh.upkeep.used_tokens import UsedTokens
from tidelog.mesh.upkeep.webhooks import Webhooks
from tidelog.store.engine import Store
from tidelog.store.rows import Entry

ANNOUNCED_SECONDS = 5.0
"""How long a connection waits until the other nodes are told of it."""

_log = logging.getLogger(__name__)


class _Post(msgspec.Struct):
    """What the content of a post says of its deliveries."""

    recipients: int = 1
    """Earlier versions did not say it."""


_decode_post = msgspec.json.Decoder(_Post).decode


def _has_recipients(entry: Entry) -> bool:
    """Whether anybody is to be woken: fronts need not look for whom, if it is nobody."""
    return entry.body is None or _decode_post(entry.body).recipients > 0


class MeshOwner:
    """An `OwnerHalf` on a committer and a store."""

    def __init__(
        self, committer: Committer, store: Store, settings: MeshSettings, clock: ServerClock
    ) -> None:
        self._committer = committer
        self.clock = clock
        self._metrics = committer.metrics.part(MeshMetrics)
        ulids = UlidFactory(clock)
        self.limiter = limiter_for(store)
        self.accepting = Accepting(committer, self.limiter, clock, ulids, self._metrics)
        self.leasing = Leasing(committer, clock, ulids, self._wake)
        self.tokens = UsedTokens(store, committer, clock)
        self._changes = Changes(settings, clock, ulids)
        self.peers = Peers(committer.announcements, self.tell_all, self._note_concurrent)
        self.webhooks = Webhooks(
            committer, store, settings, clock, lambda: self._fronts, self.tell_all
        )
        self.periodic = PeriodicWork(
            committer,
            store,
            settings,
            clock,
            reaper=LeaseReaper(committer, store, clock, partial(self.tell_all, LookAgain())),
            webhooks=self.webhooks,
            retention=Retention(committer, store, clock),
            closer=DeliveryCloser(committer, store),
        )
        self._fronts: tuple[_Front, ...] = ()
        """Those that have said hello. Replaced, never changed: a front may be lost in between."""
        committer.tail.subscribe(SURFACE, self._on_entries)

    def accept(self, send: Send) -> "_Front":
        """See `OwnerHalf.accept`."""
        return _Front(self, send)

    def welcome(self, front: "_Front") -> Message:
        """Let a front in, which is told everything that comes from now on."""
        self._fronts = (*self._fronts, front)
        incarnations = self._committer.incarnations
        return messages.Welcome((*incarnations.former, incarnations.current))

    def lost(self, front: "_Front") -> None:
        """A front is gone. What it asked for is decided all the same; its leases are given back."""
        self._fronts = tuple(each for each in self._fronts if each is not front)
        self.peers.lost(front)
        self.webhooks.lost(front)

    def tell_all(self, message: Message) -> None:
        """Tell every front."""
        for front in self._fronts:
            front.tell(message)

    def change(self, asked: Change, tell: Tell) -> None:
        """Decide what changes a mesh or its members.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """
        decided = partial(self._changed, asked)
        self._committer.submit(Question(self._changes.item_of(asked), tell, decided, 512))

    def _changed(self, asked: Change, reply: Reply) -> Message:
        """Before anybody is told that it is done, nothing goes on as it was."""
        if reply.status == 200:
            match asked:
                case messages.ChangeMesh(mesh):
                    self.peers.changed(mesh)
                case messages.EndMembership(mesh_id, public_hex):
                    self.peers.revoked(mesh_id, public_hex)
        return Replied(reply)

    def _note_concurrent(self, mesh: Mesh, member: Member) -> None:
        """The audit event of mesh 9.6, whatever the policy makes of the two."""
        policy = mesh.clone_concurrency_policy
        self._metrics.concurrent_connections.labels(mesh.id, policy).inc()
        _log.warning(
            "member_concurrent_connection: mesh %s, member %s (%s): two daemons have connected "
            "with its key; the policy is %s",
            mesh.slug,
            member.public_hex,
            member.name,
            policy,
        )

    def _on_entries(self, entries: Sequence[Entry]) -> None:
        """The tail: whoever is connected may have got something; consumers of queues come."""
        posts = []
        for entry in entries:
            match entry.kind:
                case "send.dm":
                    self._wake((mesh_id_of(entry.stream), entry.ref))
                case "send.queue":
                    pass
                case _:
                    if _has_recipients(entry):
                        posts.append((mesh_id_of(entry.stream), entry.entity))
        if posts:
            woken = Wake(posts=tuple(posts))
            for front in self.peers.fronts():
                front.tell(woken)
        self.webhooks.nudge()

    def _wake(self, key: RecipientKey) -> None:
        if peers := self.peers.of(key):
            for front in {peer.front for peer in peers}:
                front.tell(Wake((key,)))


class _Front(OwnerEnd):
    """One front."""

    def __init__(self, owner: MeshOwner, send: Send) -> None:
        super().__init__(send)
        self._owner = owner
        self._leases = PushedLeases(owner.clock)
        self._take: Mapping[type[Any], Callable[[int, Any], None]] = {
            messages.Hello: self._hello,
            Accept: self._accept,
            messages.Claim: self._claim,
            messages.Acknowledge: self._acknowledge,
            messages.Release: self._release,
            messages.Complete: self._complete,
            messages.UseToken: self._use_token,
            messages.Attempted: self._attempted,
            messages.PostsEnded: self._posts_ended,
            Arrive: self._arrive,
            messages.Left: self._left,
            **dict.fromkeys(get_args(Change), self._change),
        }

    def received(self, number: int, message: Any) -> None:
        """See `AtOwner.received`."""
        try:
            self._take[type(message)](number, message)
        except Exception as error:  # noqa: BLE001 - what a front says must not harm the owner
            answer = failed(error)
            if number:
                self.send(number, answer)

    def lost(self) -> None:
        """See `AtOwner.lost`."""
        self._owner.lost(self)
        for left in self._leases.end():
            self._owner.leasing.release(left)

    def _hello(self, number: int, hello: messages.Hello) -> None:
        del hello
        self.send(number, self._owner.welcome(self))

    def _accept(self, number: int, accept: Accept) -> None:
        self._owner.accepting.take(accept, partial(self.send, number))

    def _claim(self, number: int, claim: messages.Claim) -> None:
        tell = partial(self.send, number)
        if claim.queue_id is None:  # a queue's consumer has its lease wherever it asks next
            tell = partial(self._claimed, claim, tell)
        self._owner.leasing.claim(claim, tell)

    def _claimed(self, claim: messages.Claim, tell: Tell, answer: Message) -> None:
        if isinstance(answer, messages.Leased):
            given_back = self._leases.add(claim.mesh_id, claim.member.public_hex, answer)
            if given_back is not None:
                self._owner.leasing.release(given_back)
        tell(answer)

    def _acknowledge(self, number: int, acknowledge: messages.Acknowledge) -> None:
        del number
        self._leases.acknowledged(acknowledge)
        self._owner.leasing.acknowledge(acknowledge)

    def _release(self, number: int, release: messages.Release) -> None:
        del number
        self._leases.released(release)
        self._owner.leasing.release(release)

    def _complete(self, number: int, complete: messages.Complete) -> None:
        self._owner.leasing.complete(complete, partial(self.send, number))

    def _use_token(self, number: int, use: messages.UseToken) -> None:
        self._owner.tokens.use(use, partial(self.send, number))

    def _attempted(self, number: int, attempted: messages.Attempted) -> None:
        self._owner.webhooks.attempted(attempted, partial(self.send, number))

    def _posts_ended(self, number: int, ended: messages.PostsEnded) -> None:
        del number
        self._owner.webhooks.ended(ended)

    def _arrive(self, number: int, arrive: Arrive) -> None:
        # At once: the front may say next that the connection has left.
        announced = self._owner.peers.arrived(self, arrive)
        if announced is None or announced.done():
            self.send(number, messages.Arrived())
        else:
            self.answer_later(number, _when_told(announced))

    def _left(self, number: int, left: messages.Left) -> None:
        del number
        self._owner.peers.left(self, left.connection)

    def _change(self, number: int, change: Change) -> None:
        self._owner.change(change, partial(self.send, number))


async def _when_told(announced: asyncio.Future[int]) -> Message:
    await asyncio.wait([announced], timeout=ANNOUNCED_SECONDS)
    return messages.Arrived()
