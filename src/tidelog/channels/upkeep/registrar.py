"""The registry of who is there, as the owner keeps it: fronts ask it and are told by it.

A front joins users and counts subscriptions here, and is told of the members of channels that it
has members of, in the order of its link. When a front is lost, so are its members, at once.

An owner that has just started knows nobody yet. A front that has lost its owner closes its
connections before it says hello to the next one, so its hello is all that it has to report. Until
all fronts have said it, or had the time to, the registry is provisional: nobody is told that a user
has left, who may be on its way back, and no socket is said not to be connected.

Who a socket belongs to is asked when a request names one that is on another front, and not told in
advance: a sign-in that its client has seen must count for a request which that client sends to
another front right afterwards, and no order holds between two links. So is the end of a user's
connections told to every front: a list of users could lack the one who has just signed in.

Nodes of one log tell each other the same facts in announcements (`node_messages`), heard in one
order, and never ahead of an entry that was committed before. Where only one process can use the
store, none of that has a timer or a task.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Hashable, Iterable
from itertools import islice

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels import messages
from tidelog.channels.decide.registry import FACTS_PER_PART, Part, Presence, Registry, in_parts
from tidelog.channels.messages import (
    Admitted,
    CloseUser,
    Counts,
    Disconnect,
    Full,
    MemberAdded,
    MemberRemoved,
    MemberUpdated,
    SocketFacts,
    WhoHas,
)
from tidelog.channels.protocol.names import ChannelKind, kind_of, split_stream
from tidelog.channels.upkeep.node_messages import (
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
from tidelog.link.ends import OwnerEnd
from tidelog.link.message import Message

TICK_SECONDS = 0.05
"""How long changed counts, and the reply to `TellAll`, are held back to go together."""

HEARTBEAT_SECONDS = 5.0

PROVISIONAL_HEARTBEATS = 2
"""How many an owner waits at most for its fronts."""

SILENCE_SECONDS = 15.0
"""A node that is silent for this long is gone, with its members and counts."""

QUESTION_SECONDS = 2.0
"""How long others have to say whether a socket is theirs."""

SETTLING_SECONDS = 1.0
"""How long a node that starts cannot know whether there are others."""

MAX_QUESTIONS = 10_000
"""Sockets that are asked about at a time."""

REMOVALS_PER_TURN = 500
"""Members of a lost front that others are told of in one turn of the event loop."""

_FRONTS = "fronts"
_NODES = "nodes"
"""Of whom a question waits for more than those it asked: some may be yet to come."""

_log = logging.getLogger(__name__)


class Question:
    """Who a socket belongs to: settled by whoever has it, or when nobody has it."""

    def __init__(self, message: WhoHas, asked: Iterable[Hashable]) -> None:
        self._message = message
        self._asked = set(asked)
        self.answer: asyncio.Future[SocketFacts | None]
        self.answer = asyncio.get_running_loop().create_future()

    def ask(self, front: OwnerEnd) -> None:
        """Ask a front, also one that has come since the question was put."""
        self._asked.add(front)
        front.tell(self._message)

    def hear(self, place: Hashable, socket: SocketFacts | None) -> None:
        """One of those that were asked has replied."""
        self._asked.discard(place)
        if not self.answer.done() and (socket is not None or not self._asked):
            self.answer.set_result(socket)


class Registrar:
    """Keeps the registry, and tells what changes in it."""

    def __init__(
        self,
        max_members: int,
        tell_nodes: Callable[[bytes], "asyncio.Future[int]"],
        *,
        fronts: int,
        is_shared: bool,
    ) -> None:
        """`fronts` are so many as this node has when all have come."""
        self.name = os.urandom(8).hex()
        self.registry: Registry[OwnerEnd] = Registry(max_members)
        self._tell_nodes = tell_nodes
        self._is_shared = is_shared
        self._expected = fronts
        self._fronts: set[OwnerEnd] = set()
        """Those that have said hello."""
        self.is_provisional = True
        self._provisional_until: asyncio.TimerHandle | None = None
        self._removals: dict[tuple[str, str], None] = {}
        """Streams and users that others are yet to be told of, in order."""
        self._number = 0
        self._changed: set[str] = set()
        """Streams whose subscriptions are to be told to other nodes."""
        self._is_asked = False
        """Whether all facts are to be told."""
        self._tick: asyncio.TimerHandle | None = None
        self._questions: dict[int, Question] = {}
        self._last_question = 0
        self._settled_at = 0.0
        self._replying: set[asyncio.Task[None]] = set()
        """To other nodes; as many as there may be questions."""
        self._beating: asyncio.Task[None] | None = None
        self._is_over = False

    async def start(self) -> None:
        """Begin; the other nodes know of this one when it returns."""
        loop = asyncio.get_running_loop()
        if self._expected > 1:  # one front of the same process comes at once
            patience = PROVISIONAL_HEARTBEATS * HEARTBEAT_SECONDS
            self._provisional_until = loop.call_later(patience, self._settle)
        if self._is_shared:
            self._settled_at = loop.time() + SETTLING_SECONDS
            self._beating = asyncio.create_task(self._beat(), name="tidelog-channels-heartbeat")
            await self._announce(TellAll())

    # Fronts that come and go.

    def enter(self, front: OwnerEnd) -> None:
        """A front has connected."""
        self.registry.enter(front)

    def greeted(self, front: OwnerEnd) -> None:
        """It has said hello, and may have connections from now on."""
        self._fronts.add(front)
        for question in tuple(self._questions.values()):
            question.ask(front)
        if self.is_provisional and len(self._fronts) >= self._expected:
            self._settle()

    def lost(self, front: OwnerEnd) -> None:
        """It is gone with all that it had."""
        self._fronts.discard(front)
        for question in tuple(self._questions.values()):
            question.hear(front, None)
        for stream, user_id, _ in self.registry.drop(front):
            self._remove_later(stream, user_id)
        self._tell_all()

    def _settle(self) -> None:
        """All fronts are there, or had the time to come: who is not here is not connected."""
        self.is_provisional = False
        if self._provisional_until is not None:
            self._provisional_until.cancel()
        if self._removals:
            self._tell_removals()
        for question in tuple(self._questions.values()):
            question.hear(_FRONTS, None)

    # What fronts say and ask.

    def join(self, front: OwnerEnd, join: messages.Join) -> Admitted | Full:
        """One more socket of a user joins a channel."""
        arrival = self.registry.join(front, _presence(join))
        if arrival is None:
            return Full()
        user = Presence(join.stream, join.user_id, arrival.members[join.user_id])
        self._recounted(join.stream)
        if arrival.is_first:
            self._added(user, besides=front)
        if arrival.is_first_here:
            self._tell(Joined(user))
        return Admitted(arrival.members)

    def leave(self, front: OwnerEnd, leave: messages.Leave) -> None:
        """One of a user's sockets has left."""
        departure = self.registry.leave(front, leave.stream, leave.user_id)
        self._recounted(leave.stream)
        if departure.is_last:
            self._removed(leave.stream, leave.user_id)
        if departure.is_last_here:
            self._tell(Left(leave.stream, leave.user_id))

    def update(self, update: messages.UpdateMember) -> None:
        """A user has changed its info."""
        user = Presence(update.stream, update.user_id, update.user_info)
        if self.registry.updated(user):
            self._updated(update.stream, update.user_id, update.user_info)
            self._tell(Updated(update.stream, update.user_id, update.user_info))

    def recount(self, front: OwnerEnd, recount: messages.Recount) -> None:
        """A front has another number of subscriptions."""
        self.registry.count_front(front, recount.stream, recount.count)
        self._recounted(recount.stream)

    def count(self, streams: Iterable[str], *, with_users: bool = True) -> Counts:
        """How many are there, over all nodes."""
        registry = self.registry
        return Counts(
            tuple(
                (stream, registry.count(stream), len(registry.members(stream)) if with_users else 0)
                for stream in streams
            )
        )

    def counted(self, stream: str, info: frozenset[str]) -> dict[str, int]:
        """What the response to a publish says of a channel."""
        counts: dict[str, int] = {}
        if "subscription_count" in info:
            counts["subscription_count"] = self.registry.count(stream)
        if "user_count" in info and kind_of(split_stream(stream)[1]) is ChannelKind.PRESENCE:
            counts["user_count"] = len(self.registry.members(stream))
        return counts

    def disconnect(self, front: OwnerEnd, wanted: Disconnect) -> "asyncio.Future[int]":
        """Close a user's connections on all other fronts and nodes; done when they are told."""
        user = wanted.app_id, wanted.user_id, wanted.code
        for each in tuple(self._fronts):
            if each is not front:
                each.tell(CloseUser(*user))
        return self._announce(EndUser(*user))

    # Who a socket is.

    def is_alone(self, front: OwnerEnd) -> bool:
        """Whether a socket that this front has not is certainly connected nowhere."""
        return not self._places_besides(front)

    def _places_besides(self, front: OwnerEnd | None) -> set[Hashable]:
        """Who may have a socket that this front has not; for another node, the fronts of this."""
        places: set[Hashable] = {each for each in self._fronts if each is not front}
        if self.is_provisional:
            places.add(_FRONTS)
        if front is not None:
            places |= self.registry.nodes
            if self._is_shared and asyncio.get_running_loop().time() < self._settled_at:
                places.add(_NODES)
        return places

    async def socket(
        self, front: OwnerEnd | None, app_id: str, socket_id: str
    ) -> SocketFacts | None:
        """Who a socket is; None if it is connected nowhere, or not to this node if another asks.

        Raises:
            QueueFull: not all have replied, so nobody knows.
            StoreError: other nodes cannot be asked.
        """
        if len(self._questions) >= MAX_QUESTIONS:
            raise QueueFull("too many sockets are asked for at a time; retry soon")
        self._last_question += 1
        number = self._last_question
        places = self._places_besides(front)
        question = Question(WhoHas(number, app_id, socket_id), places)
        if not places:
            return None
        if _NODES in places:
            loop = asyncio.get_running_loop()
            loop.call_at(self._settled_at, question.hear, _NODES, None)
        self._questions[number] = question
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                for each in self._fronts - {front}:
                    question.ask(each)
                if front is not None and self._is_shared:
                    await self._announce(WhoIs(number, app_id, socket_id))
                return await question.answer
        except TimeoutError:
            raise QueueFull("nobody has said whose socket that is; retry soon") from None
        finally:
            del self._questions[number]

    def known(self, front: OwnerEnd, known: messages.Known) -> None:
        """A front has said whether a socket is its own."""
        self._hear_of(known.question, front, known.socket)

    def _hear_of(self, question: int, place: Hashable, socket: SocketFacts | None) -> None:
        if question in self._questions:
            self._questions[question].hear(place, socket)

    # Telling fronts.

    def _tell_members(self, stream: str, message: Message, besides: OwnerEnd | None = None) -> None:
        """Tell the fronts that have members on a channel."""
        for front in self.registry.fronts_with_members(stream):
            if front is not besides:
                front.tell(message)

    def _added(self, user: Presence, besides: OwnerEnd | None = None) -> None:
        self._tell_members(user.stream, MemberAdded(*user), besides)

    def _removed(self, stream: str, user_id: str) -> None:
        if self.is_provisional:
            self._remove_later(stream, user_id)
        else:
            self._tell_members(stream, MemberRemoved(stream, user_id))

    def _remove_later(self, stream: str, user_id: str) -> None:
        """Tell of it in a later turn, if the user is not back by then, and so has never left."""
        if not self._removals and not self.is_provisional:
            asyncio.get_running_loop().call_soon(self._tell_removals)
        self._removals[stream, user_id] = None

    def _tell_removals(self) -> None:
        for stream, user_id in tuple(islice(self._removals, REMOVALS_PER_TURN)):
            del self._removals[stream, user_id]
            if not self.registry.has(stream, user_id):
                self._tell_members(stream, MemberRemoved(stream, user_id))
        if self._removals:
            asyncio.get_running_loop().call_soon(self._tell_removals)

    def _updated(self, stream: str, user_id: str, user_info: bytes) -> None:
        self._tell_members(stream, MemberUpdated(stream, user_id, user_info))

    # Telling other nodes.

    def _announce(self, message: NodeMessage) -> "asyncio.Future[int]":
        """Tell every other node; the future is done when they are told, and fails if not.

        A caller that does not wait relies on a node that missed it to notice.
        """
        if not self._is_shared:
            return self._tell_nodes(b"")
        self._number += 1
        return self._tell_nodes(encode_told(Told(self.name, self._number, message)))

    def _tell(self, message: NodeMessage) -> None:
        if self._is_shared:
            self._announce(message)

    def _tell_all(self) -> None:
        """Tell all facts soon, however many have changed."""
        if self._is_shared:
            self._is_asked = True
            self._tick_soon()

    def _recounted(self, stream: str) -> None:
        """A channel has another number of subscriptions; told with others, a moment later."""
        if self._is_shared:
            self._changed.add(stream)
            self._tick_soon()

    def _tick_soon(self) -> None:
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        registry = self.registry
        changed, self._changed = sorted(self._changed), set()
        if self._is_asked:
            # All at once, so that no other message of this node is heard between the parts.
            self._is_asked = False
            for part in in_parts(registry.counts_here(), registry.members_here()):
                self._announce(part)
            return
        for start in range(0, len(changed), FACTS_PER_PART):
            some = changed[start : start + FACTS_PER_PART]
            self._announce(Counted(tuple((each, registry.count_here(each)) for each in some)))

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
                    self.registry.excuse(loop.time())
                for node in self.registry.silent_since(loop.time() - SILENCE_SECONDS):
                    _log.warning("channels: node %s has gone silent; forgetting it", node)
                    self._went(self.registry.forget(node))

    # Hearing other nodes.

    def hear(self, payload: bytes) -> None:
        """Another node has said something."""
        told = decode_told(payload)
        node, message = told.node, told.message
        is_complete = self.registry.hear(node, told.number, asyncio.get_running_loop().time())
        if not is_complete or (isinstance(message, Alive) and not self.registry.is_whole(node)):
            self._tell(TellAll(node))
        self._act(node, message)

    def missed(self) -> None:
        """Others may have said something that was not heard."""
        self._tell(TellAll())

    def _act(self, node: str, message: NodeMessage) -> None:
        match message:
            case Counted(counts):
                self.registry.counted(node, counts)
            case WhoIs(question, app_id, socket_id):
                replying = asyncio.create_task(self._reply(node, question, app_id, socket_id))
                self._replying.add(replying)
                replying.add_done_callback(self._replying.discard)
            case ThisIs(asker, question, socket):
                if asker == self.name:
                    self._hear_of(question, node, socket)
            case EndUser(app_id, user_id, code):
                for front in tuple(self._fronts):
                    front.tell(CloseUser(app_id, user_id, code))
            case TellAll(wanted):
                if wanted in (None, self.name):
                    self._tell_all()
            case _:
                self._take_presence(node, message)

    async def _reply(self, node: str, question: int, app_id: str, socket_id: str) -> None:
        """Tell a node whether a socket is connected here; nothing if that is not known."""
        try:
            socket = await self.socket(None, app_id, socket_id)
        except QueueFull as error:
            _log.warning("node %s asked for a socket: %s", node, error)
        else:
            self._tell(ThisIs(node, question, socket))

    def _take_presence(self, node: str, message: NodeMessage) -> None:
        match message:
            case Joined(user):
                if self.registry.joined(node, user):
                    self._added(user)
            case Left(stream, user_id):
                if self.registry.left(node, stream, user_id):
                    self._removed(stream, user_id)
            case Updated(stream, user_id, user_info):
                if self.registry.updated(Presence(stream, user_id, user_info)):
                    self._updated(stream, user_id, user_info)
            case Part():
                difference = self.registry.take(node, message)
                if difference is not None:
                    for user in difference.came:
                        self._added(user)
                    self._went(difference.went)

    def _went(self, users: Iterable[Presence]) -> None:
        for stream, user_id, _ in users:
            self._removed(stream, user_id)


def _presence(join: messages.Join) -> Presence:
    return Presence(join.stream, join.user_id, join.user_info)
