"""The owner's half of channels: what fronts ask of the log, and what the log tells them.

It has the committer, the states and all that is done by itself; it has no connection. A front is
known by its end of the link.
"""

import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tidelog.base.clock import Clock
from tidelog.channels import messages
from tidelog.channels.decide.rules import Terms
from tidelog.channels.decide.state import ChannelState
from tidelog.channels.messages import (
    Attached,
    CaughtUp,
    Distrust,
    Done,
    Entries,
    Erased,
    Floors,
    Forgotten,
    Identified,
    Live,
    Present,
    Refused,
    Revoked,
    StreamClosed,
    Summary,
    Welcome,
)
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.revocations import Revocation
from tidelog.channels.protocol.version import SURFACE
from tidelog.channels.settings import Channels
from tidelog.channels.stored import version_of
from tidelog.channels.upkeep.erasing import Erasing
from tidelog.channels.upkeep.other_nodes import (
    HistoryChanged,
    OtherNodes,
    RevocationsChanged,
    Told,
)
from tidelog.channels.upkeep.registrar import Registrar
from tidelog.channels.upkeep.retention import Retention
from tidelog.channels.upkeep.revoking import Revoking
from tidelog.channels.upkeep.stale_states import StaleStates
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.channels.upkeep.streams import Streams
from tidelog.channels.upkeep.submitting import Submitting
from tidelog.link.ends import OwnerEnd, Send, failed
from tidelog.link.message import Message
from tidelog.link.parts import parts
from tidelog.log.committer import Committer
from tidelog.store.engine import Store
from tidelog.store.rows import Entry

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

REVOCATIONS_PER_MESSAGE = 1000

MAX_ENTRIES_BYTES = 1_048_576
"""Of bodies that fronts are told of in one message, beside the last: what nobody asks for must fit
through the link (`link.bounds`)."""


class ChannelsOwner:
    """An `OwnerHalf` on a committer and a store."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        settings: Channels,
        clock: Clock,
        log_id: str,
        *,
        fronts: int,
    ) -> None:
        self._committer = committer
        self._store = store
        self._log_id = log_id
        terms = Terms(
            log_tag=log_id.lower(),
            limits=settings.ai_transport,
            ttl_ms=int(settings.idempotency_ttl_seconds * 1000),
            is_shared=store.is_shared,
        )
        ids = MessageIds(os.urandom)
        self.states = StateLoader(
            store, committer.tail, settings.max_cached_text_bytes, committer.catch_up
        )
        self._stale = StaleStates(self.states, committer.ended, self._tell_floors)
        self.revoking = Revoking(committer, store, clock, heard=self._revoked)
        self.others = OtherNodes(
            committer.announcements,
            is_shared=store.is_shared,
            hear=self._hear,
            hear_registrar=self._hear_registrar,
            doubt=self._distrust,
            missed=self._missed,
            beat=self.revoking.read_soon,
        )
        self.registrar = Registrar(
            settings.max_presence_members,
            self.others.tell_registrars,
            fronts=fronts,
            is_shared=store.is_shared,
        )
        self.erasing = Erasing(
            committer,
            store,
            self.states,
            log_tag=terms.log_tag,
            tell=self._erased,
            settled=self._tell_floors,
        )
        self.retention = Retention(
            committer,
            store,
            self.states,
            clock,
            settings.versioned_messages,
            self.revoking,
            purged=self._purged,
            settled=self._tell_floors,
        )
        self.submitting = Submitting(
            committer,
            self.states,
            clock,
            terms,
            ids=ids,
            spread=self._spread,
            counted=self.registrar.counted,
        )
        self.streams = Streams(
            committer,
            store,
            self.states,
            clock,
            settings.ai_transport,
            terms=terms,
            ids=ids,
            is_limited=self.submitting.is_limited,
        )
        self._fronts: tuple[_Front, ...] = ()
        """Those that have said hello. Replaced, never changed: a front may be lost in between."""
        committer.tail.subscribe(SURFACE, self._deliver)

    @classmethod
    async def open(
        cls,
        committer: Committer,
        store: Store,
        settings: Channels,
        clock: Clock,
        *,
        fronts: int = 1,
    ) -> "ChannelsOwner":
        """On a running committer, with all that it does by itself, for so many fronts."""
        log_id = (await store.head()).log_id
        owner = cls(committer, store, settings, clock, log_id, fronts=fronts)
        await owner.revoking.read()
        await owner.retention.open()
        if settings.versioned_messages.enabled:
            owner.streams.start()
        owner.erasing.start()
        owner.others.start()
        await owner.registrar.start()
        return owner

    def accept(self, send: Send) -> "_Front":
        """See `OwnerHalf.accept`."""
        front = _Front(self, send)
        self.registrar.enter(front)
        return front

    def welcome(self, front: "_Front") -> Message:
        """Let a front in, which is told everything that comes from now on."""
        self._fronts = (*self._fronts, front)
        revoked = tuple(self.revoking.known)
        for start in range(0, len(revoked), REVOCATIONS_PER_MESSAGE):
            front.tell(Revoked(revoked[start : start + REVOCATIONS_PER_MESSAGE]))
        incarnations = self._committer.incarnations
        return Welcome(
            self._committer.tail.position,
            self._log_id,
            (*incarnations.former, incarnations.current),
        )

    def lost(self, front: "_Front") -> None:
        """A front is gone; what it asked for is done all the same."""
        self._fronts = tuple(each for each in self._fronts if each is not front)
        self.registrar.lost(front)

    def _tell(self, message: Message, besides: "_Front | None" = None) -> None:
        for front in self._fronts:
            if front is not besides:
                front.tell(message)

    # Following.

    async def attached(self, stream: str) -> tuple[ChannelState, Attached]:
        """Hold the state of a channel; returns it, and where the channel is.

        The tail catches up first: what any node has acknowledged must not be missing here.
        """
        state = await self.states.load_channel(stream)
        try:
            await self._committer.catch_up()
        except BaseException:
            self.states.release(state)
            raise
        return state, self.standing(state)

    async def look(self, stream: str) -> Message:
        """Where a channel is, as far as this node knows."""
        state = await self.states.load_channel(stream)
        self.states.release(state)
        return self.standing(state)

    def standing(self, state: ChannelState) -> Attached:
        """Where a channel is."""
        return Attached(
            self._committer.tail.position,
            state.epoch,
            state.history_floor,
            state.replay_floor,
            state.delivered_serial,
            state.delivered_history,
            state.history_serial,
        )

    async def catch_up(self) -> Message:
        """Bring the tail to where the log ends."""
        await self._committer.catch_up()
        return CaughtUp(self._committer.tail.position)

    def _deliver(self, entries: Sequence[Entry]) -> None:
        told = []
        has_included = self.states.has_included
        for entry in entries:
            try:
                number = int(entry.entity[-20:])
                if not has_included(entry, number):
                    self._follow(entry, number)
            except Exception:  # noqa: BLE001 - fronts find it unreadable too, and tell their clients
                _log.exception("entry %d could not be followed", entry.committed_id)
            told.append(
                messages.Entry(
                    entry.committed_id,
                    entry.committed_at,
                    entry.stream,
                    entry.stream_serial,
                    entry.kind,
                    entry.entity,
                    entry.body,
                )
            )
        for part in parts(told, _size, MAX_ENTRIES_BYTES):
            message = Entries(part[-1].committed_id, part)
            for front in self._fronts:
                front.deliver(message)

    def _follow(self, entry: Entry, number: int) -> None:
        """Bring the states up to an entry that was not decided here."""
        version = version_of(entry)
        if version is not None:
            self.states.follow(entry.stream, version, number)

    def _tell_floors(self, streams: Iterable[str]) -> None:
        """Epoch or floors of these may be others."""
        for stream in streams:
            for front in self._fronts:
                front.tell_floors(stream)

    # What fronts and nodes are told.

    def _spread(self, message: Live | Summary) -> "asyncio.Future[int]":
        """Give a frame that no entry carries to all fronts, here and on other nodes."""
        self._tell(message)
        return self.others.tell(message)

    def _erased(self, erased: Erased) -> "asyncio.Future[int]":
        self._forget(erased)
        return self.others.tell(erased)

    def _forget(self, erased: Erased) -> None:
        """Nothing of it is served from memory any more."""
        states = self.states
        states.forget_messages(erased.messages)
        for stream in erased.streams if erased.through else ():
            states.forget_messages(states.messages_of(stream, erased.through))
        self._tell(erased)
        self._stale.add(erased.streams)

    def _purged(self, streams: tuple[str, ...], gone: tuple[int, ...]) -> None:
        self.others.tell(HistoryChanged(streams, gone))

    async def revoke(self, front: "_Front", wanted: messages.Revoke) -> Message:
        """Revoke tokens, on every front and every node.

        A node that cannot be told finds it in the store.
        """
        revoked = Revoked(await self.revoking.revoke(wanted.app_id, wanted.named))
        self._tell(revoked, besides=front)
        self.others.tell(RevocationsChanged())
        return revoked

    def _revoked(self, revocations: Sequence[Revocation]) -> None:
        self._tell(Revoked(tuple(revocations)))

    # What other nodes tell.

    def _hear(self, message: Told) -> None:
        match message:
            case Live() | Summary():
                self._tell(message)
            case Erased():
                self._forget(message)
            case HistoryChanged(streams, gone):
                self.states.forget_messages(gone)
                self._stale.add(streams)
            case RevocationsChanged():
                self.revoking.read_soon()

    def _hear_registrar(self, payload: bytes) -> None:
        self.registrar.hear(payload)

    def _distrust(self) -> None:
        """A change of some history may not have been heard of."""
        self.states.forget_idle_messages()
        self._stale.add(self.states.streams())
        self._tell(Distrust())

    def _missed(self) -> None:
        self._distrust()
        self.registrar.missed()


class _Front(OwnerEnd):
    """One front."""

    def __init__(self, owner: ChannelsOwner, send: Send) -> None:
        super().__init__(send)
        self._owner = owner
        self._registrar = owner.registrar
        self._is_lost = False
        self._follows_all = False
        self._wanted: set[str] = set()
        """Streams that it has attached."""
        self._held: dict[str, ChannelState] = {}
        """Their states: what is subscribed to stays in memory."""
        self._take: Mapping[type[Any], Callable[[int, Any], None]] = {
            messages.Hello: self._hello,
            messages.Attach: self._attach,
            messages.Detach: self._detach,
            messages.Look: self._look,
            messages.CatchUp: self._catch_up,
            messages.Publish: self._publish,
            messages.Mutate: self._mutate,
            messages.Summarize: self._summarize,
            messages.Forget: self._forget,
            messages.EraseHistory: self._erase_history,
            messages.CloseStream: self._close_stream,
            messages.Revoke: self._revoke,
            messages.Join: self._join,
            messages.Leave: self._leave,
            messages.UpdateMember: self._update_member,
            messages.Recount: self._recount,
            messages.Count: self._count,
            messages.Occupied: self._occupied,
            messages.ListMembers: self._list_members,
            messages.Identify: self._identify,
            messages.Known: self._known,
            messages.Disconnect: self._disconnect,
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
        self._is_lost = True
        self._owner.lost(self)
        self._drop(tuple(self._wanted))

    def deliver(self, entries: Entries) -> None:
        """Tell the front how far the log is, and what it follows of that."""
        if not self._follows_all:
            wanted = self._wanted
            followed = [each for each in entries.entries if each.stream in wanted]
            if len(followed) < len(entries.entries):  # else all who follow them are told the same
                entries = Entries(entries.position, followed)
        self.send(0, entries)

    def tell_floors(self, stream: str) -> None:
        """Tell the front what a channel has now, if it has attached it."""
        state = self._held.get(stream)
        if state is not None:
            self.tell(Floors(stream, state.epoch, state.history_floor, state.replay_floor))

    def _hello(self, number: int, hello: messages.Hello) -> None:
        self._follows_all = hello.follows_all
        self.send(number, self._owner.welcome(self))
        self._registrar.greeted(self)

    def _attach(self, number: int, attach: messages.Attach) -> None:
        self._wanted.add(attach.stream)  # at once: what comes while it is loaded must not be missed
        self.answer_later(number, self._attached(attach.stream, attach.join))

    async def _attached(self, stream: str, join: messages.Join | None) -> Message:
        states = self._owner.states
        state, answer = await self._owner.attached(stream)
        if stream in self._wanted and stream not in self._held:
            self._held[stream] = state
        else:
            states.release(state)
        if join is not None and not self._is_lost:  # in the step in which it is answered
            answer = structs.replace(answer, joined=self._registrar.join(self, join))
        return answer

    def _detach(self, number: int, detach: messages.Detach) -> None:
        del number
        self._drop(detach.streams)

    def _drop(self, streams: Iterable[str]) -> None:
        self._wanted.difference_update(streams)
        for stream in streams:
            state = self._held.pop(stream, None)
            if state is not None:
                self._owner.states.release(state)

    def _look(self, number: int, look: messages.Look) -> None:
        owner = self._owner
        state = owner.states.channel(look.stream)
        if state is None:
            self.answer_later(number, owner.look(look.stream))
        else:
            owner.states.release(state)
            self.send(number, owner.standing(state))

    def _catch_up(self, number: int, wanted: messages.CatchUp) -> None:
        del wanted
        self.answer_later(number, self._owner.catch_up())

    def _publish(self, number: int, wanted: messages.Publish) -> None:
        self._owner.submitting.publish(wanted, partial(self.send, number))

    def _mutate(self, number: int, wanted: messages.Mutate) -> None:
        self._owner.submitting.mutate(wanted, partial(self.send, number))

    def _summarize(self, number: int, wanted: messages.Summarize) -> None:
        self._owner.submitting.summarize(wanted, partial(self.send, number))

    def _forget(self, number: int, wanted: messages.Forget) -> None:
        self.answer_later(number, _or_refused(self._forgotten(wanted)))

    async def _forgotten(self, wanted: messages.Forget) -> Message:
        erasing = self._owner.erasing
        if wanted.asked is None:
            return Forgotten(await erasing.is_complete(wanted.app_id, wanted.target))
        return Forgotten(await erasing.forget(wanted.app_id, wanted.target, wanted.asked))

    def _erase_history(self, number: int, wanted: messages.EraseHistory) -> None:
        erasing = self._owner.erasing
        self.answer_later(number, erasing.erase_history(wanted.stream, wanted.floor, wanted.asked))

    def _close_stream(self, number: int, wanted: messages.CloseStream) -> None:
        self.answer_later(number, _or_refused(self._closed(wanted)))

    async def _closed(self, wanted: messages.CloseStream) -> Message:
        return StreamClosed(
            await self._owner.streams.close(
                wanted.app_id, wanted.channel, wanted.message_serial, wanted.silent_ms
            )
        )

    def _revoke(self, number: int, wanted: messages.Revoke) -> None:
        self.answer_later(number, _or_refused(self._owner.revoke(self, wanted)))

    # Who is there.

    def _join(self, number: int, join: messages.Join) -> None:
        self.send(number, self._registrar.join(self, join))

    def _leave(self, number: int, leave: messages.Leave) -> None:
        del number
        self._registrar.leave(self, leave)

    def _update_member(self, number: int, update: messages.UpdateMember) -> None:
        del number
        self._registrar.update(update)

    def _recount(self, number: int, recount: messages.Recount) -> None:
        del number
        self._registrar.recount(self, recount)

    def _count(self, number: int, count: messages.Count) -> None:
        self.send(number, self._registrar.count(count.streams))

    def _occupied(self, number: int, wanted: messages.Occupied) -> None:
        streams = self._registrar.registry.streams(wanted.prefix)
        self.send(number, self._registrar.count(streams, with_users=wanted.with_users))

    def _list_members(self, number: int, wanted: messages.ListMembers) -> None:
        members = self._registrar.registry.members(wanted.stream)
        self.send(number, Present(wanted.stream, members))

    def _identify(self, number: int, wanted: messages.Identify) -> None:
        if self._registrar.is_alone(self):
            self.send(number, Identified(None))
        else:
            self.answer_later(number, self._identified(wanted))

    async def _identified(self, wanted: messages.Identify) -> Message:
        return Identified(await self._registrar.socket(self, wanted.app_id, wanted.socket_id))

    def _known(self, number: int, known: messages.Known) -> None:
        del number
        self._registrar.known(self, known)

    def _disconnect(self, number: int, wanted: messages.Disconnect) -> None:
        told = self._registrar.disconnect(self, wanted)
        if told.done() and not told.exception():
            self.send(number, Done())
        else:
            self.answer_later(number, _done(told))


def _size(entry: messages.Entry) -> int:
    return len(entry.body or b"")


async def _or_refused(work: Coroutine[Any, Any, Message]) -> Message:
    """What `work` returns, or the refusal that it raises."""
    try:
        return await work
    except Fault as refused:
        return Refused.of(refused)


async def _done(told: "asyncio.Future[int]") -> Message:
    await told
    return Done()
