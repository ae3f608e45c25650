"""What the channels nodes of one log tell each other beside the log.

Entries reach every node through its tail. Everything else that a client can notice goes as
announcements of one topic (`tidelog.log.announcements`): live events and summaries, who is present
and how many listen, what is to be closed, whose history has changed. Announcements are heard in one
order and never ahead of an entry that was committed before them.

Who a socket belongs to is asked when a request names one that is not here, and not told in
advance: the reply is as fresh as it can be, and a connection costs the other nodes nothing.

Where only one process can use the store, nothing here has a timer, a task or an announcement.
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
    HistoryChanged,
    Joined,
    Left,
    Live,
    NodeMessage,
    Revoked,
    Summary,
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
from tidelog.channels.front.sockets.delivery import Delivery
from tidelog.channels.front.sockets.hub import Hub, SocketFacts
from tidelog.channels.upkeep.erasing import Erased
from tidelog.channels.upkeep.revoking import Revoking
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.log.announcements import Announcements
from tidelog.store.rows import Announcement

TOPIC = "channels"

TICK_SECONDS = 0.05
"""How long changed counts, and the reply to `TellAll`, are held back to go together."""

HEARTBEAT_SECONDS = 5.0

SILENCE_SECONDS = 15.0
"""A node that is silent for this long is gone, with its members and counts."""

QUESTION_SECONDS = 2.0
"""How long other nodes have to say whether a socket is theirs."""

SETTLING_SECONDS = 1.0
"""How long a node that starts cannot know whether there are others."""

RETRY_SECONDS = 1.0
"""Pause after the store could not be read."""

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
    """This node and the others. A `Watcher` of the hub."""

    def __init__(
        self,
        announcements: Announcements,
        *,
        is_shared: bool,
        hub: Hub,
        delivery: Delivery,
        states: StateLoader,
        revoking: Revoking,
    ) -> None:
        self.name = os.urandom(8).hex()
        self._announcements = announcements
        self._is_shared = is_shared
        self._hub = hub
        self._other_nodes = hub.other_nodes
        self._delivery = delivery
        self._states = states
        self._revoking = revoking
        self._number = 0
        self._changed: set[str] = set()
        """Streams whose subscriptions are to be told."""
        self._is_asked = False
        """Whether all facts are to be told."""
        self._tick: asyncio.TimerHandle | None = None
        self._questions: dict[int, Question] = {}
        self._last_question = 0
        self._settled_at = 0.0
        self._stale: set[str] = set()
        """Channels whose state is to be read again."""
        self._refreshing: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._is_over = False

    async def start(self) -> None:
        """Begin to hear; the others know of this node when it returns."""
        if self._is_shared:
            self._hub.watcher = self
            self._settled_at = asyncio.get_running_loop().time() + SETTLING_SECONDS
            self._announcements.subscribe(TOPIC, self._hear, missed=self._on_missed)
            self._beating = asyncio.create_task(self._beat(), name="tidelog-channels-heartbeat")
            await self._announce(TellAll())

    # Telling.

    def tell(self, message: NodeMessage) -> asyncio.Future[int]:
        """Tell every other node; the future is done when they are told, and fails if not.

        A caller that does not wait relies on a node that missed it to notice.
        """
        if self._is_shared:
            return self._announce(message)
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        told.set_result(0)
        return told

    def _announce(self, message: NodeMessage) -> asyncio.Future[int]:
        self._number += 1
        told = Told(self.name, self._number, message)
        return self._announcements.announce(TOPIC, encode_told(told))

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
            self._revoking.read_soon()
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
        is_settling = self._is_shared and loop.time() < self._settled_at
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

    def _hear(self, announcement: Announcement) -> None:
        told = decode_told(announcement.payload)
        node, message = told.node, told.message
        is_complete = self._other_nodes.hear(node, told.number, asyncio.get_running_loop().time())
        if not is_complete:
            self._distrust_states()
        if not is_complete or (isinstance(message, Alive) and not self._other_nodes.is_whole(node)):
            self.tell(TellAll(node))
        self._act(node, message)

    def _on_missed(self) -> None:
        """See `Announcements.subscribe`."""
        self._distrust_states()
        self.tell(TellAll())

    def _act(self, node: str, message: NodeMessage) -> None:
        match message:
            case Live(stream, version):
                self._delivery.live(stream, version)
            case Summary(stream, summary):
                self._delivery.summary(stream, summary)
            case Counted(counts):
                self._other_nodes.counted(node, counts)
            case WhoIs(question, app_id, socket_id):
                self.tell(ThisIs(node, question, self._hub.facts(app_id, socket_id)))
            case ThisIs(asker, question, socket):
                if asker == self.name and question in self._questions:
                    self._questions[question].hear(node, socket)
            case EndUser(app_id, user_id, code):
                self._hub.end_user(app_id, user_id, code)
            case Revoked():
                self._revoking.read_soon()
            case HistoryChanged(streams, gone):
                self._states.forget_messages(gone)
                self._stale.update(streams)
                self._refresh_soon()
            case Erased():
                self._forget(message)
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

    # States of channels.

    def tell_erased(self, erased: Erased) -> asyncio.Future[int]:
        """Serve nothing from memory of what is erased, here and on every other node."""
        self._forget(erased)
        return self.tell(erased)

    def _forget(self, message: Erased) -> None:
        self._states.forget_messages(message.messages)
        for stream in message.streams if message.through else ():
            self._states.forget_messages(self._states.messages_of(stream, message.through))
        self._delivery.forget(message.streams)
        if message.client_id:
            self._delivery.forget_live(message.prefix, message.client_id)
        self._stale.update(message.streams)
        self._refresh_soon()

    def _distrust_states(self) -> None:
        """A change of some history may not have been heard of."""
        self._states.forget_idle_messages()
        self._delivery.forget_live()
        self._stale.update(self._states.streams())
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        if self._refreshing is None and self._stale:
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            while self._stale and not self._is_over:
                stream = self._stale.pop()
                try:
                    await self._states.refresh(stream)
                except StoreError as error:
                    _log.warning("the state of %s could not be read again: %s", stream, error)
                    self._stale.add(stream)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._refreshing = None
