"""Digests that a node has seen in its log, by which it knows the log again.

The digest of an entry covers everything before it, so a log that has the same digest at a position
is the same log up to there.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from tidelog.log.draft import digest_after
from tidelog.store.rows import Entry

RECENT = 32
"""The last positions up to which entries left the tail together, such as those of a batch."""
STEP, EACH, LEVELS = 4, 4, 8
"""Of those before: every 32nd, every 128th and so on, four of each, two million back with eight
levels. So a log that was taken back far still has a position in common with what was seen. All in
all some 10 kB."""


class DigestAt(NamedTuple):
    """A position and the digest of the entry there."""

    position: int
    digest: bytes

    def is_missing_from(self, position: int, digest: bytes) -> bool:
        """Whether a log that ends at `position` with this digest does not have this entry.

        Of a log that goes on after the position it is not known: its next entry tells.
        """
        return position < self.position or (position == self.position and digest != self.digest)


class KnownDigests:
    """The digests of the log that a node has seen, at some of its positions."""

    __slots__ = ("_count", "_first", "_levels", "_recent", "last")

    def __init__(self, position: int, digest: bytes) -> None:
        self.last = self._first = DigestAt(position, digest)
        """Where the log ended as far as this node knows."""
        self._recent: deque[DigestAt] = deque(maxlen=RECENT)
        self._levels = tuple(deque[DigestAt](maxlen=EACH) for _ in range(LEVELS))
        self._count = 0

    def note(self, position: int, digest: bytes) -> None:
        """The log goes on to here."""
        self.last = DigestAt(position, digest)
        self._recent.append(self.last)
        self._count += 1
        if self._count % RECENT == 0:
            self._keep(self._count // RECENT)

    def _keep(self, count: int) -> None:
        for level in self._levels:
            level.append(self.last)
            count, rest = divmod(count, STEP)
            if rest:
                break

    @property
    def kept(self) -> Sequence[DigestAt]:
        """Those that are remembered, in their order; the first one always is."""
        return sorted({self._first, *self._recent, *chain.from_iterable(self._levels)})

    def is_followed_by(self, entry: Entry) -> bool:
        """Whether an entry comes next, after the very log that was seen."""
        return (
            entry.committed_id == self.last.position + 1
            and digest_after(self.last.digest, entry) == entry.digest
        )
