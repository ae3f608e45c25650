"""The horizon: the position through which the lake has no content, because it is too old.

Every table with content notes how far that is in the commit that took the content away. All of them
say the same, unless a process died in between.
"""

from datetime import UTC, datetime

from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import AGED
from tidelog.pipeline.tables import TABLES_WITH_CONTENT

BASE = "snapshot_base"

AGING = (BASE, *TABLES_WITH_CONTENT)
"""The tables that have a horizon, in the order in which it moves: states of partitions are made
before the events are emptied that make them."""


def horizon(lake: Lake) -> int:
    """Position through which entries have no content because they are too old; 0: none is."""
    return lake.noted("log", AGED) or 0


def begun_horizon(lake: Lake) -> int | None:
    """Where a process that died was moving the horizon to; None if all tables have the same."""
    noted = {lake.noted(name, AGED) or 0 for name in AGING if lake.delta(name) is not None}
    return max(noted) if len(noted) > 1 else None


def horizon_in_words(lake: Lake) -> str:
    """What is gone, for whoever asks for it or compares it; empty if nothing is."""
    if not (last := horizon(lake)):
        return ""
    at = time_of(lake, last)
    return f"content up to {last:,}, of {at:%Y-%m-%d %H:%M} UTC, was removed by age"


def time_of(lake: Lake, position: int) -> datetime:
    """When an entry was committed."""
    at = lake.arrow("log", ["committed_at"], [("committed_id", "=", position)])["committed_at"]
    return datetime.fromtimestamp(max(at.to_pylist(), default=0) / 1000, UTC)
