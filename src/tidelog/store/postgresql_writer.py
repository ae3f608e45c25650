"""How batches are written to PostgreSQL, in as few round trips as that takes.

Each batch of any node writes the head row. So while the head is the one that this node wrote last,
nobody else has written, and what it remembers is true: a batch is decided by that, and written by
one statement, which writes nothing if the head is another one meanwhile. That statement is a
transaction of its own, and the only round trip. A batch that names keys or rows reads them before,
with the head, in one more.

A batch that was overtaken is decided again under the lock of the head row, and so are the next
ones, until nobody else seems to write: then each takes the lock, reads, writes and commits.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from tidelog.base.errors import (
    DataError,
    OutcomeUnknown,
    Overtaken,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.store.engine import MAX_ID, PAGE_BYTES, PAGE_ENTRIES, REMEDY
from tidelog.store.grouping import Group, group
from tidelog.store.one_statement import reading, writing
from tidelog.store.postgresql_listener import LOST
from tidelog.store.postgresql_rows import from_record, to_columns, to_entry_columns
from tidelog.store.rows import DedupeRow, Effects, Entry, Head, Key, Loaded, Names, Row
from tidelog.store.schema import Schema

CLOSE_SECONDS = 3.0
"""How long a farewell may take; a frozen server must not keep the process from ending."""

CROWDED_BATCHES = 8
"""So many batches in which nobody else wrote must follow each other until the lock is not taken
beforehand any more."""

REMEMBERED_SERIALS = 100_000
"""Streams whose last serial is remembered; beyond it all are forgotten, and read again."""

_BAD_ROW = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.DataError,
    asyncpg.exceptions.ProgramLimitExceededError,
    LookupError,
    OverflowError,
    TypeError,
    UnicodeError,
)
"""Whatever the server or the driver says of a value, and the name of a query that there is not. The
driver's own `DataError` is a subclass of its `InterfaceError`, so this is asked first."""


class _Known(NamedTuple):
    """A head, and the transaction that wrote it: nothing has changed while that is the last."""

    head: Head
    written_by: int


class _Statement(NamedTuple):
    """With its values, and the points that are passed with it."""

    text: str
    values: Sequence[Any]
    passes: tuple[FaultPoint, ...] = ()


class PostgresqlWriter:
    """The one writing connection of this process; reconnects when it is lost."""

    def __init__(
        self, connect: Callable[[], Any], queries: Mapping[str, str], schema: Schema, node: str
    ) -> None:
        self._connect = connect
        self._queries = queries
        self._touches = schema.touches
        self._fault_points = {
            "write_entries": FaultPoint.ENTRIES_WRITTEN,
            "write_keys": FaultPoint.KEYS_WRITTEN,
            **schema.fault_points,
        }
        self._node = node
        self._connection: asyncpg.Connection | None = None
        self._known: _Known | None = None
        """The head after the last batch; None if that is not certain."""
        self._serials: dict[str, int] = {}
        """Last serials of streams at that head."""
        self._base: _Known | None = None
        """What the batch under way is decided by, and what was loaded for it."""
        self._loaded: Loaded | None = None
        self._is_open = False
        """Whether the batch under way has a transaction, and the lock."""
        self._is_remembered = False
        """Whether it is decided by memory alone, and the store was not asked."""
        self._crowded = 0

    def use(self, connection: asyncpg.Connection) -> None:
        """Write by a connection that is there already, until it is lost."""
        self._connection = connection

    async def begin(self, names: Names, seen: int) -> Loaded:
        """See `Writer.begin`; without the lock, unless somebody else writes."""
        async with self._as_store_errors():
            connection = await self._connected()
            if self._known is None or self._known.head.committed_id != seen:
                self._forget()
            self._loaded = None if self._crowded else self._remembered(names)
            self._is_remembered = self._loaded is not None
            if self._loaded is None:
                if self._crowded:
                    self._is_open = True
                    self._forget()
                    await connection.execute(self._queries["lock_head"])
                self._loaded = await self._look(connection, names, seen)
                if self._crowded and self._loaded.others:
                    self._crowded = CROWDED_BATCHES
                elif self._crowded:
                    self._crowded -= 1
            return self._loaded

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._forget()
            self._connection = await self._connect()
        return self._connection

    def _forget(self) -> None:
        self._known = None
        self._serials.clear()

    def _remembered(self, names: Names) -> Loaded | None:
        """What is named, if all of it is in memory."""
        known, serials = self._known, self._serials
        if known is None or names.dedupe or names.rows:
            return None
        if not all(stream in serials for stream in names.streams):
            return None
        self._base = known
        named = {stream: serials[stream] for stream in names.streams}
        return Loaded(head=known.head, others=[], dedupe={}, serials=named, rows={})

    async def _look(self, connection: asyncpg.Connection, names: Names, seen: int) -> Loaded:
        """Read what is named and not in memory, the head, and others' entries, as of one moment."""
        known = self._known
        parts: list[tuple[str, Sequence[Any]]] = []
        if known is None:
            parts.append(("entries_after", (seen, MAX_ID, PAGE_ENTRIES, PAGE_BYTES)))
        if names.dedupe:
            parts.append(("dedupe_rows", to_columns(names.dedupe, 2)))
        streams = [stream for stream in names.streams if stream not in self._serials]
        if streams:
            parts.append(("stream_serials", to_columns([(stream,) for stream in streams], 1)))
        # Named queries take their keys as arrays and return the key's number first.
        rows: dict[tuple[str, Key], tuple[Row, ...]] = dict.fromkeys(names.rows, ())
        ordered = sorted(rows, key=lambda named: named[0])  # each once, however often named
        for query, run in itertools.groupby(ordered, key=lambda named: named[0]):
            keys = [key for _, key in run]
            parts.append((query, to_columns(keys, len(keys[0]))))
        queries = self._queries
        text = reading(queries["look"], tuple((queries[query], len(each)) for query, each in parts))
        found_at_once = await connection.fetch(text, *itertools.chain(*(each for _, each in parts)))
        if not found_at_once:
            raise StoreDamaged(f"the PostgreSQL store: the head row is missing. {REMEDY}")
        [record] = found_at_once
        self._base = _known(record)
        if known is not None and self._base != known:
            self._forget()
            return await self._look(connection, names, seen)
        found = {
            query: list(map(from_record, part or ()))
            for (query, _), part in zip(parts, record[7:], strict=True)
        }
        others = [Entry._make(row) for row in found.pop("entries_after", ())]
        dedupe: dict[tuple[str, str], DedupeRow | None] = dict.fromkeys(names.dedupe)
        for row in map(DedupeRow._make, found.pop("dedupe_rows", ())):
            dedupe[row.scope, row.key] = row
        self._serials.update((name, last or 0) for name, last in found.pop("stream_serials", ()))
        for query, numbered in found.items():
            keys = [key for name, key in ordered if name == query]
            for number, *each in numbered:
                rows[query, keys[number - 1]] += (tuple(each),)
        self._known = self._base
        return Loaded(
            head=self._base.head,
            others=await self._all_others(connection, others, seen),
            dedupe=dedupe,
            serials={stream: self._serials[stream] for stream in names.streams},
            rows=rows,
            clock_ms=record[1],
        )

    async def _all_others(
        self, connection: asyncpg.Connection, others: list[Entry], seen: int
    ) -> list[Entry]:
        """With those that did not fit into the first page."""
        assert self._base is not None  # noqa: S101 - just looked
        head = self._base.head.committed_id
        while (seen := others[-1].committed_id if others else seen) < head:
            page = await connection.fetch(
                self._queries["entries_after"], seen, head, PAGE_ENTRIES, PAGE_BYTES
            )
            if not page:
                raise StoreDamaged(f"the log ends at {seen}, its head row says {head}. {REMEDY}")
            others += [Entry._make(from_record(record)) for record in page]
        return others

    async def confirm(self) -> None:
        """See `Writer.confirm`.

        By the connection that the head was read by: a replica that took over may lack it, and give
        its transaction's number again.
        """
        if self._is_remembered:
            connection = self._connection
            assert connection is not None  # noqa: S101 - `begin` connected
            async with self._as_store_errors():
                record = await connection.fetchrow(self._queries["look"])
                if record is None or _known(record) != self._base:
                    raise self._overtaken()
        await self.rollback()

    def _overtaken(self) -> Overtaken:
        self._forget()
        self._crowded = CROWDED_BATCHES
        return Overtaken("another node wrote meanwhile")

    async def commit(self, batch_id: bytes, effects: Effects) -> int:
        """See `Writer.commit`."""
        connection, base, loaded = self._connection, self._base, self._loaded
        assert connection is not None  # noqa: S101 - `begin` connected
        assert base is not None  # noqa: S101 - and found a head
        assert loaded is not None  # noqa: S101 - and loaded
        self._known = None
        async with self._as_store_errors():
            first, *later = self._statements(batch_id, effects, base)
            if later and not self._is_open:
                self._is_open = True
                await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            if self._is_open:
                written = await self._write(connection, first, later)
            else:
                for point in (*first.passes, FaultPoint.WRITTEN):
                    reach(point)
                written = await self._sent(connection.fetch(first.text, *first.values))
            if not written:
                raise self._overtaken()
            if self._is_open:
                await self._sent(connection.execute("COMMIT"))
                self._is_open = False
        reach(FaultPoint.COMMITTED)
        [(written_by, clock_ms, _)] = written
        if not later:  # those may have changed anything
            self._remember(effects, loaded, written_by)
        return int(clock_ms)

    async def _write(
        self, connection: asyncpg.Connection, first: _Statement, later: Sequence[_Statement]
    ) -> list[asyncpg.Record]:
        """One statement after the other, in a transaction."""
        written = await connection.fetch(first.text, *first.values)
        if not written:
            return []
        for point in first.passes:
            reach(point)
        for statement in later:
            await connection.execute(statement.text, *statement.values)
            for point in statement.passes:
                reach(point)
        reach(FaultPoint.WRITTEN)
        return written

    async def _sent(self, commit: Coroutine[Any, Any, Any]) -> Any:
        """What the server says to a statement that commits.

        Raises:
            OutcomeUnknown: nothing.
        """
        try:
            # A task, so that it is on its way when the fault point is passed.
            answer = asyncio.ensure_future(commit)
            await asyncio.sleep(0)
            reach(FaultPoint.COMMITTING)
            return await answer
        except _BAD_ROW:
            raise
        except LOST as error:
            if isinstance(error, asyncpg.PostgresError) and error.severity_en == "ERROR":
                raise  # the transaction failed, the connection is sound
            self._drop()
            raise OutcomeUnknown("the connection was lost while COMMIT was in flight") from error

    def _statements(self, batch_id: bytes, effects: Effects, base: _Known) -> list[_Statement]:
        """The batch in one statement, followed by those that must see what it has written."""
        groups, together = group(effects.changes, self._touches)
        parts: list[Group] = []
        if effects.entries:
            parts.append(Group("write_entries", effects.entries))
        if effects.dedupe:
            parts.append(Group("write_keys", effects.dedupe))
        if effects.forgotten:  # a key may go and come again
            parts, later = [Group("forget_keys", effects.forgotten)], [*parts, *groups]
        else:
            parts, later = [*parts, *groups[:together]], groups[together:]
        queries = self._queries
        head = (effects.committed_id, effects.digest, effects.committed_at)
        values: list[Any] = [*head, base.written_by, *base.head[:2], self._node, batch_id]
        given = len(values)
        for part in parts:
            values += _columns(part)
        text = writing(
            *(queries["take_head"], queries["note_writer"], queries["tell_head"], given),
            tuple((queries[part.statement], len(part.rows[0])) for part in parts),
        )
        statements = [_Statement(text, values, self._points(parts))]
        for each in later:
            text = queries[each.statement]
            statements.append(_Statement(text, _columns(each), self._points([each])))
        if effects.entries:
            last = statements[-1]
            statements[-1] = last._replace(passes=(*last.passes, FaultPoint.HISTORY_WRITTEN))
        return statements

    def _points(self, parts: Sequence[Group]) -> tuple[FaultPoint, ...]:
        points = self._fault_points
        return tuple(points[part.statement] for part in parts if part.statement in points)

    def _remember(self, effects: Effects, loaded: Loaded, written_by: int) -> None:
        """That this batch was the last."""
        head = loaded.head._replace(
            committed_id=effects.committed_id,
            digest=effects.digest,
            committed_at=effects.committed_at,
        )
        self._known = _Known(head, written_by)
        self._serials.update(loaded.serials)
        if len(self._serials) > REMEMBERED_SERIALS:
            self._serials.clear()

    async def rollback(self) -> None:
        """See `Writer.rollback`; a connection that cannot even do that is dropped."""
        if not self._is_open:
            return
        self._is_open = False
        if self._connection is None or self._connection.is_closed():
            return
        try:
            await self._connection.execute("ROLLBACK")
        except LOST:
            self._drop()

    async def committed(self, batch_id: bytes) -> bool:
        """See `Writer.committed`.

        Asked under the head lock. The statement that was lost has it until it has ended one way or
        the other; if it is still on its way, it must find another head than it expects. The
        writer's own row is compared, not the head: another node may have committed since.
        """
        async with self._as_store_errors():
            connection = await self._connected()
            self._is_open = True
            await connection.execute(self._queries["lock_head"])
            last = await connection.fetchval(self._queries["batch_of_writer"], self._node)
            is_committed = bool(last == batch_id)
            if not is_committed:
                await connection.execute(self._queries["touch_head"])
            await connection.execute("COMMIT")
            self._is_open = False
            return is_committed

    def _drop(self) -> None:
        self._is_open = False
        self._forget()
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Let go of the connection; without ceremony if the server does not respond."""
        if self._connection is not None:
            with contextlib.suppress(*LOST):
                await self._connection.close(timeout=CLOSE_SECONDS)

    @asynccontextmanager
    async def _as_store_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except StoreError:
            await self.rollback()
            raise
        except (*LOST, *_BAD_ROW) as error:
            await self.rollback()
            raise _classify(error) from error


def _known(looked: asyncpg.Record) -> _Known:
    """Of a row that begins with what `look` returns."""
    return _Known(Head._make(looked[2:7]), looked[0])


def _columns(part: Group) -> list[Sequence[Any]]:
    if part.statement == "write_entries":
        return to_entry_columns(part.rows)
    return to_columns(part.rows, len(part.rows[0]))


def _classify(error: BaseException) -> StoreError:
    if isinstance(error, _BAD_ROW):
        return DataError(f"the store refused a row: {error}")
    return StoreUnavailable(f"PostgreSQL is not available: {type(error).__name__}: {error}")
