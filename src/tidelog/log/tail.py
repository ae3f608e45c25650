"""The tail: committed entries leave the log here, in order, once, as batches."""

import itertools
import logging
from collections.abc import Callable, Sequence
from operator import attrgetter

from tidelog.base.brake import Brake
from tidelog.log.known_digests import KnownDigests
from tidelog.store.engine import GENESIS_DIGEST
from tidelog.store.rows import Entry

EntrySink = Callable[[Sequence[Entry]], None]
"""Takes entries on the event loop. It must not await; what it pushes leaves with the next flush."""

_log = logging.getLogger(__name__)


class Tail:
    """Where this node has delivered up to, and to whom.

    Whoever attaches reads `position` and adds its sink in one step on the event loop: entries up to
    the position come from the store, later ones through the sink, none twice and none missing.
    """

    def __init__(self, position: int, digest: bytes = GENESIS_DIGEST) -> None:
        self.position = position
        """`committed_id` of the last entry given to the sinks; whoever was told of an entry by this
        node, and goes on in a later turn of the event loop, finds the position at or beyond it."""
        self.known_digests = KnownDigests(position, digest)
        """Of positions that were passed: they tell whether the store still has the same log."""
        self.brake = Brake()
        """Held by fronts that have much to read: what other nodes wrote is then delivered later,
        because it may be any amount. What this node writes is not held up by any of them."""
        self._sinks: dict[str, tuple[EntrySink, ...]] = {}
        """By surface. Replaced, never changed, so that a sink may subscribe or leave another."""

    def subscribe(self, surface: str, sink: EntrySink) -> Callable[[], None]:
        """Give `sink` every later entry of `surface`; returns how to stop."""
        self._sinks[surface] = (*self._sinks.get(surface, ()), sink)

        def leave() -> None:
            self._sinks[surface] = tuple(s for s in self._sinks[surface] if s is not sink)

        return leave

    def publish(self, entries: Sequence[Entry]) -> None:
        """Deliver the next entries; only the committer calls this."""
        first = entries[0]
        assert first.committed_id == self.position + 1, "a gap, or twice"  # noqa: S101 - L1
        last = entries[-1]
        self.position = last.committed_id
        self.known_digests.note(last.committed_id, last.digest)
        if len(entries) == 1:
            self._deliver(first.surface, entries)
        else:
            for surface, run in itertools.groupby(entries, key=attrgetter("surface")):
                self._deliver(surface, tuple(run))

    def _deliver(self, surface: str, entries: Sequence[Entry]) -> None:
        for sink in self._sinks.get(surface, ()):
            try:
                sink(entries)
            except Exception:  # noqa: BLE001 - whatever a surface raises
                # One surface's mistake must not stop another's delivery; its clients resume.
                _log.exception("a %s sink failed at entry %d", surface, entries[0].committed_id)
