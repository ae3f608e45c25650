"""From a front's send to its reply: counted by the limiter, decided, committed (mesh 6.1)."""

import asyncio
from functools import partial

from tidelog.base.clock import Clock
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.ids import UlidFactory
from tidelog.link.ends import failed
from tidelog.link.message import Message
from tidelog.log.committer import Committer
from tidelog.mesh.decide.sends import CommitSend
from tidelog.mesh.messages import Accept, Replied
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.replies import Reply
from tidelog.mesh.upkeep.limiter import Limiter, Taken, Verdict
from tidelog.mesh.upkeep.questions import Question, Tell


class Accepting:
    """The way of sends into the committer's queue, in the order in which they came."""

    def __init__(
        self,
        committer: Committer,
        limiter: Limiter,
        clock: Clock,
        ulids: UlidFactory,
        metrics: MeshMetrics,
    ) -> None:
        self._committer = committer
        self._limiter = limiter
        self._clock = clock
        self._ulids = ulids
        self._metrics = metrics
        self._counting: set[asyncio.Task[None]] = set()

    def take(self, accept: Accept, tell: Tell) -> None:
        """Count and queue a send; at once if the limiter is in memory.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """
        now = self._clock.now_ms()
        counted = (accept.mesh, accept.sender.id, accept.client_message_id, now)
        taken = self._limiter.take_at_once(*counted)
        if taken is not None:
            self._queue(accept, taken, tell)
            return
        task = asyncio.create_task(self._count(accept, now, tell), name="tidelog-mesh-accept")
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)

    async def _count(self, accept: Accept, now_ms: int, tell: Tell) -> None:
        """As `take`. Whoever came first is counted first, and so is committed first."""
        try:
            taken = await self._limiter.take(
                accept.mesh, accept.sender.id, accept.client_message_id, now_ms
            )
            self._queue(accept, taken, tell)
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            tell(failed(error))

    def _queue(self, accept: Accept, taken: Taken, tell: Tell) -> None:
        if taken.verdict is Verdict.DENIED:
            self._metrics.rate_refusals.labels(accept.mesh.id).inc()
            tell(Replied(replies.rate_limited(taken.left_ms)))
            return
        reach(FaultPoint.BROKER_COUNTED)
        send = CommitSend(
            mesh_id=accept.mesh.id,
            sender=accept.sender,
            client_message_id=accept.client_message_id,
            broker_message_id=self._ulids.mint(),
            envelope=accept.envelope,
            fingerprint=accept.fingerprint,
            mentions=accept.mentions,
            supersedes=accept.supersedes,
        )
        decided = partial(self._decided, send.mesh_id)
        # Messages come by leases of their own, each later than any answer.
        question = Question(send, tell, decided, send.size_bytes, waits_for_entries=True)
        self._committer.submit(question)

    def _decided(self, mesh_id: str, reply: Reply) -> Message:
        if reply.status in (403, 404):
            self._metrics.units_without_message.labels(mesh_id).inc()
        return Replied(reply)
