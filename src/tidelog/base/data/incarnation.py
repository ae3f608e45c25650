"""A continuation of a log, as it is stored and as everybody who remembers a position names it."""

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
