"""`tidelog mesh recover`: a new outbox from what can be read of a damaged one (mesh 4.6).

An id that was ever accepted must stay taken, or its caller's retry could become a second message.
So ids are looked for wherever SQLite keeps them: in the table, and in the two indexes that hold a
copy. Where nothing but an id is left, the new row says `aborted` by `auto`.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct

from tidelog.base.errors import StoreDamaged, StoreUnavailable, TidelogError
from tidelog.base.sql.queries import load_queries
from tidelog.base.sql.sqlitefile import DirectoryLock
from tidelog.daemon.database import Database
from tidelog.daemon.outbox.outbox_db import APPLICATION_ID, FILE_NAME, Row
from tidelog.mesh.protocol.fingerprint import (
    RequestRefused,
    is_client_message_id,
    read_envelope,
    read_object,
)
from tidelog.mesh.protocol.policy import STATUSES

FINISHED_SUFFIX = ".recovered"
"""Of a new outbox that is complete and not yet in its place."""

_BUILDING_SUFFIX = ".recovering"
_COMPANIONS = ("", "-wal", "-shm")
_COLUMNS = len(Row._fields)
_STEP = 200
"""Keys read at once; a damaged page makes a step be repeated one key at a time."""

_LOST_FINGERPRINT = bytes(32)
"""Matches no request: a caller that repeats the id learns that it is taken."""

PAGE_BYTES = 4096
"""Of every outbox: what SQLite takes where nothing else is said."""

MAX_REPORTED = 1000
"""Ids that a report lists one by one."""


class Report(Struct, kw_only=True):
    """What a recovery found."""

    was_sound: bool = False
    """Nothing was done: the outbox is not damaged."""
    damage: str = ""
    moved_to: str | None = None
    """Where the damaged file is kept."""
    copied: int = 0
    """Rows that are in the new outbox as they were."""
    retired: list[str] = []
    """Ids that are kept as `aborted`, because their content could not be read."""
    retired_count: int = 0
    unreadable_rows: int = 0
    """Rows of which not even the client's id was found. Their ids are lost."""


def refuse_unfinished(data_dir: Path) -> None:
    """A daemon that started now would begin an empty outbox, and every id would be free."""
    if (data_dir / (FILE_NAME + FINISHED_SUFFIX)).exists():
        raise StoreDamaged(
            f"a recovery of {data_dir / FILE_NAME} was interrupted. Run: tidelog mesh recover"
        )


def move_aside(path: Path, now_ms: int) -> Path:
    """Keep a damaged file under another name, with the files that belong to it."""
    aside = path.with_name(f"{path.name}.corrupt-{now_ms}")
    for suffix in _COMPANIONS:
        source = path.with_name(path.name + suffix)
        if source.exists():
            source.rename(aside.with_name(aside.name + suffix))
    return aside


def recover(data_dir: Path, lock_path: Path, now_ms: int, confirm: Callable[[str], bool]) -> Report:
    """Replace a damaged outbox by a new one with everything that can be read.

    Args:
        data_dir: the daemon's directory.
        lock_path: the daemon's lock; while a daemon has it this is refused.
        now_ms: names the damaged file and dates the rows that are retired.
        confirm: asked with what was found; False leaves everything as it is.

    Raises:
        StoreInUse: a daemon is running.
        TidelogError: there is no outbox, or the answer was no.
    """
    lock = DirectoryLock(lock_path)
    try:
        return _recover(data_dir / FILE_NAME, now_ms, confirm)
    finally:
        lock.release()


def _recover(path: Path, now_ms: int, confirm: Callable[[str], bool]) -> Report:
    finished = path.with_name(path.name + FINISHED_SUFFIX)
    if finished.exists():
        return Report(
            damage="an interrupted recovery", moved_to=_put_in_place(path, finished, now_ms)
        )
    if not path.exists():
        raise TidelogError(f"there is no outbox at {path}. Name another --data-dir.")
    damage = _damage(path)
    if damage is None:
        return Report(was_sound=True)
    if not confirm(damage):
        raise TidelogError("nothing was changed")
    report = Report(damage=damage, retired=[])
    building = path.with_name(path.name + _BUILDING_SUFFIX)
    for suffix in _COMPANIONS:
        building.with_name(building.name + suffix).unlink(missing_ok=True)
    _build(path, building, now_ms, report)
    building.rename(finished)
    report.moved_to = _put_in_place(path, finished, now_ms)
    return report


def _put_in_place(path: Path, finished: Path, now_ms: int) -> str | None:
    """Two renames; whoever is interrupted between them finds `finished` and repeats the rest."""
    aside = str(move_aside(path, now_ms)) if path.exists() else None
    finished.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return aside


def _damage(path: Path) -> str | None:
    """What is wrong with the file; None if nothing is."""
    try:
        Database(path, kind="outbox", application_id=APPLICATION_ID, remedy="").close()
    except StoreDamaged as error:
        return str(error).strip()
    return None


def _build(path: Path, target: Path, now_ms: int, report: Report) -> None:
    new = Database(target, kind="outbox", application_id=APPLICATION_ID, remedy="")
    try:
        new.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with _readable(path, target) as source, new.transaction():
            for key, value in _Damaged(source).copy_to(new, now_ms, report).items():
                new.run("outbox_set_state", key, value)
        new.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(f"{target} could not be written: {error}") from error
    finally:
        new.close()


@contextmanager
def _readable(path: Path, sound: Path) -> Iterator[Path]:
    """The damaged file; if SQLite finds no tables in it, a copy with the first page of a sound one.

    The first page says where the tables begin. Every outbox is made by the same statements, so
    they begin at the same pages in all of them.
    """
    if _Damaged(path).has_tables():
        yield path
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tidelog-recover-") as folder:
        copy = Path(folder) / path.name
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        with sound.open("rb") as file:
            page = bytearray(file.read(PAGE_BYTES))
        page[28:32] = (copy.stat().st_size // PAGE_BYTES).to_bytes(4, "big")
        page[32:40] = bytes(8)  # no free pages: what was freed is not looked for
        with copy.open("r+b") as file:
            file.write(page)
        yield copy


class _Damaged:
    """The damaged file, read piece by piece; it is never written to."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        with suppress(sqlite3.DatabaseError):  # of a file whose first page is lost
            self._connection.execute("PRAGMA cell_size_check = ON")
        self._connection.text_factory = _text
        self._queries = load_queries(files("tidelog.daemon") / "sql")

    def has_tables(self) -> bool:
        """Whether SQLite finds any; without them nothing can be read."""
        try:
            [(tables,)] = self._connection.execute(self._queries["recovery_tables"])
        except sqlite3.DatabaseError:
            return False
        return bool(tables)

    def copy_to(self, new: Database, now_ms: int, report: Report) -> dict[str, str]:
        """Copy what can be read; returns the remembered state, with a mark not before any row."""
        client_ids = {
            rowid: key for key, rowid in self._index("recovery_index_client_id", "~" * 129)
        }
        own_ids = {rowid: key for key, rowid in self._index("recovery_index_id", "~" * 129)}
        newest = 0
        taken: set[str] = set()
        own_taken: set[str] = set()
        for rowid in sorted({*client_ids, *own_ids, *self._rowids()}):
            row = self._row(rowid)
            is_whole = row is not None and _is_sound(row)
            if row is not None and is_whole and row[1] not in taken and row[0] not in own_taken:
                new.run("recovery_copy", *row)
                report.copied += 1
                newest = max(newest, row[4])
                own_taken.add(row[0])
                taken.add(row[1])
                continue
            head = self._first("recovery_head", rowid) or (None, None, None)
            client_id = next(filter(is_client_message_id, (client_ids.get(rowid), head[1])), None)
            if client_id is None:
                report.unreadable_rows += 1
            elif client_id not in taken:
                own_id = own_ids.get(rowid) or head[0]
                if not isinstance(own_id, str) or not own_id or own_id in own_taken:
                    own_id = f"recovered-{rowid}"
                own_taken.add(own_id)
                retired = {
                    "id": own_id,
                    "client_message_id": client_id,
                    "request_fingerprint": _fingerprint(head[2]),
                    "now": now_ms,
                }
                new.run_named("recovery_retire", retired)
                taken.add(client_id)
                report.retired_count += 1
                if len(report.retired) < MAX_REPORTED:
                    report.retired.append(client_id)
        state = dict(self._all("recovery_state"))
        mark = state.get("clock_mark", "")
        state["clock_mark"] = str(max(newest, int(mark) if mark.isdigit() else 0))
        return state

    def _rowids(self) -> Iterator[int]:
        yield from (key for (key,) in self._walk("recovery_rowids", 0, 2**63 - 1))

    def _index(self, name: str, highest: str) -> Iterator[tuple[str, int]]:
        for key, rowid in self._walk(name, "", highest):
            if isinstance(key, str) and isinstance(rowid, int):
                yield key, rowid

    def _walk(self, name: str, lowest: Any, highest: Any) -> Iterator[tuple[Any, ...]]:
        """Keys upwards until a damaged page, then downwards from the end to the same page.

        What lies between two damaged pages of one tree is found in another tree, or not at all.
        """
        seen: set[Any] = set()
        for query, start in ((name, lowest), (f"{name}_back", highest)):
            last, step = start, _STEP
            while True:
                try:
                    rows = self._connection.execute(self._queries[query], (last, step)).fetchall()
                except sqlite3.DatabaseError:
                    if step == 1:
                        break
                    step = 1
                    continue
                fresh = [row for row in rows if row[0] not in seen]
                yield from fresh
                seen.update(row[0] for row in fresh)
                if not fresh:
                    break
                last = rows[-1][0]

    def _first(self, name: str, rowid: int) -> tuple[Any, ...] | None:
        try:
            found: tuple[Any, ...] | None = self._connection.execute(
                self._queries[name], (rowid,)
            ).fetchone()
        except sqlite3.DatabaseError:
            return None
        return found

    def _row(self, rowid: int) -> tuple[Any, ...] | None:
        """A row as this version has it: columns that came later are empty."""
        found = self._first("recovery_row", rowid)
        return None if found is None else (*found, *(None,) * _COLUMNS)[:_COLUMNS]

    def _all(self, name: str) -> list[tuple[Any, ...]]:
        try:
            rows = self._connection.execute(self._queries[name]).fetchall()
        except sqlite3.DatabaseError:
            return []
        return [row for row in rows if all(isinstance(value, str) for value in row)]


def _text(data: bytes) -> Any:
    """Damaged text stays bytes, which no check below takes for text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _fingerprint(value: Any) -> bytes:
    return value if isinstance(value, bytes) and len(value) == 32 else _LOST_FINGERPRINT


def _is_sound(row: tuple[Any, ...]) -> bool:
    """Whether a row is what was written, as far as that can be told.

    SQLite has no checksums: bytes of a payload may be wrong in a row that reads well. What would
    still be sent must therefore have the fingerprint that it was accepted with.
    """
    own_id, client_id, fingerprint, payload, enqueued_at, attempts, next_at, status = row[:8]
    if not (isinstance(own_id, str) and own_id and is_client_message_id(client_id)):
        return False
    if not (isinstance(fingerprint, bytes) and len(fingerprint) == 32 and status in STATUSES):
        return False
    if not all(isinstance(number, int) for number in (enqueued_at, attempts, next_at)):
        return False
    if row[13] not in (None, "operator", "auto") or not isinstance(payload, bytes):
        return False
    if status in ("done", "aborted"):
        return True
    try:
        return read_envelope(read_object(payload)).fingerprint() == fingerprint
    except RequestRefused:
        return False
