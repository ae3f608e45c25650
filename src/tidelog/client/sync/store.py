"""What a sync client keeps on its disk: events in three states, snapshots and cursors (sync 17.1).

Every method is one transaction, so a client that is killed at any moment finds a state it could
have been in. The owner calls from one thread at a time; the file belongs to one process.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from tidelog.base.data.strictjson import read
from tidelog.base.errors import (
    InvalidJson,
    QueueFull,
    StoreDamaged,
    StoreError,
    StoreInUse,
    StoreUnavailable,
    TidelogError,
)
from tidelog.base.sql import sqlitefile
from tidelog.base.sql.queries import load_queries
from tidelog.client.sync import rescue as sync_rescue
from tidelog.client.sync.messages import Commit, Decision, Json

APPLICATION_ID = 0x74647363
"""In the header of every file of ours; the first migration writes it."""

CHECKED_AT_START_BYTES = 256 * 1024**2
"""Files up to this size are checked page by page at every start, about a quarter of a second."""

MAX_POSITION = 2**63 - 1
"""After every position that a log can have."""

MAX_DRAFTS = 100_000
"""Drafts held for a server that does not come back; each one is also work for every view."""

_REMEDY = (
    "Open the client again: it keeps the drafts that can be read, and fetches the rest from the "
    "server."
)

Status = Literal["draft", "committed", "rejected"]


class IntegrityViolation(TidelogError):  # noqa: N818 - the failure is the noun
    """What arrived contradicts what is stored: one of them is not the server's log (sync 17.6)."""


class StoredEvent(NamedTuple):
    """One row of `events`, its JSON parsed."""

    id: str
    committed_id: int | None
    event: Json
    partitions: tuple[str, ...]
    client_id: str
    status: Status
    draft_clock: int | None
    """Place among the local drafts; None for what others wrote."""
    created_at: int
    status_updated_at: int | None
    reject_reason: str | None
    errors: tuple[Json, ...]


class Arrival(NamedTuple):
    """An event that became committed just now."""

    id: str
    committed_id: int
    partitions: tuple[str, ...]
    was_local: bool
    """Whether the row was a draft (or rejected) before, so somebody may be waiting for it."""


class Applied(NamedTuple):
    """What a transaction changed."""

    arrivals: list[Arrival]
    rejected: list[str]
    lost: frozenset[str]
    """Partitions whose state cannot be rebuilt from here: their cursor is gone, fetch from 0."""


class SnapshotInfo(NamedTuple):
    """A snapshot without its state."""

    partition: str
    committed_id: int
    created_at: int
    model_version: int


class ServerState(NamedTuple):
    """A partition's state as the server stores it."""

    partition: str
    committed_id: int
    """It includes the events up to here."""
    text: str


class Note(NamedTuple):
    """Something to tell the application about the file."""

    code: str
    message: str


class Start(NamedTuple):
    """From where the committed state of a partition is built."""

    state: Json | None
    """None: from the empty state."""
    committed_id: int
    lost: bool
    """The snapshot is missing and so are rows: the partition must be fetched from 0."""


class SyncStore:
    """The local file of one `client_id`."""

    def __init__(
        self, path: Path, *, client_id: str, model_version: int, now: Callable[[], int]
    ) -> None:
        """Open or create the file; `model_version` is that of the reducers the application has."""
        self.path = path
        self.client_id = client_id
        self.notes: list[Note] = []
        """What happened to the file that the application should know; the owner empties it."""
        self.unreadable: set[str] = set()
        """Ids of drafts that were found damaged; they are neither shown nor submitted."""
        self.unchecked: set[str] = set()
        """Partitions that got committed events since their state was last checked. The owner takes
        out what it has checked, and adds what it wants to see checked again; the file follows with
        the next transaction, so a client that is killed checks too much, never too little."""
        self._marked: set[str] = set()
        """The same as the file has it."""
        self._now = now
        self._reducer_version = model_version
        self._was_replaced = False
        self._queries = load_queries(files("tidelog.client") / "sql")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        try:
            sync_rescue.finish(path)
            self._connection = _open(path)
            try:
                self._start()
            except StoreDamaged as damage:
                self.replace(str(damage))
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        if self.path.stat().st_size <= CHECKED_AT_START_BYTES:
            sqlitefile.check(self._connection, self.path, remedy=_REMEDY)
        with self._translated():
            _migrate(self._connection, self.path)
        self._bind()
        self._draft_clock: int = self._one("sync_draft_clock", self.client_id)
        self._draft_count: int | None = None
        self._marked = {name for (name,) in self._all("sync_unchecked")}
        self.unchecked = set(self._marked)
        self.adopt_reducers(self._reducer_version)

    def close(self) -> None:
        """Give the file back."""
        with suppress(AttributeError):  # it was never opened
            if self.unchecked != self._marked:
                with suppress(StoreError, sqlite3.Error), self._transaction():
                    self._mark(self.unchecked)
            self._connection.close()
        self._lock.release()

    def _bind(self) -> None:
        """Take a new file for this client; refuse one that is another's."""
        bound = self._row("sync_bound", "client_id")
        if bound is None:
            with self._transaction():
                self._run("sync_bind", "client_id", self.client_id)
        elif bound[0] != self.client_id:
            raise StoreUnavailable(
                f"{self.path} belongs to the client {bound[0]!r}, whose drafts would be committed "
                f"as those of {self.client_id!r}. Open it as {bound[0]!r}, or name another file "
                f"for {self.client_id!r}: every client_id has its own."
            )
        foreign: int = self._one("sync_foreign_drafts", self.client_id)
        if foreign:
            self.notes.append(
                Note(
                    "foreign_drafts",
                    f"{self.path} holds {foreign} drafts that other clients wrote while an earlier "
                    f"version had it open. They are not submitted as those of {self.client_id!r}.",
                )
            )

    def replace(self, damage: str) -> None:
        """Go on with a new file that has the drafts of this one, which is damaged (sync 17.10).

        Once: a disk that spoils the new file too is beyond help.
        """
        if self._was_replaced:
            raise StoreDamaged(f"{damage} It was replaced once already: check the disk.")
        self._was_replaced = True
        with suppress(sqlite3.Error):
            self._connection.close()
        rescued = sync_rescue.rescue(self.path, self._queries)
        building = sync_rescue.replacement(self.path)
        self._connection = _open(building)
        _migrate(self._connection, building)
        kept = self._take_over(rescued)
        self._connection.close()
        aside = sync_rescue.replace(self.path, building, self._now())
        self._connection = _open(self.path)
        text = (
            f"{damage.removesuffix(_REMEDY).strip()} It is kept as {aside.name}. The new file has "
            f"{kept} drafts and rejected events of it; {rescued.found - kept} could not be read. "
            "The rest is fetched from the server."
        )
        self.notes.append(Note("store_damaged", text))
        self._start()

    def _take_over(self, rescued: sync_rescue.Rescued) -> int:
        """Store what was rescued; returns how many rows."""
        kept = 0
        with self._transaction():
            for row in rescued.rows:
                with suppress(ValueError, sqlite3.IntegrityError):
                    self._run("sync_insert_rescued", *row)
                    kept += bool(stored_event(row))
            if rescued.client_id is not None:
                self._run("sync_bind", "client_id", rescued.client_id)
        return kept

    # Model version (sync 17.8)

    @property
    def model_version(self) -> int:
        """The version in use: what the server last announced, at first that of the reducers."""
        value: int = self._one("sync_meta", "model_version")
        return value

    def change_model_version(self, version: int, partitions: Collection[str]) -> None:
        """Nothing derived is true any more: no snapshots, and `partitions` are fetched from 0."""
        with self._transaction():
            self._forget_snapshots()
            for partition in partitions:
                self._run("sync_drop_cursor", partition)
            self._run("sync_set_meta", "model_version", version)
        self.unchecked.update(partitions)

    def adopt_reducers(self, version: int) -> frozenset[str]:
        """Snapshots made by other reducers than the application now has are worth nothing.

        Returns:
            Partitions whose state cannot be rebuilt from here, as in `Applied.lost`.
        """
        self._reducer_version = version
        lost: frozenset[str] = frozenset()
        with self._transaction():
            if self._row("sync_meta", "model_version") is None:
                self._run("sync_set_meta", "model_version", version)
            known = self._row("sync_meta", "reducer_version")
            if known is not None and known[0] != version:
                lost = self._forget_snapshots()
            self._run("sync_set_meta", "reducer_version", version)
        return lost

    # The draft lifecycle: 17.2

    def add_draft(self, event_id: str, partitions: Sequence[str], event: Json) -> StoredEvent:
        """Store a draft behind all others; `QueueFull` when too many wait already."""
        with self._transaction():
            if self._count_drafts() >= MAX_DRAFTS:
                raise QueueFull(
                    f"{MAX_DRAFTS} drafts wait for the server. Connect, and submit again when some "
                    "have been committed."
                )
            clock = self._draft_clock + 1
            self._run(
                "sync_insert_draft",
                event_id,
                *_event_columns(event),
                _text(partitions),
                self.client_id,
                clock,
                self._now(),
            )
            draft = self.row(event_id)
        self._draft_clock = clock
        if self._draft_count is not None:
            self._draft_count += 1
        return draft

    def _count_drafts(self) -> int:
        """Counting takes as long as there are drafts, so it is not done for each of them."""
        if self._draft_count is None:
            self._draft_count = self._one("sync_draft_count", self.client_id)
        return self._draft_count

    def find(self, event_id: str) -> StoredEvent | None:
        """The row of an id, if there is one."""
        found = self._row("sync_row", event_id)
        try:
            return None if found is None else stored_event(found)
        except ValueError as error:
            raise StoreDamaged(f"{self.path}: {event_id} cannot be read. {_REMEDY}") from error

    def row(self, event_id: str) -> StoredEvent:
        """The row of an id that is known to exist; `KeyError` otherwise."""
        found = self.find(event_id)
        if found is None:
            raise KeyError(event_id)
        return found

    def drafts(self, limit: int = MAX_DRAFTS) -> list[StoredEvent]:
        """The first drafts in the order they are submitted in, as far as they can be read."""
        return self._readable(self._all("sync_drafts", self.client_id, limit))

    def next_drafts(self, limit: int) -> Iterator[StoredEvent]:
        """The same one by one, for who does not need them all. Read it before writing anything."""
        for row in self._each("sync_drafts", self.client_id, limit):
            yield from self._readable([row])

    def drafts_of(self, partition: str) -> list[StoredEvent]:
        """The drafts of a partition in the order they overlay its state."""
        try:
            found = self._all("sync_partition_drafts", self.client_id, partition)
        except StoreDamaged:  # a damaged list of partitions fails the query for all of them
            return [draft for draft in self.drafts() if partition in draft.partitions]
        return self._readable(found)

    def rejected(self) -> list[StoredEvent]:
        """What the server refused, in the order it was written in."""
        return self._readable(self._all("sync_rejected"))

    def withdraw(self, event_id: str) -> None:
        """Forget a draft."""
        with self._transaction():
            self._run("sync_withdraw", event_id)
        self._draft_count = None

    def rows(self) -> Iterator[StoredEvent]:
        """Committed by place, drafts by clock, then rejected. Read it before writing anything."""
        return map(stored_event, self._run("sync_rows"))

    def committed_after(
        self, partition: str, committed_id: int
    ) -> Iterator[tuple[int, Json | None]]:
        """Committed events after a place, in their order; None stands for one that is damaged."""
        rows = self._each("sync_committed_after", partition, committed_id)
        while True:
            try:
                row = next(rows, None)
            except StoreDamaged:
                yield from self._committed_singly(partition, committed_id)
                return
            if row is None:
                return
            committed_id, *columns = row
            try:
                yield committed_id, _event(*columns)
            except ValueError:
                yield committed_id, None

    def _committed_singly(
        self, partition: str, committed_id: int
    ) -> Iterator[tuple[int, Json | None]]:
        """Row by row, so that a damaged page costs only the events that are on it."""
        for (place,) in self._all("sync_committed_places", partition, committed_id):
            try:
                [columns] = self._all("sync_committed_row", place)
                yield place, _event(*columns)
            except (StoreDamaged, ValueError):
                yield place, None

    def _readable(self, rows: Iterable[tuple[Any, ...]]) -> list[StoredEvent]:
        """Drafts without those that are damaged, which are noted."""
        drafts = []
        for row in rows:
            try:
                drafts.append(stored_event(row))
            except ValueError:
                self.unreadable.add(row[0])
        return drafts

    # What the server decided (sync 17.4, 17.5)

    def store_commits(self, commits: Iterable[Commit]) -> Applied:
        """Upsert broadcasts. Cursors stay: only pages prove that nothing is missing (sync D61)."""
        return self._store(commits, (), {})

    def store_page(
        self,
        commits: Iterable[Commit],
        partitions: Iterable[str],
        through: int,
        state: ServerState | None = None,
    ) -> Applied:
        """Upsert a page, then raise the cursors of its cycle's partitions.

        A `state` takes the place of the events up to it: as if they had been here and were pruned.
        """
        return self._store(commits, (), dict.fromkeys(partitions, through), state)

    def store_results(self, decisions: Iterable[Decision]) -> Applied:
        """Apply the answers to submitted drafts."""
        return self._store((), decisions, {})

    def cursor(self, partition: str) -> int:
        """How far the partition has been fetched without a gap; 0 if never."""
        found = self._row("sync_cursor", partition)
        return 0 if found is None else int(found[0])

    def cursors(self, partitions: Iterable[str]) -> dict[str, int]:
        """The cursors of many partitions, in one question."""
        known: dict[str, int] = dict(self._all("sync_cursors"))
        return {partition: known.get(partition, 0) for partition in partitions}

    @property
    def incarnation(self) -> str | None:
        """The history of the log that what is committed here belongs to; None if unknown."""
        found = self._row("sync_bound", "incarnation")
        return None if found is None else str(found[0])

    def follow(self, incarnation: str) -> None:
        """Remember the history that a log has, where none was known."""
        with self._transaction():
            self._run("sync_bind", "incarnation", incarnation)

    def rewind(self, incarnation: str, began: int) -> int:
        """Forget what the log does not have any more: everything after `began` (sync 17.6).

        Returns:
            How many committed events were here and are not part of that history.
        """
        with self._transaction():
            dropped = self._run("sync_drop_committed_after", began).rowcount
            self._run("sync_drop_index_after", began)
            for (partition,) in self._all("sync_snapshots_after", began):
                self._drop_snapshot(partition)
            self._run("sync_lower_cursors", began, began)
            self._run("sync_bind", "incarnation", incarnation)
        return dropped

    def reset(self) -> None:
        """Forget the log after an integrity violation; drafts and rejections stay (sync 17.6)."""
        with self._transaction():
            for name in (
                "sync_drop_snapshots",
                "sync_drop_committed",
                "sync_drop_index",
                "sync_drop_cursors",
                "sync_unmark_all_pruned",
            ):
                self._run(name)

    # Snapshots and pruning: 17.8

    def save_snapshot(self, partition: str, state: Json, committed_id: int) -> bool:
        """Keep the committed state of a partition as of `committed_id`.

        A tree may be deeper than JSON can be written; such a state has no snapshot and is replayed.
        """
        try:
            text = _text(state)
        except orjson.JSONEncodeError:
            return False
        with self._transaction():
            times = (self._now(), self.model_version)
            self._run("sync_save_snapshot", partition, text, committed_id, *times)
        return True

    def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots, by partition."""
        return [SnapshotInfo._make(row) for row in self._all("sync_snapshots")]

    def start_of(self, partition: str) -> Start:
        """Where building the state of a partition starts; useless snapshots are removed."""
        found = self._row("sync_snapshot", partition)
        if found is not None:
            text, committed_id, version = found
            state = _object(text)
            if state is not None and version == self.model_version:
                return Start(state, committed_id, lost=False)
        return self.start_of_nothing(partition)

    def start_of_nothing(self, partition: str) -> Start:
        """Build from the first event: there is no snapshot, or it could not be read."""
        with self._transaction():
            return Start(None, 0, lost=self._drop_snapshot(partition))

    def prune(self, complete: Iterable[str] = (), *, is_fetching: bool = False) -> int:
        """Remove committed rows that every one of their partitions has a snapshot of.

        Rows that are still to be fetched stay, or they would be taken for late ones. Partitions
        that are `complete` lack nothing up to their snapshot, so nothing of that is fetched. One
        without a cursor is fetched from 0 anyway, unless that is just happening.
        """
        with self._transaction():
            version = self.model_version
            self._run_many("sync_raise_to_snapshot", [(partition,) for partition in complete])
            without_cursor = 0 if is_fetching else MAX_POSITION
            self._run("sync_mark_pruned", version, without_cursor)
            pruned = self._run("sync_prune", version, without_cursor).rowcount
            self._run("sync_drop_pruned_index")
        return pruned

    def wipe(self, partition: str) -> int:
        """Remove what is here of a partition and of no other that was fetched; drafts stay.

        Overwritten, not only unlinked: whoever has the file must not find it.
        """
        [(usual,)] = self._connection.execute("PRAGMA secure_delete").fetchall()
        self._connection.execute("PRAGMA secure_delete = ON").fetchall()
        try:
            with self._transaction():
                for name in ("sync_drop_snapshot", "sync_drop_cursor", "sync_unmark_pruned"):
                    self._run(name, partition)
                wiped = self._run("sync_wipe_committed", partition).rowcount
                wiped += self._run("sync_wipe_rejected", partition).rowcount
                self._run("sync_drop_pruned_index")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.execute(f"PRAGMA secure_delete = {usual:d}").fetchall()
        self.unchecked.discard(partition)
        return wiped

    def forget_rejected(self) -> int:
        """Remove rejected rows."""
        with self._transaction():
            return self._run("sync_drop_rejected").rowcount

    # Inside a transaction

    def _store(
        self,
        commits: Iterable[Commit],
        decisions: Iterable[Decision],
        cursors: Mapping[str, int],
        state: ServerState | None = None,
    ) -> Applied:
        arrivals: list[Arrival] = []
        rejected = []
        self._draft_count = None
        unchecked = self.unchecked
        with self._transaction():
            for commit in commits:
                arrival = self._upsert(commit)
                if arrival is not None:
                    arrivals.append(arrival)
            for decision in decisions:
                if decision.status == "rejected":
                    if self._reject(decision):
                        rejected.append(decision.id)
                    continue
                arrival = self._confirm(decision)
                if arrival is not None:
                    arrivals.append(arrival)
            lost = self._check_snapshots(arrivals)
            members = [
                (partition, arrival.committed_id)
                for arrival in arrivals
                for partition in arrival.partitions
            ]
            self._run_many("sync_index", members)
            unchecked = unchecked.union(partition for partition, _ in members)
            if state is not None:
                partition, committed_id, text = state
                times = (self._now(), self.model_version)
                self._run("sync_save_snapshot", partition, text, committed_id, *times)
                self._run("sync_mark_as_pruned", partition)
                unchecked = unchecked | {partition}
            self._mark(unchecked)
            known = self.cursors(cursors)
            self._run_many(
                "sync_raise_cursor",
                [
                    (partition, through)
                    for partition, through in cursors.items()
                    if partition not in lost and known[partition] < through
                ],
            )
        self.unchecked = unchecked
        self._marked = set(unchecked)
        return Applied(arrivals, rejected, lost)

    def _mark(self, unchecked: set[str]) -> None:
        self._run_many("sync_mark_unchecked", [(name,) for name in unchecked - self._marked])
        self._run_many("sync_unmark_unchecked", [(name,) for name in self._marked - unchecked])

    def _upsert(self, commit: Commit) -> Arrival | None:
        """Store a commit once, whichever of its copies comes first; None for a later copy."""
        found = self._row("sync_find", commit.id)
        if found is None:
            columns = (*_event_columns(commit.event), _text(commit.partitions), commit.client_id)
            times = (self._now(), int(commit.status_updated_at))
            inserted = self._run(
                "sync_insert_committed", commit.id, commit.committed_id, *columns, *times
            )
            if inserted.rowcount == 0:
                raise _taken(commit.committed_id, commit.id)
            return Arrival(commit.id, commit.committed_id, commit.partitions, was_local=False)
        if _is_committed(commit.id, found, commit.committed_id):
            return None
        self._take_place(
            "sync_confirm_with_content",
            commit.id,
            commit.committed_id,
            int(commit.status_updated_at),
            *_event_columns(commit.event),
            _text(commit.partitions),
            commit.client_id,
        )
        return Arrival(commit.id, commit.committed_id, commit.partitions, was_local=True)

    def _confirm(self, decision: Decision) -> Arrival | None:
        """A draft was committed as submitted; None if that is known, or the row is pruned."""
        found = self._row("sync_find", decision.id)
        committed_id = decision.committed_id
        if found is None or committed_id is None:
            return None
        if _is_committed(decision.id, found, committed_id):
            return None
        self._take_place("sync_confirm", decision.id, committed_id, int(decision.status_updated_at))
        return Arrival(decision.id, committed_id, tuple(orjson.loads(found[2])), was_local=True)

    def _take_place(self, name: str, event_id: str, committed_id: int, *columns: object) -> None:
        try:
            self._run(name, committed_id, *columns, event_id)
        except sqlite3.IntegrityError:
            raise _taken(committed_id, event_id) from None

    def _reject(self, decision: Decision) -> bool:
        updated = self._run(
            "sync_reject",
            int(decision.status_updated_at),
            decision.reason,
            _text(decision.errors),
            decision.id,
        )
        return updated.rowcount > 0

    def _check_snapshots(self, arrivals: Sequence[Arrival]) -> frozenset[str]:
        """Drop snapshots that should have included an arrival and did not.

        A row that was not here before may still be included: pruning removed it, or the server's
        own state came instead of it. That is so exactly when the partition had already been fetched
        beyond it.
        """
        if not arrivals:
            return frozenset()
        lowest = min(arrival.committed_id for arrival in arrivals)
        places: dict[str, int] = dict(self._all("sync_snapshots_from", lowest))
        lost = set()
        for arrival in arrivals if places else ():
            for partition in arrival.partitions:
                if arrival.committed_id > places.get(partition, 0):
                    continue
                if arrival.was_local or self.cursor(partition) < arrival.committed_id:
                    del places[partition]
                    if self._drop_snapshot(partition):
                        lost.add(partition)
        return frozenset(lost)

    def _drop_snapshot(self, partition: str) -> bool:
        """Whether the partition must be fetched again, because its rows are not all here."""
        self._run("sync_drop_snapshot", partition)
        if self._row("sync_is_pruned", partition) is None:
            return False
        self._run("sync_unmark_pruned", partition)
        self._run("sync_drop_cursor", partition)
        return True

    def _forget_snapshots(self) -> frozenset[str]:
        """Which partitions must be fetched again, because their rows are not all here."""
        lost = frozenset(name for (name,) in self._all("sync_pruned"))
        self._run("sync_drop_snapshots")
        self._run("sync_drop_pruned_cursors")
        self._run("sync_unmark_all_pruned")
        return lost

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What SQLite says of the file, in our words; a violated constraint is the caller's."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise StoreDamaged(f"{self.path} is damaged ({error}). {_REMEDY}") from error
            raise StoreUnavailable(
                f"{self.path} cannot be written or read: {error}. Check the disk and the file's "
                "permissions."
            ) from error

    def _run(self, name: str, *values: object) -> sqlite3.Cursor:
        with self._translated():
            return self._connection.execute(self._queries[name], values)

    def _run_many(self, name: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            with self._translated():
                self._connection.executemany(self._queries[name], rows)

    def _all(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._connection.execute(self._queries[name], values).fetchall()

    def _each(self, name: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Row by row, as they may be large; nothing is written until the last one is read."""
        with self._translated():
            yield from self._connection.execute(self._queries[name], values)

    def _row(self, name: str, *values: object) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None
        with self._translated():
            found = self._connection.execute(self._queries[name], values).fetchone()
        return found

    def _one(self, name: str, *values: object) -> Any:
        [(value,)] = self._all(name, *values)
        return value


def _lock(path: Path) -> sqlitefile.DirectoryLock:
    try:
        return sqlitefile.DirectoryLock(path.with_name(path.name + ".lock"))
    except StoreInUse:
        raise StoreInUse(
            f"{path} is in use by another sync client. Close that one, or use another file."
        ) from None


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlitefile.connect(path)
        try:
            _recognize(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"{path} cannot be opened: {error}. Move it aside and start again: the client fetches "
            "everything but unsent drafts from the server; `tidelog sync drafts` reads these out "
            "of the file."
        ) from error
    return connection


def _recognize(connection: sqlite3.Connection, path: Path) -> None:
    [(application_id,)] = connection.execute("PRAGMA application_id")
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_schema")
    if application_id != APPLICATION_ID and (application_id or tables):
        raise StoreUnavailable(
            f"{path} is an SQLite file of another application. Name another file."
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    scripts = sorted(
        (
            file
            for file in (files("tidelog.client") / "migrations").iterdir()
            if file.name.endswith("_sync.sql")
        ),
        key=lambda file: file.name,
    )
    sqlitefile.migrate(connection, path, [script.read_text(encoding="utf-8") for script in scripts])


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is to blame, and not the disk or its permissions.

    Text that is no text, or JSON that is none, is an ordinary error to SQLite: code 1, or no code.
    """
    if not isinstance(error, sqlite3.OperationalError):
        return True
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR


def _is_committed(event_id: str, found: tuple[Any, ...], committed_id: int) -> bool:
    """Whether the row already says so; a row that says another place is a contradiction."""
    status, stored, _ = found
    if status == "committed" and stored != committed_id:
        raise IntegrityViolation(f"{event_id} was committed at {stored}, now at {committed_id}")
    return bool(status == "committed")


def _taken(committed_id: int, event_id: str) -> IntegrityViolation:
    return IntegrityViolation(f"{committed_id} holds another event than {event_id}")


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _event_columns(event: Json) -> tuple[str, str, str | None]:
    extra = {key: value for key, value in event.items() if key not in ("type", "payload")}
    return event["type"], _text(event["payload"]), _text(extra) if extra else None


def _event(kind: str, payload: str, extra: str | None) -> Json:
    event = {"type": kind, "payload": orjson.loads(payload)}
    return event if extra is None else event | orjson.loads(extra)


def _object(text: str) -> Json | None:
    try:
        value = read(text, max_depth=1000)
    except InvalidJson:
        return None
    return value if isinstance(value, dict) else None


def stored_event(row: tuple[Any, ...]) -> StoredEvent:
    """A row of `events`; `ValueError` if it is damaged."""
    event_id, committed_id, kind, payload, extra, partitions, client_id, status = row[:8]
    draft_clock, created_at, status_updated_at, reject_reason, errors = row[8:]
    return StoredEvent(
        event_id,
        committed_id,
        _event(kind, payload, extra),
        tuple(orjson.loads(partitions)),
        client_id,
        status,
        draft_clock,
        created_at,
        status_updated_at,
        reject_reason,
        () if errors is None else tuple(orjson.loads(errors)),
    )
