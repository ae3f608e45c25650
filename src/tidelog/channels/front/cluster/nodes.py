"""What the fronts of one log tell each other: who is present, how many listen, what to close.

The owner passes it on, to its other fronts and to those of other nodes. It is heard in one order,
and never ahead of an entry that was committed before.

Who a socket belongs to is asked when a request names one that is not here, and not told in
advance: the reply is as fresh as it can be, and a connection costs the other fronts nothing.

Where there cannot be another front, nothing here has a timer or a task, and nothing is told.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels.front.cluster.messages import (
    Alive,
    Counted,
    EndUser,
    Joined,
    Left,
    NodeMessage,
    TellAll,
    ThisIs,
    Told,
    Updated,
    WhoIs,
    decode_told,
    encode_told,
)
from tidelog.channels.front.cluster.other_nodes import (
    FACTS_PER_PART,
    Part,
    Presence,
    in_parts,
)
from tidelog.channels.front.sockets.hub import Hub, SocketFacts
from tidelog.channels.messages import Done, Say
from tidelog.link.ends import FrontEnd
from tidelog.link.message import Failed, Message

TICK_SECONDS = 0.05
"""How long changed counts, and the reply to `TellAll`, are held back to go together."""

HEARTBEAT_SECONDS = 5.0

SILENCE_SECONDS = 15.0
"""A node that is silent for this long is gone, with its members and counts."""

QUESTION_SECONDS = 2.0
"""How long other nodes have to say whether a socket is theirs."""

SETTLING_SECONDS = 1.0
"""How long a node that starts cannot know whether there are others."""

_log = logging.getLogger(__name__)


class Question:
    """Who a socket belongs to: settled by the node that has it, or when no node has it."""

    def __init__(self, asked: Iterable[str]) -> None:
        self._asked = set(asked)
        self.answer: asyncio.Future[SocketFacts | None]
        self.answer = asyncio.get_running_loop().create_future()

    def hear(self, node: str, socket: SocketFacts | None) -> None:
        """A node has replied."""
        self._asked.discard(node)
        if not self.answer.done() and (socket is not None or not self._asked):
            self.answer.set_result(socket)


class Nodes:
    """This front and the others, each a node to the other. A `Watcher` of the hub."""

    def __init__(self, link: FrontEnd, hub: Hub) -> None:
        self.name = os.urandom(8).hex()
        self._link = link
        self._has_others = False
        self._hub = hub
        self._other_nodes = hub.other_nodes
        self._number = 0
        self._changed: set[str] = set()
        """Streams whose subscriptions are to be told."""
        self._is_asked = False
        """Whether all facts are to be told."""
        self._tick: asyncio.TimerHandle | None = None
        self._questions: dict[int, Question] = {}
        self._last_question = 0
        self._settled_at = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._is_over = False

    async def start(self, *, has_others: bool) -> None:
        """Begin to tell; the others know of this node when it returns."""
        self._has_others = has_others
        if has_others:
            self._hub.watcher = self
            self._settled_at = asyncio.get_running_loop().time() + SETTLING_SECONDS
            self._beating = asyncio.create_task(self._beat(), name="tidelog-channels-heartbeat")
            await self._announce(TellAll())

    # Telling.

    def tell(self, message: NodeMessage) -> asyncio.Future[None]:
        """Tell every other node; the future is done when they are told, and fails if not.

        A caller that does not wait relies on a node that missed it to notice.
        """
        if self._has_others:
            return self._announce(message)
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told.set_result(None)
        return told

    def _announce(self, message: NodeMessage) -> asyncio.Future[None]:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told.add_done_callback(_look_at)

        def answered(answer: Message) -> None:
            if told.done():
                return
            if isinstance(answer, Failed):
                told.set_exception(answer.raised())
            else:
                assert isinstance(answer, Done)  # noqa: S101 - both halves are ours
                told.set_result(None)

        self._number += 1
        self._link.ask(Say(encode_told(Told(self.name, self._number, message))), answered)
        return told

    def joined(self, user: Presence) -> None:
        """See `Watcher.joined`."""
        self.tell(Joined(user))

    def left(self, stream: str, user_id: str) -> None:
        """See `Watcher.left`."""
        self.tell(Left(stream, user_id))

    def updated(self, user: Presence) -> None:
        """See `Watcher.updated`."""
        self.tell(Updated(user.stream, user.user_id, user.user_info or b"null"))

    def counted(self, stream: str) -> None:
        """See `Watcher.counted`; told with others, a moment later."""
        self._changed.add(stream)
        self._tick_soon()

    def _tick_soon(self) -> None:
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        changed, self._changed = sorted(self._changed), set()
        if self._is_asked:
            # All at once, so that no other message of this node is heard between the parts.
            self._is_asked = False
            for part in in_parts(self._hub.counts(), self._hub.members()):
                self._announce(part)
            return
        for start in range(0, len(changed), FACTS_PER_PART):
            some = changed[start : start + FACTS_PER_PART]
            self._announce(Counted(tuple((s, self._subscriptions(s)) for s in some)))

    def _subscriptions(self, stream: str) -> int:
        channel = self._hub.channel(stream)
        return 0 if channel is None else len(channel.subscriptions)

    async def _beat(self) -> None:
        """Say that this node lives, and see who does not."""
        loop = asyncio.get_running_loop()
        is_cut_off = False
        while not self._is_over:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._announce(Alive())
            except ShuttingDown:
                self._is_over = True
            except (QueueFull, StoreError):
                is_cut_off = True  # announcements have said so in the log
            else:
                if is_cut_off:
                    is_cut_off = False
                    self._other_nodes.excuse(loop.time())
                for node in self._other_nodes.silent_since(loop.time() - SILENCE_SECONDS):
                    _log.warning("channels: node %s has gone silent; forgetting it", node)
                    self._went(self._other_nodes.forget(node))

    # Questions.

    async def socket(self, app_id: str, socket_id: str) -> SocketFacts | None:
        """Who a socket is; None if it is connected to no node.

        Raises:
            QueueFull: not all nodes have replied, so nobody knows.
            StoreError: the others cannot be asked.
        """
        here = self._hub.facts(app_id, socket_id)
        loop = asyncio.get_running_loop()
        asked = set(self._other_nodes.nodes)
        is_settling = self._has_others and loop.time() < self._settled_at
        if here is not None or not (asked or is_settling):
            return here
        question = Question({*asked, ""} if is_settling else asked)
        if is_settling:
            loop.call_at(self._settled_at, question.hear, "", None)
        self._last_question += 1
        number = self._last_question
        self._questions[number] = question
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                await self._announce(WhoIs(number, app_id, socket_id))
                return await question.answer
        except TimeoutError:
            raise QueueFull("no other node has said whose socket that is; retry soon") from None
        finally:
            del self._questions[number]

    # Hearing.

    def hear(self, payload: bytes) -> None:
        """Another node has said something."""
        told = decode_told(payload)
        node, message = told.node, told.message
        is_complete = self._other_nodes.hear(node, told.number, asyncio.get_running_loop().time())
        if not is_complete or (isinstance(message, Alive) and not self._other_nodes.is_whole(node)):
            self.tell(TellAll(node))
        self._act(node, message)

    def missed(self) -> None:
        """Others may have said something that was not heard."""
        self.tell(TellAll())

    def _act(self, node: str, message: NodeMessage) -> None:
        match message:
            case Counted(counts):
                self._other_nodes.counted(node, counts)
            case WhoIs(question, app_id, socket_id):
                self.tell(ThisIs(node, question, self._hub.facts(app_id, socket_id)))
            case ThisIs(asker, question, socket):
                if asker == self.name and question in self._questions:
                    self._questions[question].hear(node, socket)
            case EndUser(app_id, user_id, code):
                self._hub.end_user(app_id, user_id, code)
            case TellAll(wanted):
                if wanted in (None, self.name):
                    self._is_asked = True
                    self._tick_soon()
            case _:
                self._take_presence(node, message)

    def _take_presence(self, node: str, message: NodeMessage) -> None:
        match message:
            case Joined(user):
                if self._other_nodes.joined(node, user):
                    self._came([user])
            case Left(stream, user_id):
                if self._other_nodes.left(node, stream, user_id):
                    self._went([Presence(stream, user_id, None)])
            case Updated(stream, user_id, user_info):
                self._other_nodes.updated(Presence(stream, user_id, user_info))
                channel = self._hub.channel(stream)
                if channel is not None:
                    channel.updated(user_id, user_info)
            case Part():
                difference = self._other_nodes.take(node, message)
                if difference is not None:
                    self._came(difference.came)
                    self._went(difference.went)

    def _came(self, users: Sequence[Presence]) -> None:
        for stream, user_id, user_info in users:
            channel = self._hub.channel(stream)
            if channel is not None:
                channel.came(user_id, user_info)

    def _went(self, users: Sequence[Presence]) -> None:
        for stream, user_id, _ in users:
            channel = self._hub.channel(stream)
            if channel is not None:
                channel.went(user_id)


def _look_at(told: asyncio.Future[None]) -> None:
    """Nobody may be waiting, and an exception that nobody looks at would be reported as lost."""
    if not told.cancelled():
        told.exception()
