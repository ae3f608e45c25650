"""What is pushed to open pages: entries as the tail delivers them, and when a view is out of date.

Nothing here asks the store whether something is new. The owner's half tells entries, ten times a
second at most, and a sample each second. What other views show is looked at once a second, in
memory, and only told when it changed.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.base.metrics import Metrics
from tidelog.base.net.frame import text_frame
from tidelog.base.serving.surface import Outlet
from tidelog.dashboard.access import Access
from tidelog.dashboard.entries import Filter, listed, shown
from tidelog.dashboard.messages import (
    Counted,
    Hello,
    LoggedOut,
    LogOut,
    Sampled,
    Watching,
    Welcome,
    Written,
)
from tidelog.dashboard.messages import Done as ToldAll
from tidelog.dashboard.messages import Watch as WatchSurfaces
from tidelog.dashboard.samples import KEPT, NOTHING, Sample, counts_of
from tidelog.dashboard.sessions import Ended
from tidelog.link.ends import FrontEnd
from tidelog.store.engine import Store
from tidelog.store.rows import Entry

MAX_PUSHED = 100
"""Entries one message lists; older ones are counted, and the page can ask for them."""

MAX_WATCHED = 500
MAX_WATCHED_BYTES = 262_144
"""Versions of the watched channel in one message; beyond either it reads the channel again."""

MAX_HELD = 50
"""Messages kept while the past is read: five seconds, and longer no healthy store takes."""

MAX_PAGES = 32
"""Open pages of one process; each costs its event loop something for every entry."""

MAX_EARLY = 8
"""Messages kept of a page that has not been greeted yet; ours sends two."""

MAX_MESSAGE_BYTES = 8192
"""A page says little; whatever is longer does not come from ours."""

POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
SESSION_ENDED = 4401
TOO_MANY_PAGES = 4429

SURFACES = frozenset({"channels", "sync", "mesh"})
"""Whose entries are followed, mounted here or not: other nodes may serve them."""

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

Signature = Callable[[], Hashable]
"""Answers, from memory, something that changes when a view is out of date."""


class Follow(Struct, frozen=True, tag="follow", tag_field="type", forbid_unknown_fields=True):
    """List entries from now on, after those that are already there."""

    filter: Filter = Filter()
    since: int | None = None
    """Position of the last entry the page knows; it gets what came after it."""
    tag: int = 0
    """Comes back with the answer, so that a page knows which question it belongs to."""


class Rest(Struct, frozen=True, tag="rest", tag_field="type", forbid_unknown_fields=True):
    """List no entries."""


class Watch(Struct, frozen=True, tag="watch", tag_field="type", forbid_unknown_fields=True):
    """Send the content of one stream's entries too; an empty name ends it."""

    stream: str = ""


class Show(Struct, frozen=True, tag="show", tag_field="type", forbid_unknown_fields=True):
    """Which view is visible: it is told when it is out of date."""

    view: str


_decode = msgspec.json.Decoder(Follow | Rest | Watch | Show).decode


class Feed:
    """All open pages of one front."""

    def __init__(
        self,
        link: FrontEnd,
        store: Store,
        metrics: Metrics,
        access: Access,
        signatures: Mapping[str, Signature],
        surfaces: Iterable[str] = (),
    ) -> None:
        """A feed without pages.

        Args:
            link: To the owner's half, which is asked nothing before `open`.
            store: For what was committed before a page came.
            metrics: Of this process.
            access: Whose sessions must still hold.
            signatures: Of the views that entries alone do not keep up to date.
            surfaces: More that have entries than `SURFACES`.
        """
        self.store = store
        self.access = access
        self.position = 0
        """The log has come so far, as far as is known here."""
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.commits = 0.0
        """Transactions since the start."""
        self.ticks = 0
        """Seconds that were told."""
        self._link = link
        self._metrics = metrics
        self._counts = NOTHING
        self._signatures = signatures
        self._surfaces = tuple(SURFACES.union(surfaces))
        self._pages: set[Page] = set()
        self._is_watching = False
        link.hear = self._hear

    async def open(self) -> None:
        """Learn what was so before; from now on it is told what is new."""
        hello = Hello(self.access.ended.all())
        await self._link.reply(hello, Welcome, at_once=self._welcomed)

    def _welcomed(self, welcome: Welcome) -> None:
        self.samples.extend(welcome.samples)
        for ended in welcome.ended:
            self.access.ended.note(ended)

    async def log_out(self, ended: Ended) -> None:
        """A login is over; returns when all other fronts and nodes are told."""
        await self._link.reply(LogOut(ended), ToldAll)

    @property
    def is_full(self) -> bool:
        """Whether one page more is too many."""
        return len(self._pages) >= MAX_PAGES

    def join(self, page: "Page") -> None:
        """Keep a page up to date; it is greeted when it is known from where on."""
        self._pages.add(page)
        if self._is_watching:
            page.greet(self.position)
        elif len(self._pages) == 1:
            self._link.ask(WatchSurfaces(self._surfaces), self._watching)

    def leave(self, page: "Page") -> None:
        """A page is gone; with the last one entries cost nothing more."""
        self._pages.discard(page)
        if not self._pages and self._is_watching:
            self._is_watching = False
            self._link.ask(WatchSurfaces(()), lambda _: None)

    def signature(self, view: str) -> Hashable:
        """What changes when a view is out of date; None if entries say it all."""
        signature = self._signatures.get(view)
        return None if signature is None else signature()

    def _watching(self, answer: Any) -> None:
        if not isinstance(answer, Watching):
            for page in tuple(self._pages):
                page.end(INTERNAL_ERROR, "the owner of the log is away")
            return
        self.position = answer.position
        self._is_watching = bool(self._pages)
        if not self._is_watching:  # all gone meanwhile
            self._link.ask(WatchSurfaces(()), lambda _: None)
        for page in tuple(self._pages):
            page.greet(self.position)

    def _hear(self, message: Any) -> None:
        match message:
            case Written(entries):
                self.position = max(self.position, entries[-1].committed_id)
                for page in tuple(self._pages):
                    page.deliver(entries)
            case Sampled():
                self._sample(message)
            case LoggedOut(ended):
                self.access.ended.note(ended)

    def _sample(self, sampled: Sampled) -> None:
        self.samples.append(sampled.sample)
        self.commits = sampled.commits
        self.ticks += 1
        counts = counts_of(self._metrics)
        if counts != self._counts:
            self._counts = counts
            self._link.tell(Counted(counts))
        if self._pages:
            signatures = {
                view: self.signature(view) for view in {page.view for page in self._pages}
            }
            for page in tuple(self._pages):
                page.second(sampled.sample, is_new=sampled.is_new, signatures=signatures)


class Page:
    """A `Conversation` with one open page."""

    def __init__(self, feed: Feed, session: str) -> None:
        self._feed = feed
        self._session = session
        self._outlet: Outlet | None = None
        self.view = ""
        self._signature: Hashable = None
        """Of the visible view, as the page knows it."""
        self._filter: Filter | None = None
        """None while it lists no entries."""
        self._watched = ""
        self._position = -1
        """It has been told of every entry up to here; below 0 before it is greeted."""
        self._early: list[bytes] = []
        """What it said before that."""
        self._held: list[bytes] | None = None
        """What is to be told after the past, while that is being read."""
        self._reading: asyncio.Task[None] | None = None

    # The web room calls these.

    def opened(self, outlet: Outlet) -> None:
        """Take the page in, if there is room."""
        if self._feed.is_full:
            outlet.close(TOO_MANY_PAGES, "too many dashboards are open")
            return
        self._outlet = outlet
        self._feed.join(self)

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Do what the page asks."""
        del is_text
        if self._position < 0:
            if len(self._early) >= MAX_EARLY:
                self.end(POLICY_VIOLATION, "too many messages at once")
            self._early.append(payload)
            return
        try:
            asked = _decode(payload)
        except msgspec.MsgspecError:
            self.end(POLICY_VIOLATION, "not a message of the dashboard")
            return
        match asked:
            case Follow():
                self._follow(asked)
            case Rest():
                self._filter = None
                self._stop_reading()
            case Watch(stream):
                self._watched = stream
                self._tell("watching", stream=stream, position=self._position)
            case Show(view):
                self.view, self._signature = view, self._feed.signature(view)

    def closed(self, code: int) -> None:
        """The page is gone."""
        del code
        self._outlet = None
        self._stop_reading()
        self._feed.leave(self)

    # The feed calls these.

    def greet(self, position: int) -> None:
        """Tell where the log is and what the last minutes were like."""
        if self._position < 0:
            self._position = position
            self._tell("hello", position=position, samples=list(self._feed.samples))
            early, self._early = self._early, []
            for payload in early:
                self.received(payload, is_text=True)

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take what was committed since the last time; some of it may have been let go."""
        if self._position < 0:
            return
        fresh = [entry for entry in entries if entry.committed_id > self._position]
        if not fresh:
            return
        lost = fresh[0].committed_id - self._position - 1
        self._position = fresh[-1].committed_id
        written = Counter(entry.surface for entry in fresh)
        wanted: list[Entry] = []
        more = 0
        if self._filter is not None:
            wanted = [entry for entry in fresh if self._filter.matches(entry)]
            more = lost + max(0, len(wanted) - MAX_PUSHED)
            wanted = wanted[-MAX_PUSHED:]
        told = _message(
            "entries",
            entries=[shown(entry) for entry in wanted],
            more=more,
            position=self._position,
            written=written,
        )
        if self._held is None:
            self._push(told)
        else:
            self._held.append(told)
            if len(self._held) > MAX_HELD:
                self.end(INTERNAL_ERROR, "the store does not answer")
        if self._watched:
            self._tell_watched(fresh, lost)

    def second(self, sample: Sample, *, is_new: bool, signatures: Mapping[str, Hashable]) -> None:
        """A second has passed."""
        if self._position < 0:
            return
        if not self._feed.access.holds(self._session):
            self.end(SESSION_ENDED, "the session is over")
            return
        if is_new or self.view == "overview":
            self._tell("sample", sample=sample)
        signature = signatures.get(self.view)
        if signature != self._signature:
            self._signature = signature
            self._tell("changed", view=self.view)

    def _tell_watched(self, fresh: Sequence[Entry], lost: int) -> None:
        watched = [entry for entry in fresh if entry.stream == self._watched]
        size = sum(len(entry.body or b"") for entry in watched)
        if lost or len(watched) > MAX_WATCHED or size > MAX_WATCHED_BYTES:
            self._tell("watching", stream=self._watched, position=self._position)
        elif watched:
            versions = [
                shown(entry) | {"body": None if entry.body is None else msgspec.Raw(entry.body)}
                for entry in watched
            ]
            self._tell("watched", stream=self._watched, versions=versions)

    # The past.

    def _follow(self, asked: Follow) -> None:
        self._stop_reading()
        self._filter, self._held = asked.filter, []
        reading = self._read(asked, self._position)
        self._reading = asyncio.get_running_loop().create_task(reading)

    async def _read(self, asked: Follow, through: int) -> None:
        after = min(asked.since or 0, through)
        try:
            page = await listed(self._feed.store, asked.filter, after, through, MAX_PUSHED)
        except TidelogError as error:
            _log.warning("the dashboard could not read the log: %s", error)
            self.end(INTERNAL_ERROR, "the store does not answer")
            return
        held, self._held = self._held or [], None
        self._tell(
            "page",
            entries=page.entries,
            low=page.low,
            after=after,
            through=through,
            tag=asked.tag,
        )
        for told in held:
            self._push(told)

    def _stop_reading(self) -> None:
        self._held = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _tell(self, kind: str, **fields: Any) -> None:
        self._push(_message(kind, **fields))

    def _push(self, frame: bytes) -> None:
        if self._outlet is not None:
            self._outlet.push(frame)

    def end(self, code: int, reason: str) -> None:
        """Close the conversation."""
        if self._outlet is not None:
            self._outlet.close(code, reason)


def _message(kind: str, **fields: Any) -> bytes:
    return text_frame(_encode({"type": kind, **fields}))
