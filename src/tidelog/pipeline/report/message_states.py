"""How many messages are in which state, without reading the table each time.

A file of a table never changes, and its name says what is in it. So what was counted of a file is
kept, beside the page, until the table has the file no more.
"""

import os
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from tidelog.pipeline.lake.lake import Lake

Counts = dict[str, int]


def message_states(lake: "Lake") -> Counts:
    """Messages by state."""
    path = lake.root / "product" / "report" / "message_states.json"
    known, now = _read(path), dict[str, Counts]()
    files = {os.path.relpath(file, lake.root): file for file in lake.files("message")}
    for name, file in files.items():
        now[name] = known.get(name) or _counted(file)
    if now != known:
        _write(path, now)
    total: Counts = {}
    for counts in now.values():
        for state, count in counts.items():
            total[state] = total.get(state, 0) + count
    return total


def _counted(file: str) -> Counts:
    import pyarrow.parquet as pq

    states = pq.read_table(file, columns=["state"])["state"]
    return {row["values"]: row["counts"] for row in states.value_counts().to_pylist()}


def _read(path: "Path") -> dict[str, Counts]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Counts])
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}


def _write(path: "Path", counts: dict[str, Counts]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_bytes(msgspec.json.encode(counts))
    fresh.replace(path)
