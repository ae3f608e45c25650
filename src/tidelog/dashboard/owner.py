"""The owner's half of the dashboard: samples of the committer, entries of the tail, ended logins.

What every page of every front shows is taken here once. The tail brings entries; they are gathered
for a tenth of a second, so that a log of any speed costs a page ten messages a second. Without an
open page it costs one sample a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidelog.base.clock import Clock
from tidelog.dashboard.messages import (
    Counted,
    Done,
    Hello,
    LoggedOut,
    LogOut,
    Sampled,
    Watch,
    Watching,
    Welcome,
    Written,
)
from tidelog.dashboard.samples import NOTHING, Counts, Samples, counts_of
from tidelog.dashboard.sessions import Ended, EndedLogins
from tidelog.link.ends import OwnerEnd, Send
from tidelog.link.message import Message
from tidelog.log.committer import Committer
from tidelog.store.rows import Announcement, Entry

LOGGED_OUT = "dashboard.logged_out"
"""What nodes tell each other: a login is over."""

GATHER_SECONDS = 0.1
"""How long entries are gathered; ten changes a second are as many as an eye can follow."""

SAMPLE_SECONDS = 1.0

MAX_GATHERED = 5000
MAX_GATHERED_BYTES = 8 * 1024**2
"""Of the entries that are told at once; older ones are let go, and pages say how many."""


class DashboardOwner:
    """One for all fronts."""

    def __init__(
        self, committer: Committer, clock: Clock, *, has_many_fronts: bool = False
    ) -> None:
        """`has_many_fronts`: they are in other processes, with metrics of their own."""
        self.committer = committer
        self._clock = clock
        self._has_many_fronts = has_many_fronts
        self.fronts: dict[AtFront, None] = {}
        self.gone = NOTHING
        """What fronts counted that are no more."""
        self.samples = Samples(committer.metrics, committer.tail.position, clock.now_ms())
        self.ended = EndedLogins()
        self._loop = asyncio.get_running_loop()
        committer.announcements.subscribe(LOGGED_OUT, self._hear)
        self._sample_later()

    def accept(self, send: Send) -> "AtFront":
        """See `OwnerHalf.accept`."""
        return AtFront(self, send)

    def log_out(self, ended: Ended, *, told_by: "AtFront | None" = None) -> None:
        """A login is over; all fronts but the one that says so are told, if it is news."""
        for front in self.fronts if self.ended.note(ended) else ():
            if front is not told_by:
                front.tell(LoggedOut(ended))

    def _hear(self, announcement: Announcement) -> None:
        self.log_out(msgspec.msgpack.decode(announcement.payload, type=Ended))

    def _sample_later(self) -> None:
        self._loop.call_later(SAMPLE_SECONDS, self._sample)

    def _sample(self) -> None:
        if self.committer.ended.is_set():
            return
        self._sample_later()
        counts = sum((front.counts for front in self.fronts), self.gone)
        if self._has_many_fronts:
            counts += counts_of(self.committer.metrics)
        position = self.committer.tail.position
        sample, is_new = self.samples.take(self._clock.now_ms(), position, counts)
        sampled = Sampled(sample, is_new, self.samples.commits)
        for front in tuple(self.fronts):
            front.tell(sampled)


class AtFront(OwnerEnd):
    """One front."""

    def __init__(self, owner: DashboardOwner, send: Send) -> None:
        super().__init__(send)
        self._owner = owner
        self.counts: Counts = NOTHING
        self._leave: list[Callable[[], None]] = []
        self._gathered: deque[Entry] = deque(maxlen=MAX_GATHERED)
        self._is_gathering = False

    def received(self, number: int, message: Any) -> None:
        """See `AtOwner.received`."""
        match message:
            case Hello(known):
                for ended in known:
                    self._owner.log_out(ended)
                self._owner.fronts[self] = None
                welcome = Welcome(tuple(self._owner.samples.kept), self._owner.ended.all())
                self.send(number, welcome)
            case Watch(surfaces):
                self._watch(surfaces)
                self.send(number, Watching(self._owner.committer.tail.position))
            case Counted(counts):
                self.counts = counts
            case LogOut(ended):
                self._owner.log_out(ended, told_by=self)
                self.answer_later(number, self._announce(ended))

    def lost(self) -> None:
        """See `AtOwner.lost`."""
        self._owner.fronts.pop(self, None)
        self._owner.gone += self.counts.left()
        self._watch(())

    async def _announce(self, ended: Ended) -> Message:
        await self._owner.committer.announcements.announce(
            LOGGED_OUT, msgspec.msgpack.encode(ended)
        )
        return Done()

    def _watch(self, surfaces: Sequence[str]) -> None:
        for leave in self._leave:
            leave()
        tail = self._owner.committer.tail
        self._leave = [tail.subscribe(surface, self._sink) for surface in surfaces]
        if not surfaces:
            self._gathered.clear()

    def _sink(self, entries: Sequence[Entry]) -> None:
        self._gathered.extend(entries)
        if not self._is_gathering:
            self._is_gathering = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._push)

    def _push(self) -> None:
        self._is_gathering = False
        entries = _newest(self._gathered)
        self._gathered.clear()
        if entries:
            self.tell(Written(entries))


def _newest(gathered: Sequence[Entry]) -> Sequence[Entry]:
    """As many as may be told at once, but one at least."""
    kept, room = 0, MAX_GATHERED_BYTES
    for entry in reversed(gathered):
        room -= len(entry.body or b"") + len(entry.data or b"")
        if room < 0 and kept:
            break
        kept += 1
    return tuple(gathered)[len(gathered) - kept :]
