"""The drafts in a sync client's file, for whoever wants them without a client.

Mostly such a file is damaged: what a client could not take over stays in the file that was put
aside, and no client can read a file whose first page is gone.
"""

import shutil
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tidelog.base.errors import StoreUnavailable
from tidelog.base.sql import sqlitefile
from tidelog.base.sql.queries import load_queries
from tidelog.client.sync import damaged_file
from tidelog.client.sync.messages import Json
from tidelog.client.sync.rows import StoredEvent, stored_event
from tidelog.client.sync.store import SyncStore
from tidelog.client.sync.store_file import APPLICATION_ID


class SavedDrafts(NamedTuple):
    """What a client has written and the server has not decided, as far as it can be read."""

    client_id: str | None
    """Whose they are."""
    drafts: list[Json]
    """In the order they were written in; each is what `SyncClient.submit` takes."""
    unreadable: int
    """Drafts and rejected events that are known to have been there, and cannot be read."""

    @classmethod
    def read(cls, path: Path) -> "SavedDrafts":
        """The drafts in a client's file that no client has open; the file stays as it is.

        Raises:
            StoreUnavailable: there is no such file, or nothing in it can be read.
        """
        if not path.is_file():
            raise StoreUnavailable(
                f"there is no file {path}. Name the file that the client has as its store."
            )
        with TemporaryDirectory(prefix="tidelog-drafts-") as folder:
            copy = Path(folder) / "copy.db"
            for companion in ("", "-wal"):
                part = path.with_name(path.name + companion)
                if part.exists():
                    shutil.copyfile(part, copy.with_name(copy.name + companion))
            has_head = _has_head(copy, path)
            if not has_head:
                _give_head(copy)
            rescued = damaged_file.rescue(copy, load_queries(files("tidelog.client.sync") / "sql"))
            if rescued.found == 0 and not has_head:
                raise StoreUnavailable(
                    f"no draft in {path} can be read. It has none or is not a client's file, or "
                    "its first page is damaged and another version of tidelog made it: try that "
                    "version, or a backup of the file."
                )
        read = [event for row in rescued.rows if (event := _read(row)) is not None]
        mine = [e for e in read if e.status == "draft" and e.client_id == rescued.client_id]
        mine.sort(key=lambda draft: (draft.draft_clock or 0, draft.id))
        return cls(
            rescued.client_id,
            [{"id": d.id, "partitions": list(d.partitions), "event": d.event} for d in mine],
            rescued.found - len(read),
        )


def _read(row: tuple[Any, ...]) -> StoredEvent | None:
    try:
        return stored_event(row)
    except (TypeError, ValueError):
        return None


def _has_head(copy: Path, path: Path) -> bool:
    """Whether SQLite can tell which tables the file has; another application's is refused."""
    try:
        with closing(sqlitefile.connect(copy, read_only=True)) as file:
            [(application_id,)] = file.execute("PRAGMA application_id")
            [(tables,)] = file.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'events'")
    except sqlite3.DatabaseError:
        return False
    if application_id != APPLICATION_ID:
        raise StoreUnavailable(f"{path} is not the file of a sync client. Name that one.")
    return bool(tables)


def _give_head(copy: Path) -> None:
    """Replace a first page that cannot be read by that of an empty store.

    It says where each table starts. A file that was made by this version has its tables where an
    empty one has them; in another, nothing will be found.
    """
    empty = copy.with_name("empty.db")
    SyncStore(empty, client_id="nobody", model_version=0, now=lambda: 0).close()
    head = bytearray(empty.read_bytes())
    size = int.from_bytes(head[16:18], "big")
    pages = copy.stat().st_size // size
    head[28:32] = pages.to_bytes(4, "big")
    with copy.open("r+b") as file:
        file.write(head[:size])
