"""What is pushed to open pages: entries as the tail delivers them, and when a view is out of date.

Nothing here asks the store whether something is new. The tail brings entries; they are gathered for
a tenth of a second, so that a log of any speed costs a page ten messages a second. Figures and what
other views show are looked at once a second, in memory, and only told when they changed.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.base.clock import Clock
from tidelog.base.errors import TidelogError
from tidelog.base.net.frame import text_frame
from tidelog.base.serving.surface import Outlet
from tidelog.dashboard.access import Access
from tidelog.dashboard.entries import Filter, listed, shown
from tidelog.dashboard.samples import Sample, Samples
from tidelog.log.committer import Committer
from tidelog.store.engine import Store
from tidelog.store.rows import Entry

GATHER_SECONDS = 0.1
"""How long entries are gathered; ten changes a second are as many as an eye can follow."""

SAMPLE_SECONDS = 1.0

MAX_GATHERED = 5000
"""Entries kept while they are gathered; older ones are counted and let go."""

MAX_PUSHED = 100
"""Entries one message lists; older ones are counted, and the page can ask for them."""

MAX_WATCHED = 500
MAX_WATCHED_BYTES = 262_144
"""Versions of the watched channel in one message; beyond either it reads the channel again."""

MAX_HELD = 50
"""Messages kept while the past is read: five seconds, and longer no healthy store takes."""

MAX_PAGES = 32
"""Open pages; each costs the event loop something for every entry."""

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
    """All open pages of one server."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        clock: Clock,
        access: Access,
        signatures: Mapping[str, Signature],
        surfaces: Iterable[str] = (),
    ) -> None:
        """A feed without pages; it samples from now on.

        Args:
            committer: Whose tail is followed.
            store: For what was committed before a page came.
            clock: For the samples.
            access: Whose sessions must still hold.
            signatures: Of the views that the tail alone does not keep up to date.
            surfaces: More that have entries than `SURFACES`.
        """
        self.committer = committer
        self.store = store
        self.access = access
        self._clock = clock
        self._signatures = signatures
        self._surfaces = SURFACES.union(surfaces)
        self.samples = Samples(committer.metrics, committer.tail, clock.now_ms())
        self._pages: set[Page] = set()
        self._leave: list[Callable[[], None]] = []
        self._gathered: deque[Entry] = deque(maxlen=MAX_GATHERED)
        self._is_gathering = False
        self._loop = asyncio.get_running_loop()
        self._sample_later()

    @property
    def is_full(self) -> bool:
        """Whether one page more is too many."""
        return len(self._pages) >= MAX_PAGES

    def join(self, page: "Page") -> None:
        """Keep a page up to date."""
        self._pages.add(page)
        if not self._leave:
            tail = self.committer.tail
            self._leave = [tail.subscribe(surface, self._sink) for surface in self._surfaces]

    def leave(self, page: "Page") -> None:
        """A page is gone; with the last one the tail costs nothing more."""
        self._pages.discard(page)
        if not self._pages:
            for leave in self._leave:
                leave()
            self._leave = []
            self._gathered.clear()

    def signature(self, view: str) -> Hashable:
        """What changes when a view is out of date; None if the tail says it all."""
        signature = self._signatures.get(view)
        return None if signature is None else signature()

    def _sink(self, entries: Sequence[Entry]) -> None:
        self._gathered.extend(entries)
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_later(GATHER_SECONDS, self._push)

    def _push(self) -> None:
        self._is_gathering = False
        entries = tuple(self._gathered)
        self._gathered.clear()
        if entries:
            for page in tuple(self._pages):
                page.deliver(entries)

    def _sample_later(self) -> None:
        self._loop.call_later(SAMPLE_SECONDS, self._sample)

    def _sample(self) -> None:
        if self.committer.ended.is_set():
            return
        self._sample_later()
        sample, is_new = self.samples.take(self._clock.now_ms())
        if self._pages:
            signatures = {
                view: self.signature(view) for view in {page.view for page in self._pages}
            }
            for page in tuple(self._pages):
                page.second(sample, is_new=is_new, signatures=signatures)


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
        self._position = 0
        """It has been told of every entry up to here."""
        self._held: list[bytes] | None = None
        """What is to be told after the past, while that is being read."""
        self._reading: asyncio.Task[None] | None = None

    # The web room calls these.

    def opened(self, outlet: Outlet) -> None:
        """Tell where the log is and what the last minutes were like."""
        if self._feed.is_full:
            outlet.close(TOO_MANY_PAGES, "too many dashboards are open")
            return
        self._outlet = outlet
        self._feed.join(self)
        self._position = self._feed.committer.tail.position
        self._tell("hello", position=self._position, samples=list(self._feed.samples.kept))

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Do what the page asks."""
        del is_text
        try:
            asked = _decode(payload)
        except msgspec.MsgspecError:
            self._end(POLICY_VIOLATION, "not a message of the dashboard")
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

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take what was committed since the last time; some of it may have been let go."""
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
                self._end(INTERNAL_ERROR, "the store does not answer")
        if self._watched:
            self._tell_watched(fresh, lost)

    def second(self, sample: Sample, *, is_new: bool, signatures: Mapping[str, Hashable]) -> None:
        """A second has passed."""
        if not self._feed.access.holds(self._session):
            self._end(SESSION_ENDED, "the session is over")
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
            self._end(INTERNAL_ERROR, "the store does not answer")
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

    def _end(self, code: int, reason: str) -> None:
        if self._outlet is not None:
            self._outlet.close(code, reason)


def _message(kind: str, **fields: Any) -> bytes:
    return text_frame(_encode({"type": kind, **fields}))
