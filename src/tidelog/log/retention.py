"""Pruning: content goes, positions stay (L8).

Whether a body may go is for its surface to decide: a body may be emptied only when no rule still
reads it. Such a decision accepts `empty_bodies` and names the keys that are now `unavailable`.
"""

from collections.abc import Sequence

from tidelog.store.rows import Key, Row, RowChange

PRUNE_ENTRIES = 1000
"""Most entries one prune empties: it shares a transaction with other requests and must not hold
them up for longer than a batch of theirs would."""


def empty_bodies(stream: str, after: int, through: int) -> RowChange:
    """Empty `body` and `data` of the entries with `after < stream_serial <= through`."""
    assert through - after <= PRUNE_ENTRIES, "prune in steps"  # noqa: S101 - see PRUNE_ENTRIES
    return RowChange("empty_bodies", (stream, after, through))


def through_name(name: str) -> tuple[str, Key]:
    """The named query that tells how far a walk of retention along the log has come."""
    return "retention_through", (name,)


def come_through(rows: Sequence[Row]) -> int:
    """What that query says: everything up to this position is done."""
    return rows[0][0] if rows else 0
