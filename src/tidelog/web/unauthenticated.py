"""What is held of requests of which it is not known yet who sends them: bounded, all together.

Each of them is bounded by itself, but ten thousand times that is more than a server has. Whoever
has waited longest gives way: an honest request is over in a moment, one that is meant to fill
memory waits for ever.
"""

from typing import Protocol

from tidelog.base.metrics import Metrics


class Peer(Protocol):
    """A connection that holds part of such a request."""

    def give_way(self) -> None:
        """End, and drop what is held."""


class Unauthenticated:
    """How much each connection holds of its unjudged requests, the longest waiting one first."""

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._max_bytes = max_bytes
        self._held: dict[Peer, int] = {}
        self._total = 0
        metrics.before_render(lambda: metrics.unauthenticated_bytes.set(self._total))

    def note(self, peer: Peer, size: int) -> None:
        """A connection holds so much now; perhaps somebody has to give way."""
        held = self._held
        if not size:
            self._total -= held.pop(peer, 0)
            return
        self._total += size - held.get(peer, 0)
        held[peer] = size
        while self._total > self._max_bytes:
            longest = next(iter(held))
            self._total -= held.pop(longest)
            longest.give_way()
