"""What a sync client keeps on its disk: events in three states, snapshots and cursors (sync 17.1).

Every method is one transaction, so a client that is killed at any moment finds a state it could
have been in. The owner calls from one thread at a time; the file belongs to one process.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tidelog.base.data.strictjson import read
from tidelog.base.errors import (
    InvalidJson,
    QueueFull,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    TidelogError,
)
from tidelog.client.sync import damaged_file
from tidelog.client.sync.messages import Commit, Decision, Json
from tidelog.client.sync.rows import (
    StoredEvent,
    event_columns,
    event_of,
    json_text,
    stored_event,
)
from tidelog.client.sync.store_file import REMEDY, StoreFile

MAX_POSITION = 2**63 - 1
"""After every position that a log can have."""

MAX_DRAFTS = 100_000
"""Drafts held for a server that does not come back; each one is also work for every view."""


class IntegrityViolation(TidelogError):  # noqa: N818 - the failure is the noun
    """What arrived contradicts what is stored: one of them is not the server's log (sync 17.6)."""


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
        """What the application should know about the file; the owner empties it."""
        self.unreadable: set[str] = set()
        """Ids of drafts that were found damaged; they are neither shown nor submitted."""
        self.unchecked: set[str] = set()
        """Partitions that got committed events since their state was last checked. The owner takes
        out what it has checked, and adds what it wants to see checked again; the file follows with
        the next transaction, so a client that is killed checks too much, never too little."""
        self._marked: set[str] = set()
        """`unchecked` as it is in the file."""
        self._now = now
        self._reducer_version = model_version
        self._was_replaced = False
        self._file = StoreFile(path)
        try:
            damaged_file.finish(path)
            self._file.open()
            try:
                self._start()
            except StoreDamaged as damage:
                self.replace(str(damage))
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._file.check()
        self._file.migrate()
        self._bind()
        self._draft_clock: int = self._file.one("sync_draft_clock", self.client_id)
        self._draft_count: int | None = None
        self._marked = {name for (name,) in self._file.all("sync_unchecked")}
        self.unchecked = set(self._marked)
        self.adopt_reducers(self._reducer_version)

    def close(self) -> None:
        """Give the file back."""
        with suppress(AttributeError):  # it was never opened
            if self.unchecked != self._marked:
                with suppress(StoreError, sqlite3.Error), self._file.transaction():
                    self._mark(self.unchecked)
        self._file.close()
        self._file.lock.release()

    def _bind(self) -> None:
        """Bind a new file to this client; refuse one that belongs to another."""
        bound = self._file.row("sync_bound", "client_id")
        if bound is None:
            with self._file.transaction():
                self._file.run("sync_bind", "client_id", self.client_id)
        elif bound[0] != self.client_id:
            raise StoreUnavailable(
                f"{self.path} belongs to the client {bound[0]!r}, whose drafts would be committed "
                f"as those of {self.client_id!r}. Open it as {bound[0]!r}, or name another file "
                f"for {self.client_id!r}: every client_id has its own."
            )
        foreign: int = self._file.one("sync_foreign_drafts", self.client_id)
        if foreign:
            self.notes.append(
                Note(
                    "foreign_drafts",
                    f"{self.path} holds {foreign} drafts that other clients wrote while an earlier "
                    f"version had it open. They are not submitted as those of {self.client_id!r}.",
                )
            )

    def replace(self, damage: str) -> None:
        """Continue with a new file that has the drafts of this damaged one (sync 17.10).

        Only once: if the new file is damaged too, the disk is at fault.
        """
        if self._was_replaced:
            raise StoreDamaged(f"{damage} It was replaced once already: check the disk.")
        self._was_replaced = True
        with suppress(sqlite3.Error):
            self._file.close()
        rescued = damaged_file.rescue(self.path, self._file.queries)
        building = damaged_file.replacement(self.path)
        self._file.open(building)
        self._file.migrate()
        kept = self._take_over(rescued)
        self._file.close()
        aside = damaged_file.replace(self.path, building, self._now())
        self._file.open()
        text = (
            f"{damage.removesuffix(REMEDY).strip()} It is kept as {aside.name}. The new file has "
            f"{kept} drafts and rejected events of it; {rescued.found - kept} could not be read. "
            "The rest is fetched from the server."
        )
        self.notes.append(Note("store_damaged", text))
        self._start()

    def _take_over(self, rescued: damaged_file.Rescued) -> int:
        """Store what was rescued; returns how many rows."""
        kept = 0
        with self._file.transaction():
            for row in rescued.rows:
                with suppress(ValueError, sqlite3.IntegrityError):
                    self._file.run("sync_insert_rescued", *row)
                    kept += bool(stored_event(row))
            if rescued.client_id is not None:
                self._file.run("sync_bind", "client_id", rescued.client_id)
        return kept

    # Model version (sync 17.8)

    @property
    def model_version(self) -> int:
        """The version in use: what the server last announced, at first that of the reducers."""
        value: int = self._file.one("sync_meta", "model_version")
        return value

    def change_model_version(self, version: int, partitions: Collection[str]) -> None:
        """Derived states are void: drop the snapshots, and fetch `partitions` from 0."""
        with self._file.transaction():
            self._forget_snapshots()
            for partition in partitions:
                self._file.run("sync_drop_cursor", partition)
            self._file.run("sync_set_meta", "model_version", version)
        self.unchecked.update(partitions)

    def adopt_reducers(self, version: int) -> frozenset[str]:
        """Drop snapshots that were made by other reducers than the application has now.

        Returns:
            Partitions whose state cannot be rebuilt from here, as in `Applied.lost`.
        """
        self._reducer_version = version
        lost: frozenset[str] = frozenset()
        with self._file.transaction():
            if self._file.row("sync_meta", "model_version") is None:
                self._file.run("sync_set_meta", "model_version", version)
            known = self._file.row("sync_meta", "reducer_version")
            if known is not None and known[0] != version:
                lost = self._forget_snapshots()
            self._file.run("sync_set_meta", "reducer_version", version)
        return lost

    # The draft lifecycle: 17.2

    def add_draft(self, event_id: str, partitions: Sequence[str], event: Json) -> StoredEvent:
        """Store a draft after all others; `QueueFull` when too many wait already."""
        with self._file.transaction():
            if self._count_drafts() >= MAX_DRAFTS:
                raise QueueFull(
                    f"{MAX_DRAFTS} drafts wait for the server. Connect, and submit again when some "
                    "have been committed."
                )
            clock = self._draft_clock + 1
            self._file.run(
                "sync_insert_draft",
                event_id,
                *event_columns(event),
                json_text(partitions),
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
            self._draft_count = self._file.one("sync_draft_count", self.client_id)
        return self._draft_count

    def find(self, event_id: str) -> StoredEvent | None:
        """The row of an id, if there is one."""
        found = self._file.row("sync_row", event_id)
        try:
            return None if found is None else stored_event(found)
        except ValueError as error:
            raise StoreDamaged(f"{self.path}: {event_id} cannot be read. {REMEDY}") from error

    def row(self, event_id: str) -> StoredEvent:
        """The row of an id that is known to exist; `KeyError` otherwise."""
        found = self.find(event_id)
        if found is None:
            raise KeyError(event_id)
        return found

    def drafts(self, limit: int = MAX_DRAFTS) -> list[StoredEvent]:
        """The first drafts in the order they are submitted in, as far as they can be read."""
        return self._readable(self._file.all("sync_drafts", self.client_id, limit))

    def next_drafts(self, limit: int) -> Iterator[StoredEvent]:
        """The same one by one, if not all may be needed. Read it before writing anything."""
        for row in self._file.each("sync_drafts", self.client_id, limit):
            yield from self._readable([row])

    def drafts_of(self, partition: str) -> list[StoredEvent]:
        """The drafts of a partition in the order they overlay its state."""
        try:
            found = self._file.all("sync_partition_drafts", self.client_id, partition)
        except StoreDamaged:  # a damaged list of partitions fails the query for all of them
            return [draft for draft in self.drafts() if partition in draft.partitions]
        return self._readable(found)

    def rejected(self) -> list[StoredEvent]:
        """What the server refused, in the order it was written in."""
        return self._readable(self._file.all("sync_rejected"))

    def withdraw(self, event_id: str) -> None:
        """Forget a draft."""
        with self._file.transaction():
            self._file.run("sync_withdraw", event_id)
        self._draft_count = None

    def rows(self) -> Iterator[StoredEvent]:
        """Committed by position, drafts by clock, rejected. Read it before writing anything."""
        return map(stored_event, self._file.run("sync_rows"))

    def committed_after(
        self, partition: str, committed_id: int
    ) -> Iterator[tuple[int, Json | None]]:
        """Committed events after a position, in order; None stands for one that is damaged."""
        rows = self._file.each("sync_committed_after", partition, committed_id)
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
                yield committed_id, event_of(*columns)
            except ValueError:
                yield committed_id, None

    def _committed_singly(
        self, partition: str, committed_id: int
    ) -> Iterator[tuple[int, Json | None]]:
        """Row by row, so that a damaged page costs only the events that are on it."""
        for (position,) in self._file.all("sync_committed_positions", partition, committed_id):
            try:
                [columns] = self._file.all("sync_committed_row", position)
                yield position, event_of(*columns)
            except (StoreDamaged, ValueError):
                yield position, None

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

        A `state` stands for the events up to it, as if they had been here and were pruned.
        """
        return self._store(commits, (), dict.fromkeys(partitions, through), state)

    def store_results(self, decisions: Iterable[Decision]) -> Applied:
        """Apply the answers to submitted drafts."""
        return self._store((), decisions, {})

    def cursor(self, partition: str) -> int:
        """How far the partition has been fetched without a gap; 0 if never."""
        found = self._file.row("sync_cursor", partition)
        return 0 if found is None else int(found[0])

    def cursors(self, partitions: Iterable[str]) -> dict[str, int]:
        """The cursors of many partitions, in one question."""
        known: dict[str, int] = dict(self._file.all("sync_cursors"))
        return {partition: known.get(partition, 0) for partition in partitions}

    @property
    def incarnation(self) -> str | None:
        """The history of the log that what is committed here belongs to; None if unknown."""
        found = self._file.row("sync_bound", "incarnation")
        return None if found is None else str(found[0])

    def follow(self, incarnation: str) -> None:
        """Remember the history that a log has, where none was known."""
        with self._file.transaction():
            self._file.run("sync_bind", "incarnation", incarnation)

    def rewind(self, incarnation: str, began: int) -> int:
        """Forget what the log does not have any more: everything after `began` (sync 17.6).

        Returns:
            How many committed events were here and are not part of that history.
        """
        with self._file.transaction():
            dropped = self._file.run("sync_drop_committed_after", began).rowcount
            self._file.run("sync_drop_index_after", began)
            for (partition,) in self._file.all("sync_snapshots_after", began):
                self._drop_snapshot(partition)
            self._file.run("sync_lower_cursors", began, began)
            self._file.run("sync_bind", "incarnation", incarnation)
        return dropped

    def reset(self) -> None:
        """Forget the log after an integrity violation; drafts and rejections stay (sync 17.6)."""
        with self._file.transaction():
            for name in (
                "sync_drop_snapshots",
                "sync_drop_committed",
                "sync_drop_index",
                "sync_drop_cursors",
                "sync_unmark_all_pruned",
            ):
                self._file.run(name)

    # Snapshots and pruning: 17.8

    def save_snapshot(self, partition: str, state: Json, committed_id: int) -> bool:
        """Keep the committed state of a partition as of `committed_id`.

        A tree may be deeper than JSON can be written; such a state has no snapshot and is replayed.
        """
        try:
            text = json_text(state)
        except orjson.JSONEncodeError:
            return False
        with self._file.transaction():
            times = (self._now(), self.model_version)
            self._file.run("sync_save_snapshot", partition, text, committed_id, *times)
        return True

    def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots, by partition."""
        return [SnapshotInfo._make(row) for row in self._file.all("sync_snapshots")]

    def start_of(self, partition: str) -> Start:
        """Where building the state of a partition starts; useless snapshots are removed."""
        found = self._file.row("sync_snapshot", partition)
        if found is not None:
            text, committed_id, version = found
            state = _read_state(text)
            if state is not None and version == self.model_version:
                return Start(state, committed_id, lost=False)
        return self.start_of_nothing(partition)

    def start_of_nothing(self, partition: str) -> Start:
        """Build from the first event: there is no snapshot, or it could not be read."""
        with self._file.transaction():
            return Start(None, 0, lost=self._drop_snapshot(partition))

    def prune(self, complete: Iterable[str] = (), *, is_fetching: bool = False) -> int:
        """Remove committed rows that every one of their partitions has a snapshot of.

        Rows that are still to be fetched stay, or they would be taken for late ones. Partitions
        that are `complete` lack nothing up to their snapshot, so nothing of that is fetched. One
        without a cursor is fetched from 0 anyway, unless that is just happening.
        """
        with self._file.transaction():
            version = self.model_version
            self._file.run_many("sync_raise_to_snapshot", [(partition,) for partition in complete])
            without_cursor = 0 if is_fetching else MAX_POSITION
            self._file.run("sync_mark_pruned", version, without_cursor)
            pruned = self._file.run("sync_prune", version, without_cursor).rowcount
            self._file.run("sync_drop_pruned_index")
        return pruned

    def wipe(self, partition: str) -> int:
        """Remove what is here of a partition and of no other that was fetched; drafts stay.

        Overwritten, not only unlinked: whoever has the file must not find it.
        """
        [(usual,)] = self._file.connection.execute("PRAGMA secure_delete").fetchall()
        self._file.connection.execute("PRAGMA secure_delete = ON").fetchall()
        try:
            with self._file.transaction():
                for name in ("sync_drop_snapshot", "sync_drop_cursor", "sync_unmark_pruned"):
                    self._file.run(name, partition)
                wiped = self._file.run("sync_wipe_committed", partition).rowcount
                wiped += self._file.run("sync_wipe_rejected", partition).rowcount
                self._file.run("sync_drop_pruned_index")
            self._file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._file.connection.execute(f"PRAGMA secure_delete = {usual:d}").fetchall()
        self.unchecked.discard(partition)
        return wiped

    def forget_rejected(self) -> int:
        """Remove rejected rows."""
        with self._file.transaction():
            return self._file.run("sync_drop_rejected").rowcount

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
        unchecked = self.unchecked  # becomes this object's only once the file has it
        with self._file.transaction():
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
            self._file.run_many("sync_index", members)
            unchecked = unchecked.union(partition for partition, _ in members)
            if state is not None:
                partition, committed_id, text = state
                times = (self._now(), self.model_version)
                self._file.run("sync_save_snapshot", partition, text, committed_id, *times)
                self._file.run("sync_mark_as_pruned", partition)
                unchecked = unchecked | {partition}
            self._mark(unchecked)
            known = self.cursors(cursors)
            self._file.run_many(
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
        self._file.run_many("sync_mark_unchecked", [(name,) for name in unchecked - self._marked])
        self._file.run_many("sync_unmark_unchecked", [(name,) for name in self._marked - unchecked])

    def _upsert(self, commit: Commit) -> Arrival | None:
        """Store a commit once, whichever of its copies comes first; None for a later copy."""
        found = self._file.row("sync_find", commit.id)
        if found is None:
            columns = (*event_columns(commit.event), json_text(commit.partitions), commit.client_id)
            times = (self._now(), int(commit.status_updated_at))
            inserted = self._file.run(
                "sync_insert_committed", commit.id, commit.committed_id, *columns, *times
            )
            if inserted.rowcount == 0:
                raise _taken(commit.committed_id, commit.id)
            return Arrival(commit.id, commit.committed_id, commit.partitions, was_local=False)
        if _is_committed(commit.id, found, commit.committed_id):
            return None
        self._commit_at(
            "sync_confirm_with_content",
            commit.id,
            commit.committed_id,
            int(commit.status_updated_at),
            *event_columns(commit.event),
            json_text(commit.partitions),
            commit.client_id,
        )
        return Arrival(commit.id, commit.committed_id, commit.partitions, was_local=True)

    def _confirm(self, decision: Decision) -> Arrival | None:
        """A draft was committed as submitted; None if that is known, or the row is pruned."""
        found = self._file.row("sync_find", decision.id)
        committed_id = decision.committed_id
        if found is None or committed_id is None:
            return None
        if _is_committed(decision.id, found, committed_id):
            return None
        self._commit_at("sync_confirm", decision.id, committed_id, int(decision.status_updated_at))
        return Arrival(decision.id, committed_id, tuple(orjson.loads(found[2])), was_local=True)

    def _commit_at(self, name: str, event_id: str, committed_id: int, *columns: object) -> None:
        try:
            self._file.run(name, committed_id, *columns, event_id)
        except sqlite3.IntegrityError:
            raise _taken(committed_id, event_id) from None

    def _reject(self, decision: Decision) -> bool:
        updated = self._file.run(
            "sync_reject",
            int(decision.status_updated_at),
            decision.reason,
            json_text(decision.errors),
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
        snapshots: dict[str, int] = dict(self._file.all("sync_snapshots_from", lowest))
        lost = set()
        for arrival in arrivals if snapshots else ():
            for partition in arrival.partitions:
                if arrival.committed_id > snapshots.get(partition, 0):
                    continue
                if arrival.was_local or self.cursor(partition) < arrival.committed_id:
                    del snapshots[partition]
                    if self._drop_snapshot(partition):
                        lost.add(partition)
        return frozenset(lost)

    def _drop_snapshot(self, partition: str) -> bool:
        """Whether the partition must be fetched again, because its rows are not all here."""
        self._file.run("sync_drop_snapshot", partition)
        if self._file.row("sync_is_pruned", partition) is None:
            return False
        self._file.run("sync_unmark_pruned", partition)
        self._file.run("sync_drop_cursor", partition)
        return True

    def _forget_snapshots(self) -> frozenset[str]:
        """Which partitions must be fetched again, because their rows are not all here."""
        lost = frozenset(name for (name,) in self._file.all("sync_pruned"))
        self._file.run("sync_drop_snapshots")
        self._file.run("sync_drop_pruned_cursors")
        self._file.run("sync_unmark_all_pruned")
        return lost


def _is_committed(event_id: str, found: tuple[Any, ...], committed_id: int) -> bool:
    """Whether the row already says so; a row that says another position is a contradiction."""
    status, stored, _ = found
    if status == "committed" and stored != committed_id:
        raise IntegrityViolation(f"{event_id} was committed at {stored}, now at {committed_id}")
    return bool(status == "committed")


def _taken(committed_id: int, event_id: str) -> IntegrityViolation:
    return IntegrityViolation(f"{committed_id} holds another event than {event_id}")


def _read_state(text: str) -> Json | None:
    try:
        value = read(text, max_depth=1000)
    except InvalidJson:
        return None
    return value if isinstance(value, dict) else None
