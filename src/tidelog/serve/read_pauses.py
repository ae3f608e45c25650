"""A pause of reads in all processes, so that SQLite's write-ahead log can begin anew.

While reads overlap it never does by itself, and grows with all that is written. So the owner asks
the fronts, now and then and for some milliseconds, to begin none.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tidelog.link.ends import FrontEnd, OwnerEnd, Send
from tidelog.link.message import Failed, Message, Vocabulary
from tidelog.store import read_gate
from tidelog.store.read_gate import ReadGate


class Reads(Message, frozen=True):
    """A front has opened the store."""


class Paused(Message, frozen=True):
    """It reads nothing now."""

    round: int
    is_quiet: bool
    """Unless a read has taken too long."""


class Pause(Message, frozen=True):
    """Begin no read, and say when those that have begun have ended. Answered by `Paused`."""

    round: int
    quiet_seconds: float
    """How long to wait for that."""
    most_seconds: float
    """Then go on, should nobody say so."""


class Resume(Message, frozen=True):
    """Go on."""


VOCABULARY = Vocabulary(to_owner=Reads | Paused, to_front=Pause | Resume | Failed)


class PausingOwner:
    """The owner's half; one for all fronts."""

    def __init__(self) -> None:
        self.fronts: set[_AtFront] = set()
        self._round = 0

    def accept(self, send: Send) -> "_AtFront":
        """See `OwnerHalf.accept`."""
        return _AtFront(self, send)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[bool]:
        """See `ReadGate.others`. A front that does not reply in time holds nobody up."""
        self._round += 1
        seconds = read_gate.QUIET_SECONDS
        asked = {front: front.pause(self._round, seconds) for front in self.fronts}
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=seconds)
            yield all(each.done() and each.result() for each in asked.values())
        finally:
            for front in asked:
                front.tell(Resume())


class _AtFront(OwnerEnd):
    """One front."""

    def __init__(self, owner: PausingOwner, send: Send) -> None:
        super().__init__(send)
        self._owner = owner
        self._round = 0
        self._paused: asyncio.Future[bool] | None = None

    def pause(self, number: int, seconds: float) -> "asyncio.Future[bool]":
        """Ask it; done when it has replied, with whether it reads nothing."""
        self._round = number
        self._paused = asyncio.get_running_loop().create_future()
        self.tell(Pause(number, seconds, read_gate.MOST_SECONDS))
        return self._paused

    def received(self, number: int, message: Any) -> None:
        """See `AtOwner.received`."""
        del number
        match message:
            case Reads():
                self._owner.fronts.add(self)
            case Paused(asked, is_quiet) if asked == self._round:
                self._replied(is_quiet=is_quiet)

    def _replied(self, *, is_quiet: bool) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(is_quiet)

    def lost(self) -> None:
        """See `AtOwner.lost`: who is gone reads nothing."""
        self._owner.fronts.discard(self)
        self._replied(is_quiet=True)


class PausingFront:
    """The front's half."""

    def __init__(self, link: FrontEnd, gate: ReadGate) -> None:
        self._link = link
        self._gate = gate
        self._replying: asyncio.Task[None] | None = None
        link.hear = self._hear
        link.tell(Reads())

    def _hear(self, message: Pause | Resume) -> None:
        if isinstance(message, Pause):
            self._gate.close(message.most_seconds)
            self._replying = asyncio.create_task(self._reply(message))
        else:
            self._gate.open()

    async def _reply(self, asked: Pause) -> None:
        self._link.tell(Paused(asked.round, await self._gate.quiet(asked.quiet_seconds)))
