"""The embedded engine: one SQLite file, WAL, `synchronous=FULL`, one writer process."""

import asyncio
import contextlib
import errno
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidelog.base.data.incarnation import Incarnation
from tidelog.base.data.seal import seal
from tidelog.base.errors import (
    DataError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    StoreUntrustworthy,
)
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.sql import sqlitefile
from tidelog.base.supervised import server_process
from tidelog.store.checkpoints import LARGEST_WAL_PAGES, Checkpoints
from tidelog.store.disk_speed import LARGE_BYTES, DiskSpeed
from tidelog.store.engine import (
    GENESIS_DIGEST,
    MAX_ID,
    PAGE_BYTES,
    PAGE_ENTRIES,
    end_problem,
    new_incarnation,
)
from tidelog.store.grouping import group
from tidelog.store.read_gate import ReadGate
from tidelog.store.rows import (
    Announcement,
    DedupeRow,
    Effects,
    Entry,
    Head,
    Key,
    Loaded,
    Names,
    Row,
    SealedTable,
    SurfaceStats,
)
from tidelog.store.schema import Schema

ENGINE = "sqlite"

LANE_READERS = 2
"""Reading threads of a lane. Pages come from the operating system's cache, so more than the cores
of a small machine only compete for the interpreter lock."""

PAGE_CACHE_BYTES = 192 * 1024**2
"""Of all connections of a store, unless it is told: a third for the writer, two for readers."""

REMEMBERED_SERIALS = 20_000
"""Streams whose last serial is kept in memory, some hundred bytes each."""

KEPT_READS = 5_000
KEPT_ROWS = 8
"""Reads whose rows are kept in memory, and rows of one: together some megabytes."""

KEYS_TOGETHER = 3
"""Keys of one scope from which on they are looked up together: 0.3 us each, against 2.3 us."""

SCRUB_TRIES = 50
SCRUB_PAUSE_SECONDS = 0.02
"""How often, and with what pause, a moment without readers is looked for."""

APPLICATION_ID = 0x74646C67
"""In the header of every file of ours; the first migration writes it."""

CHECKED_AT_START_BYTES = 4 * 1024**3
"""Files up to this size are checked page by page at every start (about a second per GiB); of larger
ones only the end, or a restart would take minutes. `tidelog log verify` checks any size."""

_FSYNC_FAILED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})

_NOT_DAMAGED = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
        *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL),
    }
)
"""What SQLite fails with when the file may be sound and only cannot be used now."""

_BAD_ROW = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    LookupError,
    OverflowError,
    TypeError,
    UnicodeError,
    ValueError,
)

_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


def remedy(path: Path) -> str:
    """What an operator does about a damaged file."""
    return (
        f"Move it aside and run `tidelog restore BACKUP --data-dir {path.parent}`; "
        "`tidelog log verify` says how far a log is intact."
    )


def require_own(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that another application wrote; an empty one may become ours."""
    [(application_id,)] = connection.execute("PRAGMA application_id")
    [(version,)] = connection.execute("PRAGMA user_version")
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_schema")
    if application_id != APPLICATION_ID and (application_id or version or tables):
        raise StoreUnavailable(
            f"{path} is an SQLite file of another application, not a tidelog store. "
            "Name another file with --store, or another --data-dir."
        )


def open_failure(path: Path, error: sqlite3.Error) -> StoreError:
    """What a failure to open or read a whole file means for an operator."""
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _NOT_DAMAGED:
        return StoreUnavailable(
            f"{path} cannot be used: {error}. Check the disk, the file's permissions, and that no "
            "other program has it open."
        )
    return StoreDamaged(f"{path}: {error}. {remedy(path)}")


def _plain(entry: Entry) -> Row:
    """An entry as a plain tuple without bytes, of which `sqlite3` first looks for an adapter.

    That is a fifth of an insert: 4.8 us against 3.7.
    """
    body = entry[9]
    kept = None if body is None else bytearray(body)
    return (*entry[:9], kept, entry[10], bytearray(entry[11]), bytearray(entry[12]))


def sealed_row(row: DedupeRow) -> Row:
    """A dedupe row as a plain tuple without bytes, and its seal.

    If SQLite had to ask for the seal, it would make all of these values once more: 6.9 us against
    8.6.
    """
    scope, key, committed_id, fingerprint, owner, outcome, available, seen_at, expires_at = row
    return (
        scope,
        key,
        committed_id,
        bytearray(fingerprint),
        owner,
        bytearray(outcome),
        available,
        seen_at,
        expires_at,
        bytearray(seal(*row)),
    )


class SqliteWriter:
    """The one writing connection; a transaction runs on the event loop, COMMIT included.

    A thread, for all of it or for COMMIT alone, has to win the interpreter lock back from the loop:
    slower when the loop is idle, starved when the loop is busy. `bench/commit.py --writers` prints
    the comparison; docs/measurements.md keeps the finding and what it costs, which is that nothing
    else runs while the disk syncs. Where that takes so long that this is the greater evil, because
    of the disk (`DiskSpeed`), of the batch (`LARGE_BYTES`) or of a checkpoint that runs, or that
    COMMIT itself may do (`Checkpoints`), COMMIT does go to a thread.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        queries: dict[str, str],
        schema: Schema,
        checkpoints: Checkpoints,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._fault_points = schema.fault_points
        self._touches = schema.touches
        self._disk_speed = DiskSpeed()
        self._checkpoints = checkpoints
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="tidelog-commit")
        self._serials: dict[str, int] = {}
        """Last committed serials of streams; nobody else writes, so they cannot go stale."""
        self._kept_reads, self._touches = schema.kept_reads, schema.touches
        self._kept: dict[tuple[str, Key], tuple[Row, ...]] = {}
        """What `Extension.kept_reads` found. A send of the mesh makes four of them, each a tenth of
        what SQLite does for it; with many senders no two of a batch make the same."""

    async def begin(self, names: Names, seen: int) -> Loaded:
        """See `Writer.begin`; nobody else writes, so there are no others' entries."""
        del seen
        with self._as_store_errors():
            if self._checkpoints.is_restart_due:
                await self._checkpoints.restart()
            elif self._checkpoints.is_rest_due:
                await self._checkpoints.fold_rest()
            await self._open()
            return self._load(names)

    async def _open(self) -> None:
        """Begin; wait without holding up the loop while another program has the file locked."""
        deadline = time.monotonic() + sqlitefile.BUSY_TIMEOUT_MS / 1000
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_locked or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.01)

    def _load(self, names: Names) -> Loaded:
        return Loaded(
            head=Head._make(self._connection.execute(self._queries["head"]).fetchone()),
            others=[],
            dedupe=self._dedupe_rows(names.dedupe),
            serials={stream: self._serial(stream) for stream in names.streams},
            rows={name: self._rows(*name) for name in names.rows},
        )

    def _dedupe_rows(
        self, names: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], DedupeRow | None]:
        """The rows of keys; those of one scope by one statement, since most keys are new."""
        execute = self._connection.execute
        rows: dict[tuple[str, str], DedupeRow | None] = dict.fromkeys(names)
        by_scope: dict[str, list[str]] = {}
        for scope, key in names:
            by_scope.setdefault(scope, []).append(key)
        for scope, keys in by_scope.items():
            found: list[Row] = []
            if len(keys) >= KEYS_TOGETHER and "\0" not in "".join(keys):
                text = _encode(keys).decode()
                found = execute(self._queries["dedupe_rows"], (scope, text)).fetchall()
            else:  # JSON of SQLite ends a text at its first NUL
                for key in keys:
                    found += execute(self._queries["dedupe_row"], (scope, key)).fetchall()
            for row in found:
                rows[row[0], row[1]] = DedupeRow._make(row)
        return rows

    def _rows(self, query: str, key: Key) -> tuple[Row, ...]:
        if (kept := self._kept.get((query, key))) is not None:
            return kept
        found = tuple(self._connection.execute(self._queries[query], key).fetchall())
        if query in self._kept_reads and len(found) <= KEPT_ROWS:
            if len(self._kept) >= KEPT_READS:
                self._kept.clear()
            self._kept[query, key] = found
        return found

    def _serial(self, stream: str) -> int:
        serial = self._serials.get(stream)
        if serial is None:
            [(found,)] = self._connection.execute(self._queries["stream_serial"], (stream,))
            serial = self._serials[stream] = found or 0
        return serial

    async def commit(self, batch_id: bytes, effects: Effects) -> None:
        """See `Writer.commit`; nobody will ask after the batch, so its id is not kept."""
        del batch_id
        if any(change.statement not in self._touches for change in effects.changes):
            self._kept.clear()
        with self._as_store_errors():
            self._write(effects)
            reach(FaultPoint.WRITTEN)
            size = sum(len(e.body or b"") + len(e.data or b"") for e in effects.entries)
            checkpoints = self._checkpoints
            if size >= LARGE_BYTES or checkpoints.is_running or checkpoints.may_commit_fold:
                await self._in_thread(self._commit)  # its time is no measure of the disk
            elif self._disk_speed.is_slow:
                busy_since = time.thread_time()
                took = await self._in_thread(self._timed_commit)
                self._disk_speed.note(took, loop_busy_seconds=time.thread_time() - busy_since)
            else:
                self._disk_speed.note(self._timed_commit())
            reach(FaultPoint.COMMITTED)
        self._checkpoints.note(size)
        self._serials.update((entry.stream, entry.stream_serial) for entry in effects.entries)
        if len(self._serials) > REMEMBERED_SERIALS:
            self._serials.clear()

    def _write(self, effects: Effects) -> None:
        connection, queries = self._connection, self._queries
        connection.executemany(queries["insert_entry"], map(_plain, effects.entries))
        if effects.entries:
            reach(FaultPoint.ENTRIES_WRITTEN)
        if effects.forgotten:
            connection.executemany(queries["forget_keys"], effects.forgotten)
        connection.executemany(queries["insert_dedupe"], map(sealed_row, effects.dedupe))
        if effects.dedupe:
            reach(FaultPoint.KEYS_WRITTEN)
        for statement, rows in group(effects.changes, self._touches).groups:
            connection.executemany(queries[statement], rows)
            if statement in self._fault_points:
                reach(self._fault_points[statement])
        connection.execute(
            queries["advance_head"], (effects.committed_id, effects.digest, effects.committed_at)
        )
        if effects.entries:
            reach(FaultPoint.HISTORY_WRITTEN)

    async def _in_thread(self, commit: Callable[[], T]) -> T:
        """COMMIT while the loop goes on; the connection is nobody else's until it has returned.

        It cannot be called back: who is cancelled meanwhile still waits for it, or would touch the
        connection under it and not know what is on the disk.
        """
        work = asyncio.get_running_loop().run_in_executor(self._committing, commit)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({work})
            raise

    def _timed_commit(self) -> float:
        started = time.perf_counter()
        self._commit()
        return time.perf_counter() - started

    def _commit(self) -> None:
        reach(FaultPoint.COMMITTING)
        self._connection.execute("COMMIT")

    async def confirm(self) -> None:
        """See `Writer.confirm`; nobody else writes."""
        self._rollback()

    async def rollback(self) -> None:
        """See `Writer.rollback`."""
        self._rollback()

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @property
    def wal_bytes(self) -> int:
        """Size of the write-ahead log."""
        return self._checkpoints.wal_bytes

    async def committed(self, batch_id: bytes) -> bool:
        """See `Writer.committed`; an embedded COMMIT either returned or raised."""
        del batch_id
        return False

    def close(self) -> None:
        """Let go of the file."""
        self._checkpoints.close()
        self._committing.shutdown(wait=True)
        self._connection.close()

    @contextlib.contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, *_BAD_ROW) as error:
            failure = _classify(error)
            if not isinstance(failure, StoreUntrustworthy):
                self._rollback()
            raise failure from error


def _classify(error: BaseException) -> StoreError:
    """Which of the three kinds of failure this is."""
    if isinstance(error, OSError):
        if error.errno == errno.EIO:
            return _untrustworthy(error)
        return StoreUnavailable(f"the store refused the write: {error.strerror}")
    if isinstance(error, _BAD_ROW):
        return DataError(f"the store refused a row: {error}")
    if getattr(error, "sqlite_errorcode", None) in _FSYNC_FAILED:
        return _untrustworthy(error)
    return StoreUnavailable(f"the store refused the write: {error}")


def _untrustworthy(error: BaseException) -> StoreUntrustworthy:
    return StoreUntrustworthy(
        f"the disk did not confirm a write ({error}); what is in memory may not be on disk. "
        "Check the disk, then start tidelog again: it continues from what is really there."
    )


class _Lane:
    """Threads that read, with a connection for each; who asks first is served first."""

    def __init__(self, path: Path, name: str, cache_bytes: int, gate: ReadGate) -> None:
        self._gate = gate
        self._threads = ThreadPoolExecutor(LANE_READERS, thread_name_prefix=f"tidelog-{name}")
        self._idle = [sqlitefile.connect(path, read_only=True) for _ in range(LANE_READERS)]
        for connection in self._idle:
            sqlitefile.set_page_cache(connection, cache_bytes // LANE_READERS)
        self._is_closed = False

    async def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """What a function reads."""

        def run() -> T:
            self._gate.enter()
            connection = self._idle.pop()
            try:
                return read(connection)
            finally:
                self._idle.append(connection)
                self._gate.leave()

        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except (sqlite3.DatabaseError, OverflowError) as error:
            raise StoreUnavailable(f"the store could not be read: {error}") from error

    def close(self) -> None:
        """Wait for what is being read."""
        self._is_closed = True
        self._threads.shutdown(wait=True)
        for connection in self._idle:
            connection.close()


class SqliteStore:
    """One SQLite file as a `Store`."""

    is_shared = False

    def __init__(
        self,
        schema: Schema,
        path: Path,
        *,
        log_id: str,
        read_only: bool = False,
        page_cache_bytes: int = PAGE_CACHE_BYTES,
    ) -> None:
        """Open, check and migrate; a new file becomes the log `log_id`."""
        path = path.resolve()  # the lock lies beside the file itself, whatever name it was given
        self.path = path
        self.schema = schema
        self._queries = schema.queries(ENGINE)
        self._lock: sqlitefile.DirectoryLock | None = None
        if read_only:
            if not path.exists():
                raise StoreUnavailable(
                    f"there is no log at {path}. Start a server on that data directory first, or "
                    "name the right one with --data-dir."
                )
        else:
            lock = path.with_name(path.name + ".lock")
            self._lock = sqlitefile.DirectoryLock(lock, holder=server_process())
        try:
            connection = self._open(log_id, read_only=read_only)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        third = page_cache_bytes // 3
        sqlitefile.set_page_cache(connection, third)
        self.read_gate = gate = ReadGate()
        self.writer = SqliteWriter(connection, self._queries, schema, Checkpoints(path, gate))
        self._short, self._long = _Lane(path, "look", third, gate), _Lane(path, "read", third, gate)

    def _open(self, log_id: str, *, read_only: bool) -> sqlite3.Connection:
        connection = None
        migrations = self.schema.migrations(ENGINE)
        try:
            if not read_only:
                self._require_wal_belongs()
            if self.path.exists():
                # Before the writing connection, whose first act is to make the file a WAL one.
                with closing(sqlitefile.connect(self.path, read_only=True)) as looking:
                    require_own(looking, self.path)
            connection = sqlitefile.connect(self.path, read_only=read_only, waits=read_only)
            if read_only:
                sqlitefile.require_version(connection, self.path, len(migrations))
                return connection
            if self.path.stat().st_size <= CHECKED_AT_START_BYTES:
                sqlitefile.check(connection, self.path, remedy=remedy(self.path))
            # Room that becomes free is overwritten, from the start: older copies of a row that grew
            # must be gone when its last one is erased.
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LARGEST_WAL_PAGES}")
            sqlitefile.migrate(connection, self.path, migrations)
            connection.execute(self._queries["create_head"], (log_id, GENESIS_DIGEST))
            begun = new_incarnation()
            connection.execute(self._queries["first_incarnation"], begun)
            connection.execute(self._queries["name_incarnation"], begun)  # if it is a backup
            for script in self.schema.tables(ENGINE):
                for statement in sqlitefile.statements(script):
                    connection.execute(statement)
            self._check_end(connection)
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            raise open_failure(self.path, error) from error
        except StoreError:
            if connection is not None:
                connection.close()
            raise
        return connection

    def _require_wal_belongs(self) -> None:
        """A WAL beside an empty or missing file: SQLite would throw away what it holds."""
        wal = self.path.with_name(self.path.name + "-wal")
        size = self.path.stat().st_size if self.path.exists() else 0
        if size == 0 and wal.exists() and wal.stat().st_size:
            raise StoreDamaged(
                f"{self.path} is empty, but the write-ahead log beside it is not. "
                f"{remedy(self.path)}"
            )

    def _check_end(self, connection: sqlite3.Connection) -> None:
        row = connection.execute(self._queries["head"]).fetchone()
        head = None if row is None else Head._make(row)
        after = 0 if head is None else head.committed_id - 1
        last = connection.execute(self._queries["entries_after"], (after, MAX_ID, 2)).fetchall()
        problem = end_problem(head, [Entry._make(row) for row in last])
        if problem:
            raise StoreDamaged(f"{self.path}: {problem}. {remedy(self.path)}")

    def _lane(self, query: str) -> _Lane:
        return self._short if query in self.schema.short_reads else self._long

    async def head(self) -> Head:
        """See `Store.head`."""
        rows = await self.rows("head", ())
        if not rows:
            raise StoreDamaged(f"{self.path}: the head row is missing. {remedy(self.path)}")
        return Head._make(rows[0])

    async def incarnations(self) -> list[Incarnation]:
        """See `Store.incarnations`."""
        return [Incarnation._make(row) for row in await self.rows("incarnations", ())]

    def wal_bytes(self) -> int:
        """See `Store.wal_bytes`."""
        return self.writer.wal_bytes

    async def clock_ms(self) -> int | None:
        """See `Store.clock_ms`; the only process that writes has the only clock."""
        return None

    async def entries(
        self, after: int, *, through: int | None = None, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """See `Store.entries`."""
        bound = MAX_ID if through is None else through
        return await self._page("entries_after", (after, bound, min(limit, PAGE_ENTRIES)))

    async def stream_entries(
        self, stream: str, after: int, *, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """See `Store.stream_entries`."""
        return await self._page("stream_entries_after", (stream, after, min(limit, PAGE_ENTRIES)))

    async def _page(self, query: str, key: Key) -> list[Entry]:
        text = self._queries[query]

        def read(connection: sqlite3.Connection) -> list[Entry]:
            entries: list[Entry] = []
            size = 0
            with closing(connection.execute(text, key)) as found:
                for row in found:
                    entry = Entry._make(row)
                    entries.append(entry)
                    size += len(entry.body or b"") + len(entry.data or b"")
                    if size > PAGE_BYTES:
                        break
            return entries

        return await self._lane(query).read(read)

    async def dedupe_row(self, scope: str, key: str) -> DedupeRow | None:
        """See `Store.dedupe_row`."""
        rows = await self.rows("dedupe_row", (scope, key))
        return DedupeRow._make(rows[0]) if rows else None

    async def dedupe_count(self) -> int:
        """See `Store.dedupe_count`."""
        count: int = (await self.rows("dedupe_count", ()))[0][0]
        return count

    async def rows(self, query: str, key: Key) -> tuple[Row, ...]:
        """See `Store.rows`."""
        text = self._queries[query]

        def read(connection: sqlite3.Connection) -> tuple[Row, ...]:
            found: list[Any] = connection.execute(text, key).fetchall()
            return tuple(found)

        return await self._lane(query).read(read)

    async def rows_of(self, query: str, keys: Sequence[Key]) -> list[tuple[Row, ...]]:
        """See `Store.rows_of`; in one visit to a reading thread."""
        text = self._queries[query]

        def read(connection: sqlite3.Connection) -> list[tuple[Row, ...]]:
            return [tuple(connection.execute(text, key).fetchall()) for key in keys]

        return await self._lane(query).read(read)

    async def rows_within(
        self, query: str, positions: Sequence[int], *, most_bytes: int
    ) -> list[Row]:
        """See `Store.rows_within`; row after row, so the first that is too much is the last."""
        text, named = self._queries[query], json.dumps(positions)

        def read(connection: sqlite3.Connection) -> list[Row]:
            found: list[Row] = []
            room = most_bytes
            for row in connection.execute(text, (named,)):
                room -= len(row[-1])
                if room < 0 and found:
                    break
                found.append(row)
            return found

        return await self._long.read(read)

    async def lowest(
        self, query: str, names: Sequence[str], *, after: int, through: int, limit: int
    ) -> list[int]:
        """See `Store.lowest`; the query takes one name, and ever less of it is looked at."""
        text = self._queries[query]

        def read(connection: sqlite3.Connection) -> list[int]:
            found: set[int] = set()
            bound = through
            for name in names:
                found.update(
                    row[0] for row in connection.execute(text, (name, after, bound, limit))
                )
                if len(found) >= 2 * limit:
                    found = set(sorted(found)[:limit])
                    bound = max(found)
            return sorted(found)[:limit]

        return await self._long.read(read)

    async def sealed_page(self, table: SealedTable, after: Key | None) -> list[Row]:
        """See `Store.sealed_page`."""
        text = table.page("", "?", is_first=after is None)

        def read(connection: sqlite3.Connection) -> list[Row]:
            return connection.execute(text, (*(after or ()), table.rows_per_page)).fetchall()

        return await self._long.read(read)

    async def stats(self) -> list[SurfaceStats]:
        """See `Store.stats`."""
        return [SurfaceStats._make(row) for row in await self.rows("stats", ())]

    def watch_head(self, moved: Callable[[int], None]) -> None:
        """See `Store.watch_head`; the lock keeps every other writer out, so it never moves."""

    async def announce(self, messages: Sequence[tuple[str, bytes]]) -> list[int]:
        """See `Store.announce`; the lock keeps every other node out, so nobody listens."""
        return [0] * len(messages)

    async def announcements(self, after: int) -> list[Announcement]:
        """See `Store.announcements`."""
        del after
        return []

    async def last_announcement(self) -> int:
        """See `Store.last_announcement`."""
        return 0

    async def announcement_keeper(self) -> tuple[str, int]:
        """See `Store.announcement_keeper`."""
        return "", 0

    def watch_announcements(self, heard: Callable[[int], None]) -> None:
        """See `Store.watch_announcements`."""

    async def scrub(self) -> None:
        """See `Store.scrub`: freed room is overwritten, so only the WAL has older pages."""

        def cut() -> bool:
            # It must not wait for readers: nobody can write while it waits.
            with closing(sqlitefile.connect(self.path, waits=False)) as connection:
                try:
                    [(is_busy, _, _)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                except sqlite3.OperationalError as error:
                    is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                    if not is_busy:
                        raise
                return not is_busy

        for _ in range(SCRUB_TRIES):
            try:
                async with self.read_gate.paused():
                    is_cut = await asyncio.to_thread(cut)
                if is_cut:
                    return
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the write-ahead log could not be cut: {error}") from error
            await asyncio.sleep(SCRUB_PAUSE_SECONDS)
        raise StoreUnavailable(
            "the write-ahead log cannot be cut while another program reads the store"
        )

    async def close(self) -> None:
        """See `Store.close`."""
        self._short.close()
        self._long.close()
        self.writer.close()  # last: who closes last folds the WAL into the file, if it may write
        if self._lock is not None:
            self._lock.release()
