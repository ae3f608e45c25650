"""Leases on deliveries: claimed, acknowledged, given back (mesh 7.1, 7.3)."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.ids import UlidFactory
from tidelog.link.ends import failed
from tidelog.link.message import Message
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Names
from tidelog.log.request import Submission
from tidelog.mesh import messages
from tidelog.mesh.decide.claims import Claim, Complete, Completion, DeliveryKey, Release
from tidelog.mesh.messages import Completed, Leased, RecipientKey, Replied
from tidelog.mesh.protocol.model import queue_recipient
from tidelog.mesh.protocol.replies import Reply
from tidelog.mesh.upkeep.questions import Question, Tell

CLAIM_BYTES = 1024**2
"""Content after which one claim takes no further message: a front reads it into memory together,
and as JSON it can be six times as large."""

_log = logging.getLogger(__name__)


class Leasing:
    """What fronts ask about deliveries."""

    def __init__(
        self,
        committer: Committer,
        clock: Clock,
        ulids: UlidFactory,
        wake: Callable[[RecipientKey], None],
    ) -> None:
        """`wake` is called with whoever may get something that was given back."""
        self._committer = committer
        self._clock = clock
        self._ulids = ulids
        self._wake = wake
        self._claims: dict[RecipientKey, deque[tuple[Claim, Tell]]] = {}
        """Those that wait until one for the same recipient was decided; see
        `tidelog.mesh.decide.claims`. A connection, or a request, waits with one of them."""

    def claim(self, asked: messages.Claim, tell: Tell) -> None:
        """Lease what is due, once no other claim for the recipient is under way."""
        claim_id = self._ulids.mint()
        if asked.queue_id is not None:
            claim_id = f"{claim_id}.{asked.member.id}"  # so that it is of no use to anybody else
        item = Claim(
            mesh_id=asked.mesh_id,
            member=asked.member,
            queue_id=asked.queue_id,
            claim_id=claim_id,
            lease_ms=asked.lease_ms,
            limit=asked.limit,
            max_bytes=CLAIM_BYTES,
            asked_at=self._clock.now_ms(),
        )
        key = item.mesh_id, item.recipient
        waiting = self._claims.get(key)
        if waiting is None:
            self._claims[key] = deque(((item, tell),))
            self._submit_next(key)
        else:
            waiting.append((item, tell))

    def _submit_next(self, key: RecipientKey) -> None:
        waiting = self._claims[key]
        while waiting:
            item, tell = waiting.popleft()
            try:
                decided = partial(self._decided, key, tell)
                self._committer.submit(Question(item, decided, _leased, 512))
            except (QueueFull, ShuttingDown) as error:
                tell(failed(error))
            else:
                return
        del self._claims[key]

    def _decided(self, key: RecipientKey, tell: Tell, answer: Message) -> None:
        self._submit_next(key)
        tell(answer)

    def acknowledge(self, asked: messages.Acknowledge) -> None:
        """Close rows; those that are not kept come again."""
        items = [
            Complete(mesh_id, DeliveryKey(broker_message_id, recipient), claim_id)
            for mesh_id, recipient, broker_message_id, claim_id in asked.arrived
        ]
        names = Names(rows=tuple({("mesh_delivery", item.key) for item in items}))
        try:
            self._committer.submit(Submission(names, 256 * len(items), items, _ignore))
        except (QueueFull, ShuttingDown) as error:
            _log.warning("%d acknowledgements were not kept: %s", len(items), error)

    def complete(self, asked: messages.Complete, tell: Tell) -> None:
        """Close rows of a queue for the member whose claim it was.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """
        if asked.claim_id.partition(".")[2] != asked.member_id:
            tell(Completed(()))
            return
        reach(FaultPoint.BROKER_ACKNOWLEDGED)
        recipient, ids = queue_recipient(asked.queue_id), asked.broker_message_ids
        items = [
            Complete(asked.mesh_id, DeliveryKey(each, recipient), asked.claim_id) for each in ids
        ]
        names = Names(rows=tuple(("mesh_delivery", item.key) for item in items))

        def decided(found: Sequence[Answer | Failure]) -> None:
            for answer in found:
                if isinstance(answer, Failure):
                    tell(failed(answer.error))
                    return
            pairs = zip(ids, found, strict=True)
            tell(Completed([each for each, became in pairs if became is not Completion.LOST]))

        self._committer.submit(Submission(names, 256 * len(items), items, decided))

    def release(self, asked: messages.Release) -> None:
        """Give leases back, then wake whoever else may have them."""
        item = Release(
            tuple(
                [(DeliveryKey(message, asked.recipient), claim) for message, claim in asked.leases]
            )
        )

        def released(_: Sequence[Answer | Failure]) -> None:
            self._wake((asked.mesh_id, asked.recipient))

        size_bytes = 128 * len(asked.leases)
        try:
            self._committer.submit(Submission(item.names(), size_bytes, (item,), released))
        except (QueueFull, ShuttingDown):
            return  # the leases end by themselves


def _leased(answer: Leased | Reply) -> Message:
    return answer if isinstance(answer, Leased) else Replied(answer)


def _ignore(_: Sequence[Answer | Failure]) -> None:
    """Nobody waits: an acknowledgement that was not kept is asked for again by a new delivery."""
