"""The tail: committed entries leave the log here, in order, once, as batches."""

import logging
from collections.abc import Callable, Sequence

from tidelog.log.entry import Entry

Sink = Callable[[Sequence[Entry]], None]
"""Takes entries on the event loop. It must not await; what it pushes leaves with the next flush."""

_log = logging.getLogger(__name__)


class Tail:
    """Where this node has delivered up to, and to whom.

    Whoever attaches reads `position` and adds its sink in one step on the event loop: entries up to
    the position come from the store, later ones through the sink, none twice and none missing.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        """`committed_id` of the last entry given to the sinks; whoever was told of an entry by this
        node finds the position at or beyond it."""
        self._sinks: dict[str, list[Sink]] = {}

    def subscribe(self, surface: str, sink: Sink) -> Callable[[], None]:
        """Give `sink` every later entry of `surface`; answers how to stop."""
        sinks = self._sinks.setdefault(surface, [])
        sinks.append(sink)
        return lambda: sinks.remove(sink)

    def publish(self, entries: Sequence[Entry]) -> None:
        """Deliver the next entries; only the committer calls this."""
        first = entries[0].committed_id
        assert first == self.position + 1, f"tail at {self.position} was given {first}"  # noqa: S101 - L1
        self.position = entries[-1].committed_id
        start = 0
        surface = entries[0].surface
        for index, entry in enumerate(entries):
            if entry.surface != surface:
                self._deliver(surface, entries[start:index])
                start, surface = index, entry.surface
        self._deliver(surface, entries[start:] if start else entries)

    def _deliver(self, surface: str, entries: Sequence[Entry]) -> None:
        for sink in tuple(self._sinks.get(surface, ())):
            try:
                sink(entries)
            except Exception:  # noqa: BLE001 - whatever a surface raises
                # One surface's mistake must not stop another's delivery; its clients resume.
                _log.exception("a %s sink failed at entry %d", surface, entries[0].committed_id)
