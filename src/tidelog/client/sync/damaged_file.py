"""Replacing a damaged file of a sync client: what the application wrote is taken over.

The server has everything else. The new file is made beside the damaged one, which stays under
another name; a client that is killed in between finds one of them complete.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.base.sql import sqlitefile

COMPANIONS = ("", "-wal", "-shm")
"""The suffixes of the files that SQLite keeps for one database."""

_WAYS = (
    *("sync_rescue_drafts_up", "sync_rescue_drafts_down"),
    *("sync_rescue_rows_up", "sync_rescue_rows_down"),
)
"""Queries that find rows: each gets as far as the first damaged page on its way."""


class Rescued(NamedTuple):
    """What could be read of a damaged file."""

    rows: list[tuple[Any, ...]]
    """Drafts and rejected events, as rows of `events`."""
    found: int
    """How many of these there are known to be, readable or not."""
    client_id: str | None
    """Whose file it is, if that can be told."""


def rescue(path: Path, queries: Mapping[str, str]) -> Rescued:
    """Read what the application wrote, whatever the state of the file."""
    with suppress(sqlite3.DatabaseError), closing(sqlitefile.connect(path, read_only=True)) as file:
        rowids = sorted({rowid for way in _WAYS for rowid in _read(file, queries[way])})
        rows = [row for rowid in rowids for row in _read_rows(file, queries, rowid)]
        owners = [*_read(file, queries["sync_rescue_binding"]), *(row[6] for row in rows)]
        return Rescued(rows, len(rowids), owners[0] if owners else None)
    return Rescued([], 0, None)


def replacement(path: Path) -> Path:
    """Where a file is made that is to replace `path`, until it is complete."""
    building = path.with_name(path.name + ".building")
    for companion in COMPANIONS:
        building.with_name(building.name + companion).unlink(missing_ok=True)
    return building


def replace(path: Path, building: Path, now_ms: int) -> Path:
    """Put the complete file where the damaged one is; returns the new path of the damaged one."""
    aside = path.with_name(f"{path.name}.damaged-{now_ms}")
    for companion in ("", "-wal"):
        part = path.with_name(path.name + companion)
        if part.exists() and part.stat().st_size:
            _keep(part, aside.with_name(aside.name + companion))
    building.rename(_complete(path))
    finish(path)
    return aside


def finish(path: Path) -> None:
    """Finish a replacement that was interrupted; nothing happens if there was none."""
    complete = _complete(path)
    if complete.exists():
        for companion in COMPANIONS[1:]:
            path.with_name(path.name + companion).unlink(missing_ok=True)
        complete.replace(path)


def _keep(part: Path, aside: Path) -> None:
    try:
        os.link(part, aside)
    except FileExistsError:
        return  # by an attempt that was interrupted
    except OSError:
        shutil.copyfile(part, aside)  # a file system without links


def _complete(path: Path) -> Path:
    return path.with_name(path.name + ".complete")


def _read(file: sqlite3.Connection, question: str) -> Iterator[Any]:
    """The values of one column, as far as they can be read."""
    with suppress(sqlite3.DatabaseError):
        for (value,) in file.execute(question):
            yield value


def _read_rows(
    file: sqlite3.Connection, queries: Mapping[str, str], rowid: int
) -> list[tuple[Any, ...]]:
    try:
        return file.execute(queries["sync_rescue_row"], (rowid,)).fetchall()
    except sqlite3.DatabaseError:
        return []
