"""The owner's half of sync: what fronts ask of the log, and what the log tells them.

It has the committer, the states, the model version and the register of clients; it has no
connection. A front is known by its end of the link and by what it follows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tidelog.base.errors import ConfigError, StoreDamaged
from tidelog.link.ends import OwnerEnd, Send, failed
from tidelog.link.message import Message
from tidelog.link.parts import parts
from tidelog.log.committer import Committer
from tidelog.store.engine import Store
from tidelog.store.rows import Entry
from tidelog.sync import messages
from tidelog.sync.decide.plugin_guard import GuardedPlugin
from tidelog.sync.decide.rules import SURFACE
from tidelog.sync.messages import (
    Attach,
    Attached,
    Event,
    Events,
    Hello,
    Join,
    Joined,
    ModelVersionChanged,
    ModelVersionStored,
    Retained,
    Submit,
    Welcome,
)
from tidelog.sync.protocol.insieme.events import project_of
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.settings import SyncSettings
from tidelog.sync.upkeep.clients import Clients
from tidelog.sync.upkeep.model_version import StoredModelVersion
from tidelog.sync.upkeep.other_nodes import OtherNodes
from tidelog.sync.upkeep.snapshots import Snapshots
from tidelog.sync.upkeep.state_cache import StateCache
from tidelog.sync.upkeep.submitting import Sender, Submitting

MAX_EVENTS_BYTES = 1_048_576
"""Of bodies that fronts are told of in one message, beside the last: what nobody asks for must fit
through the link (`link.bounds`)."""


class _Partitions(msgspec.Struct):
    partitions: list[str]


_decode_partitions = msgspec.json.Decoder(_Partitions).decode


class SyncOwner:
    """An `OwnerHalf` on a committer and a store."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        settings: SyncSettings,
        model: Model,
        plugin: GuardedPlugin | None,
        *,
        model_version: int,
    ) -> None:
        self._committer = committer
        self._store = store
        self._rules = Hello(model.digest, settings.plugin)
        self._version = StoredModelVersion(committer, store, model_version, self._version_changed)
        self.states = StateCache(store, committer.tail, model, settings, model_version)
        self.last_event = 0
        """The last event of sync that the tail delivered."""
        self.submitting = Submitting(committer, self.states, plugin)
        self.snapshots = Snapshots(committer, store, self.states)
        self.others = OtherNodes(
            committer.announcements,
            connected=self._connected_elsewhere,
            model_changed=self._version.follow,
        )
        self.clients = Clients(self.others)
        self._fronts: tuple[_Front, ...] = ()
        """Those that have said hello. Replaced, never changed: a front may be lost in between."""
        committer.tail.subscribe(SURFACE, self._deliver)
        committer.restore_bodies(SURFACE, self.archived)

    @classmethod
    async def open(
        cls,
        committer: Committer,
        store: Store,
        settings: SyncSettings,
        model: Model,
        plugin: GuardedPlugin | None,
    ) -> "SyncOwner":
        """With the last event and the model version of the store."""
        version = await StoredModelVersion.stored(committer, store, model.model_version)
        owner = cls(committer, store, settings, model, plugin, model_version=version)
        # It follows the tail from here on; what other nodes commit meanwhile comes from there.
        for (last,) in await store.rows("sync_last_event", (committer.tail.position,)):
            owner.last_event = max(owner.last_event, last)
        return owner

    def accept(self, send: Send) -> "_Front":
        """See `OwnerHalf.accept`."""
        return _Front(self, send)

    def welcome(self, front: "_Front", hello: Hello) -> Message:
        """Let a front in, which is told everything that comes from now on."""
        if hello != self._rules:
            return failed(
                ConfigError(
                    "sync.model_file, sync.profiles or sync.plugin is another one here than in the "
                    "process that owns the log; start tidelog again, so that all have the same"
                )
            )
        self._fronts = (*self._fronts, front)
        incarnations = self._committer.incarnations
        return Welcome(
            self._committer.tail.position,
            self.last_event,
            self._version.current,
            (*incarnations.former, incarnations.current),
        )

    def lost(self, front: "_Front") -> None:
        """A front is gone; what it submitted is committed all the same."""
        self._fronts = tuple(each for each in self._fronts if each is not front)
        self.clients.lost(front)

    async def attach(self) -> Message:
        """Catch up: what any node has acknowledged to a client must not be missing here."""
        await self._committer.catch_up()
        return Attached(self._committer.tail.position)

    async def join(self, front: "_Front", join: Join) -> Message:
        """Register an authenticated client."""
        await self._committer.catch_up()
        is_latest = await self.clients.register(front, join.connection, join.client_id)
        return Joined(self._committer.tail.position, is_latest)

    async def change_version(self, version: int) -> Message:
        """Store a new model version; every front is told before this returns."""
        old = await self._version.change(version)
        await self.others.tell_model_version()
        return ModelVersionStored(old)

    def _version_changed(self, old: int, new: int) -> None:
        self.states.model_version = new
        for front in self._fronts:
            front.tell(ModelVersionChanged(old, new))

    def _connected_elsewhere(self, client_id: str, claim: int) -> None:
        self.clients.connected_elsewhere(client_id, claim)

    async def archived(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Bodies that retention on another node moved to the archive before they came here."""
        found = await self._store.rows_of("sync_archived", [(each,) for each in ids])
        if not all(found):
            lost = [each for each, rows in zip(ids, found, strict=True) if not rows]
            raise StoreDamaged(f"events {lost[:10]} are neither in the log nor in the archive")
        return {each: rows[0][0] for each, rows in zip(ids, found, strict=True)}

    def _deliver(self, entries: Sequence[Entry]) -> None:
        events = []
        for entry in entries:
            body = entry.body
            assert body is not None  # noqa: S101 - new, or restored by `archived`
            partitions = _decode_partitions(body).partitions
            self.states.follow(entry, partitions)
            events.append(
                Event(
                    entry.committed_id,
                    entry.committed_at,
                    entry.entity,
                    entry.actor,
                    partitions,
                    body,
                )
            )
        for part in parts(events, lambda event: len(event.body), MAX_EVENTS_BYTES):
            self.last_event = part[-1].committed_id
            whole = Events(self.last_event, part)
            for front in self._fronts:
                front.deliver(whole)


class _Front(OwnerEnd):
    """One front: what it follows, and in which order its connections submit."""

    def __init__(self, owner: SyncOwner, send: Send) -> None:
        super().__init__(send)
        self._owner = owner
        self._partitions: set[str] = set()
        self._projects: set[str] = set()
        self._senders: dict[int, Sender] = {}
        self._take: Mapping[type[Any], Callable[[int, Any], None]] = {
            Hello: self._hello,
            Submit: self._submit,
            Attach: self._attach,
            messages.Detach: self._detach,
            Join: self._join,
            messages.Left: self._left,
            messages.ChangeModelVersion: self._change_version,
            messages.TakeSnapshot: self._take_snapshot,
            messages.PutSnapshot: self._put_snapshot,
            messages.Retain: self._retain,
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

    def deliver(self, events: Events) -> None:
        """Tell the front how far the log is, and what it follows of that."""
        followed = [event for event in events.events if self._follows(event.partitions)]
        if len(followed) < len(events.events):  # else all who follow them are told the same
            events = Events(events.position, followed)
        self.tell(events)

    def _follows(self, partitions: Sequence[str]) -> bool:
        return not self._partitions.isdisjoint(partitions) or (
            bool(self._projects) and not self._projects.isdisjoint(map(project_of, partitions))
        )

    def _hello(self, number: int, hello: Hello) -> None:
        self.send(number, self._owner.welcome(self, hello))

    def _submit(self, number: int, submit: Submit) -> None:
        sender = None
        if submit.connection:
            sender = self._senders.get(submit.connection)
            if sender is None:
                sender = self._senders[submit.connection] = Sender()
        self._owner.submitting.take(submit, sender, partial(self.send, number))

    def _attach(self, number: int, attach: Attach) -> None:
        # At once: what another `Attach` asks for next may rely on it.
        self._partitions.update(attach.partitions)
        self._projects.update(attach.projects)
        self.answer_later(number, self._owner.attach())

    def _detach(self, number: int, detach: messages.Detach) -> None:
        del number
        self._partitions.difference_update(detach.partitions)
        self._projects.difference_update(detach.projects)

    def _join(self, number: int, join: Join) -> None:
        self._owner.clients.arrived(self, join.connection, join.client_id)
        self.answer_later(number, self._owner.join(self, join))

    def _left(self, number: int, left: messages.Left) -> None:
        del number
        self._owner.clients.left(self, left.connection)
        self._senders.pop(left.connection, None)

    def _change_version(self, number: int, change: messages.ChangeModelVersion) -> None:
        self.answer_later(number, self._owner.change_version(change.version))

    def _take_snapshot(self, number: int, wish: messages.TakeSnapshot) -> None:
        self.answer_later(number, self._snapshot(wish))

    async def _snapshot(self, wish: messages.TakeSnapshot) -> Message:
        snapshots = self._owner.snapshots
        taken = await snapshots.take(wish.partition)
        if wish.is_stored and isinstance(taken, messages.Snapshot):
            return await snapshots.put(wish.partition, taken)
        return taken

    def _put_snapshot(self, number: int, put: messages.PutSnapshot) -> None:
        given = messages.Snapshot(put.committed_id, put.model_version, put.state)
        self.answer_later(number, self._owner.snapshots.put(put.partition, given))

    def _retain(self, number: int, retain: messages.Retain) -> None:
        self.answer_later(number, self._retained(retain.through))

    async def _retained(self, through: int) -> Message:
        return Retained(await self._owner.snapshots.retain(through))
