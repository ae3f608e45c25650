"""What all processes of a server know together: whoever asks one of them hears of all.

A front asks the owner, which asks every front. One that does not answer in time is taken as it was
when it last did, so the sums of its figures do not go back while it is busy.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.base.metric_totals import TOPIC as METRICS
from tidelog.base.metric_totals import (
    Families,
    decoded,
    encoded,
    growing,
    rendered,
    totals,
)
from tidelog.base.metrics import Metrics
from tidelog.base.together import Together
from tidelog.link.ends import FrontEnd, OwnerEnd, Send
from tidelog.link.message import Failed, Message, Vocabulary

WAIT_SECONDS = 1.0
"""How long the owner waits for a front; scrapers wait ten seconds."""

OWNER = "owner"
GONE = "gone"
"""In place of a process: what those counted that are no more."""

AWAY = "the owner of the log is away; waiting for it"
HANGS = "the owner of the log does not respond; if it goes on so, it is started again"

_log = logging.getLogger(__name__)

Topics = Mapping[str, Callable[[], bytes]]
"""What a process tells of itself, by topic."""


class Enter(Message, frozen=True):
    """The first message of a front."""

    name: str


class Gather(Message, frozen=True):
    """What does every process say of this? Answered by `Gathered`."""

    topic: str


class Given(Message, frozen=True):
    """What a front was asked for; nothing, if it has nothing to say of it."""

    round: int
    payload: bytes | None


class AskHealth(Message, frozen=True):
    """How is the owner? Answered by `Health`."""


class Give(Message, frozen=True):
    """The owner asks a front."""

    round: int
    topic: str


class Part(Struct, frozen=True, array_like=True):
    """What one process says."""

    process: str
    payload: bytes


class Gathered(Message, frozen=True):
    """What all say that have anything to say: the owner first, then the fronts by their names."""

    parts: Sequence[Part]


class Health(Message, frozen=True):
    """Whether the owner takes writes."""

    problem: str | None
    """Why not; anybody may read it."""


VOCABULARY = Vocabulary(
    to_owner=Enter | Gather | Given | AskHealth, to_front=Give | Gathered | Health | Failed
)


def metrics_topic(metrics: Metrics) -> Topics:
    """The figures of a process."""
    return {METRICS: lambda: encoded(metrics.collected())}


class GatheringOwner:
    """The owner's half; one for all fronts."""

    def __init__(self, topics: Topics, problem: Callable[[], str | None]) -> None:
        self.topics = topics
        self.problem = problem
        self.fronts: dict[_AtFront, None] = {}
        self._gone: Families = ()
        self._rounds: dict[str, _Round] = {}
        """By topic, the one that is asked."""
        self._next: dict[str, asyncio.Future[Gathered]] = {}
        """By topic, what waits for the one that is asked: whoever asks now hears what is so now."""
        self._number = 0
        self._left = asyncio.Event()

    async def all_left(self) -> None:
        """Return when no front is here."""
        while self.fronts:
            self._left.clear()
            await self._left.wait()

    def accept(self, send: Send) -> "_AtFront":
        """See `OwnerHalf.accept`."""
        return _AtFront(self, send)

    async def gather(self, topic: str) -> Gathered:
        """Ask all; who asks while others are waiting shares what they get next."""
        if topic not in self._rounds:
            return await self._round(topic)
        if topic not in self._next:
            self._next[topic] = asyncio.ensure_future(self._later(topic))
        return await asyncio.shield(self._next[topic])

    async def _later(self, topic: str) -> Gathered:
        while under_way := self._rounds.get(topic):
            await under_way.over.wait()
        self._next.pop(topic, None)
        return await self._round(topic)

    async def _round(self, topic: str) -> Gathered:
        self._number += 1
        asked = self._rounds[topic] = _Round(self._number, set(self.fronts))
        try:
            for front in tuple(self.fronts):
                front.tell(Give(asked.number, topic))
            await asked.answered()
        finally:
            del self._rounds[topic]
            asked.over.set()
        own = [Part(OWNER, self.topics[topic]())] if topic in self.topics else []
        fronts = [
            Part(each.name, each.last[topic])
            for each in sorted(self.fronts, key=lambda each: each.name)
            if topic in each.last
        ]
        gone = [Part(GONE, encoded(self._gone))] if topic == METRICS and self._gone else []
        return Gathered([*own, *fronts, *gone])

    def given(self, front: "_AtFront", message: Given) -> None:
        """A front has answered."""
        for topic, asked in self._rounds.items():
            if asked.number == message.round:
                if message.payload is not None:
                    front.last[topic] = message.payload
                asked.heard(front)

    def lost(self, front: "_AtFront") -> None:
        """A front is gone; what it has counted is not."""
        self.fronts.pop(front, None)
        self._left.set()
        if last := front.last.get(METRICS):
            kept = (("", self._gone), ("", growing(decoded(last))))
            self._gone = totals(kept)
        for asked in self._rounds.values():
            asked.heard(front)


class _Round:
    """One question to all fronts."""

    def __init__(self, number: int, asked: "set[_AtFront]") -> None:
        self.number = number
        self.over = asyncio.Event()
        self._missing = asked
        self._complete = asyncio.Event()
        self._look()

    def heard(self, front: "_AtFront") -> None:
        self._missing.discard(front)
        self._look()

    def _look(self) -> None:
        if not self._missing:
            self._complete.set()

    async def answered(self) -> None:
        """Return when all have, or have had the time to."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._complete.wait()
        except TimeoutError:
            names = ", ".join(sorted(each.name for each in self._missing))
            _log.warning("%s did not tell its figures in time; the last ones are used", names)


class _AtFront(OwnerEnd):
    """One front."""

    def __init__(self, owner: GatheringOwner, send: Send) -> None:
        super().__init__(send)
        self._owner = owner
        self.name = ""
        self.last: dict[str, bytes] = {}
        """What it said last, by topic."""

    def received(self, number: int, message: Any) -> None:
        match message:
            case Enter(name):
                self.name = name
                self._owner.fronts[self] = None
            case Gather(topic):
                self.answer_later(number, self._owner.gather(topic))
            case Given():
                self._owner.given(self, message)
            case AskHealth():
                self.send(number, Health(self._owner.problem()))

    def lost(self) -> None:
        self._owner.lost(self)


class GatheringFront:
    """The front's half."""

    def __init__(
        self, link: FrontEnd, name: str, topics: Topics, owner_hangs: Callable[[], bool]
    ) -> None:
        self._link = link
        self._owner_hangs = owner_hangs
        self._topics = dict(topics)
        # Strangers may ask these, as often as they like.
        self._metrics = Together(self._ask_metrics)
        self._health = Together(partial(link.reply, AskHealth(), Health))
        link.hear = self._hear
        link.tell(Enter(name))

    def add(self, topics: Topics) -> None:
        """More that this process can tell."""
        self._topics.update(topics)

    async def gather(self, topic: str) -> Sequence[Part]:
        """What all processes say.

        Raises:
            TidelogError: the owner is away.
        """
        return (await self._link.reply(Gather(topic), Gathered)).parts

    async def metrics(self) -> bytes:
        """Those of the whole server, as `/metrics` shows them.

        Raises:
            TidelogError: the owner is away.
        """
        try:
            return await self._metrics.answer()
        except TidelogError as error:
            raise TidelogError(AWAY) from error

    async def _ask_metrics(self) -> bytes:
        parts = await self.gather(METRICS)
        return rendered(totals((each.process, decoded(each.payload)) for each in parts))

    async def problem(self) -> str | None:
        """Why no writes are taken; None if they are."""
        if self._owner_hangs():
            return HANGS
        try:
            return (await self._health.answer()).problem
        except TidelogError:
            return AWAY

    def _hear(self, message: Give) -> None:
        tell = self._topics.get(message.topic)
        self._link.tell(Given(message.round, tell() if tell else None))
