"""Which history a position belongs to.

A restore, or a failover to a replica that lags, takes a log back and lets it go on under the same
positions. Whoever remembers a position (a reader of a channel, a sync client, a daemon, a lake)
remembers the incarnation with it, and asks here what of it still holds.

This module is pure. Use it so:

    incarnations = committer.incarnations                      # beside the log
    incarnations = Incarnations(await store.incarnations())    # with a store, also a read-only one
    shared = incarnations.shared_with(remembered_id)
    if shared is not None and position > shared:
        ...  # the reader holds what is not in this log: its protocol's reset, from `shared` on
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Incarnation(NamedTuple):
    """One continuation of a log.

    A restore, or a failover to a replica that lags, takes a log back to an earlier position, and
    what is written from there on is another history under the same positions. So each begins an
    incarnation of its own, and whoever remembers a position remembers the incarnation with it.
    """

    id: str
    """Random; equal ids are the same history, whatever the store."""
    began: int
    """The last position that it has in common with the incarnation before it; 0 for none."""
    at: int
    """Server clock in ms when it began; for people."""
    number: int
    """Counts them in their order, from 1; gaps do not occur, but the oldest are forgotten."""


FORMER_INCARNATIONS = 16
"""How many are kept beside the current one: some kilobytes at most, and every restore of a year."""


class Incarnations:
    """The known incarnations of a log, in their order."""

    def __init__(self, known: Iterable[Incarnation]) -> None:
        """Take them in any order, as `Store.incarnations` or a query of one's own returned them."""
        *former, self.current = sorted(known, key=lambda each: each.number)
        """The one that everything appended now belongs to."""
        self.former: Sequence[Incarnation] = tuple(former)
        """Those before it that are still known, oldest first; at most `FORMER_INCARNATIONS`."""

    def shared_with(self, incarnation_id: str | None) -> int | None:
        """The last position that this log shares with what a reader of that incarnation has seen.

        Returns:
            None if nothing is to be reset: it is the current incarnation, or the reader named none
            and nobody can tell. Else every position up to the returned one is the same in both
            histories, and what the reader holds after it may be something else here; 0 if the
            incarnation is not known, so that nothing is certain.
        """
        if incarnation_id is None or incarnation_id == self.current.id:
            return None
        shared = self.current.began
        for each in reversed(self.former):
            if each.id == incarnation_id:
                return shared
            shared = min(shared, each.began)
        return 0

    def shared_by_all(self) -> int | None:
        """The last position that is the same in every incarnation there was; None if there was one.

        For a position of which nobody knows the incarnation, and that must not be taken on trust.
        """
        if self.current.number == 1:
            return None
        known = (*self.former, self.current)
        return min(each.began for each in known[1:]) if known[0].number == 1 else 0

    def where_to_begin(
        self, under: str, seen: Sequence[tuple[int, bytes]], stored: Mapping[int, bytes]
    ) -> int | None:
        """Where a node that no longer knows its log begins another incarnation.

        Args:
            under: The incarnation that the node has served.
            seen: Positions and digests that it has seen.
            stored: The digests that the store has at these positions now, where it has one.

        Returns:
            The last position that both have in common, as far as is known; None if no other one is
            needed: nothing seen is missing, or the incarnations say of it already that it is.
        """
        # At position 0 nothing is stored, and nothing can differ.
        lost = [at for at, digest in seen if at > 0 and stored.get(at) != digest]
        told = self.shared_with(under)
        if not lost or (told is not None and told < min(lost)):
            return None
        return max((at for at, digest in seen if stored.get(at) == digest), default=0)
