"""The names of what is in a lake, for whoever has mistaken one."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Literal

from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake

Named = Literal["channel", "partition", "mesh", "app"]

COMPARED = 20_000
"""Names that a mistaken one is compared with at most: it takes a second."""

SHOWN = 5

_WRITTEN = {
    "channel": "A channel is written APP/CHANNEL.",
    "partition": "An event names its partitions.",
    "mesh": "A mesh is called by its id.",
    "app": "An app is called by its id.",
}


class UnknownName(LakeError):  # noqa: N818 - the failure is the noun
    """The lake has no entry of what was asked for."""


def require_known(lake: Lake, kind: Named, name: str) -> None:
    """Make sure that the lake has an entry of something, at whatever position.

    Raises:
        UnknownName: it has none; says what there is.
    """
    names = names_of(lake, kind)
    if name not in names:
        raise UnknownName(_told(lake, kind, name, sorted(names)))


def names_of(lake: Lake, kind: Named) -> set[str]:
    """All that there is of a kind; a channel is `{app_id}/{channel}`."""
    if kind == "partition":
        return _distinct(lake, "event", "partition")
    # A row for each stream and minute; what it lacks is in the log.
    found = _distinct(lake, "activity", "stream")
    found |= _distinct(lake, "log", "stream", lake.through("activity"))
    parts = [stream.split("/", 1) for stream in found if "/" in stream]
    if kind == "mesh":
        return {rest for surface, rest in parts if surface == "mesh"}
    channels = {rest for surface, rest in parts if surface == "channels"}
    return channels if kind == "channel" else {name.partition("/")[0] for name in channels}


def _distinct(lake: Lake, table: str, column: str, after: int | None = None) -> set[str]:
    where = [] if after is None else [("committed_id", ">", after)]
    found: set[str] = set()
    for batch in lake.batches(table, [column], where):
        found.update(batch[column].unique().to_pylist())
    return found


def near(name: str, names: Sequence[str]) -> list[str]:
    """Names that somebody may have meant, the likeliest first."""
    part = name.rpartition("/")[2]
    same = [each for each in names if part and each.rpartition("/")[2] == part]
    alike = difflib.get_close_matches(name, names[:COMPARED], SHOWN)
    return list(dict.fromkeys([*same[:SHOWN], *alike]))[:SHOWN]


def _told(lake: Lake, kind: Named, name: str, names: Sequence[str]) -> str:
    # Only that table knows partitions, and it may not have all that was ingested.
    table = "event" if kind == "partition" else "log"
    place = "the table event" if kind == "partition" else "the lake"
    through = lake.through(table)
    parts = [f"there is no {kind} {name} in {place}, which is complete through {through}"]
    if likely := near(name, names):
        parts.append(f"Near: {_list(likely)}")
    elif names:
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        parts.append(f"There are: {_list(names[:SHOWN])}{more}")
    else:
        parts.append(f"It has no {kind} at all")
    parts.append(f"{_WRITTEN[kind]} Newer entries come with `tidelog pipeline run`.")
    return ". ".join(parts)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
