"""Entries as the page lists them: everything but their content, filtered, newest first."""

from typing import Any

from msgspec import Struct

from tidelog.store.engine import Store
from tidelog.store.rows import Entry

SCAN_POSITIONS = 20_000
"""Positions one question looks at. A filter that nothing matches would otherwise read the log."""

MAX_LISTED = 500
"""Entries of one response."""


class Filter(Struct, frozen=True):
    """Which entries are listed; an empty text lets everything through."""

    surface: str = ""
    stream: str = ""
    """Beginning of the stream's name."""
    kind: str = ""
    """Beginning of the kind."""
    actor: str = ""
    """Beginning of the actor."""

    def matches(self, entry: Entry) -> bool:
        """Whether an entry is one of them; the same as the query `dashboard_log` says."""
        return (
            (not self.surface or entry.surface == self.surface)
            and entry.stream.startswith(self.stream)
            and entry.kind.startswith(self.kind)
            and entry.actor.startswith(self.actor)
        )


class Listed(Struct, frozen=True):
    """A page of the log."""

    entries: list[dict[str, Any]]
    """Oldest first."""
    low: int
    """Every match after this position, up to the end that was asked for, is among them."""


def shown(entry: Entry) -> dict[str, Any]:
    """An entry in a list."""
    size = len(entry.body or b"") + len(entry.data or b"")
    return _row(*entry[:9], size)


def _row(
    committed_id: int,
    stream: str,
    serial: int,
    surface: str,
    kind: str,
    entity: str,
    ref: str,
    actor: str,
    committed_at: int,
    size: int | None,
) -> dict[str, Any]:
    return {
        "id": committed_id,
        "stream": stream,
        "serial": serial,
        "surface": surface,
        "kind": kind,
        "entity": entity,
        "ref": ref,
        "actor": actor,
        "at": committed_at,
        "bytes": size,
    }


async def listed(store: Store, wanted: Filter, after: int, through: int, limit: int) -> Listed:
    """The newest matches with `after < committed_id <= through`, within the bounds above."""
    low = max(after, through - SCAN_POSITIONS, 0)
    limit = min(limit, MAX_LISTED)
    key = (low, through, wanted.surface, wanted.stream, wanted.kind, wanted.actor, limit)
    rows = await store.rows("dashboard_log", key)
    if len(rows) == limit:
        low = max(low, rows[-1][0] - 1)
    return Listed([_row(*row) for row in reversed(rows)], low)


async def detail(store: Store, committed_id: int) -> dict[str, Any] | None:
    """One entry with its content as text."""
    found = await store.entries(committed_id - 1, through=committed_id, limit=1)
    if not found:
        return None
    entry = found[0]
    return shown(entry) | {
        "body": None if entry.body is None else entry.body.decode("utf-8", "replace"),
        "data": None if entry.data is None else entry.data.decode("utf-8", "replace"),
        "data_bytes": None if entry.data is None else len(entry.data),
        "is_pruned": entry.body is None,
        "body_digest": entry.body_digest.hex(),
        "digest": entry.digest.hex(),
    }
