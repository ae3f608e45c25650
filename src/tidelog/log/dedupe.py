"""What a key that was used before means for a request that uses it now (L3)."""

from enum import Enum

from tidelog.store.rows import DedupeRow

__all__ = ["DedupeRow", "KeyUse", "key_use"]


class KeyUse(Enum):
    """How a request relates to the dedupe row of its key."""

    NEW = "new"
    """No row: the first use."""
    REPEATED = "repeated"
    """Same key, same request: return `row.outcome` again and change nothing."""
    CONFLICTING = "conflicting"
    """Same key, another request: refuse."""


def key_use(row: DedupeRow | None, fingerprint: bytes) -> KeyUse:
    """Compare a request's fingerprint with the row of its key.

    A row that is present counts, expired or not: only a sweep ends it, and only its absence makes a
    key new again. Surfaces that treat another owner specially look at `row.owner` themselves.
    """
    if row is None:
        return KeyUse.NEW
    return KeyUse.REPEATED if row.fingerprint == fingerprint else KeyUse.CONFLICTING
