"""The scale-out engine: several server processes on one PostgreSQL."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import asyncpg

from tidelog.base.data.incarnation import Incarnation
from tidelog.base.data.nultext import escape
from tidelog.base.errors import ConfigError, SchemaTooNew, StoreDamaged, StoreUnavailable
from tidelog.base.sql.sqlitefile import too_new
from tidelog.store.engine import (
    ANNOUNCED_MS,
    GENESIS_DIGEST,
    MAX_ID,
    NO_URL,
    PAGE_BYTES,
    PAGE_ENTRIES,
    REMEDY,
    end_problem,
    new_incarnation,
)
from tidelog.store.postgresql_listener import ANNOUNCEMENT, HEAD, LOST, Listener
from tidelog.store.postgresql_rows import from_record, to_columns
from tidelog.store.postgresql_writer import CLOSE_SECONDS, PostgresqlWriter
from tidelog.store.read_gate import ReadGate
from tidelog.store.rows import (
    Announcement,
    DedupeRow,
    Entry,
    Head,
    Key,
    Row,
    SealedTable,
    SurfaceStats,
)
from tidelog.store.schema import Schema

ENGINE = "postgresql"

HALF_OPEN_MS = 10_000
"""The server ends a transaction of ours that stands idle this long: a node that lost its network
while it held the head lock must not stop the others for longer."""

MIGRATION_SECONDS = 86_400.0
"""How long one step of a migration may take."""

SWEEP_SECONDS = 10.0
"""Pause between two looks for announcements that everybody has heard or missed."""


async def migrate(
    connection: asyncpg.Connection, queries: Mapping[str, str], known: Sequence[str]
) -> None:
    """Bring the schema up to `len(known)`; a new one is made.

    One transaction per migration, or the caller's; a lock, because several nodes may start at once.
    """
    async with connection.transaction():
        await connection.execute(queries["lock_schema"])
        await connection.execute(queries["create_schema"])
    while True:
        async with connection.transaction():
            await connection.execute(queries["lock_schema"])
            version = await _version(connection, queries)
            if version > len(known):
                raise SchemaTooNew(too_new("the PostgreSQL store", version, len(known)))
            if version == len(known):
                return
            # A step takes as long as there are rows to change; no request waits for it.
            await connection.execute("SET LOCAL statement_timeout = 0")
            await connection.execute(known[version], timeout=MIGRATION_SECONDS)
            await connection.execute(queries["set_schema_version"], version + 1)


async def _left_as_it_was(connection: asyncpg.Connection) -> None:
    """What a pool does with a connection that comes back: nothing.

    A read sets nothing, listens to nothing and holds no lock, so there is nothing to undo, and to
    have the server do so would be another round trip for each. A transaction that was left open is
    rolled back by the pool itself.
    """
    del connection


async def _version(connection: asyncpg.Connection, queries: Mapping[str, str]) -> int:
    if await connection.fetchval(queries["has_schema"]) is None:
        return 0
    version: int = await connection.fetchval(queries["schema_version"])
    return version


class PostgresqlStore:
    """A PostgreSQL database as a `Store`."""

    is_shared = True

    def __init__(
        self,
        schema: Schema,
        url: str,
        *,
        node: str,
        connect_timeout_ms: int,
        statement_timeout_ms: int,
    ) -> None:
        self._url = url
        self.schema = schema
        self.read_gate = ReadGate()
        self._queries = schema.queries(ENGINE)
        self._connect_seconds = connect_timeout_ms / 1000
        self._statement_timeout_ms = statement_timeout_ms
        self._short: asyncpg.Pool | None = None
        """For `Schema.short_reads`; half of the connections, at least one."""
        self._long: asyncpg.Pool | None = None
        self._listener = Listener(self._connect)
        self._node = node
        self._sweep_at = 0.0
        self.writer = PostgresqlWriter(self._connect, self._queries, schema, node)

    @classmethod
    async def open(
        cls,
        schema: Schema,
        url: str,
        *,
        log_id: str,
        node: str,
        read_only: bool = False,
        require_fsync: bool = True,
        connect_timeout_ms: int = 5000,
        statement_timeout_ms: int = 30_000,
        pool_size: int = 4,
    ) -> "PostgresqlStore":
        """Connect, check and migrate; an empty database becomes the log `log_id`."""
        store = cls(
            schema,
            url,
            node=node,
            connect_timeout_ms=connect_timeout_ms,
            statement_timeout_ms=statement_timeout_ms,
        )
        try:
            connection = await store._connect()
            try:
                await store._prepare(
                    connection, log_id, read_only=read_only, require_fsync=require_fsync
                )
                store._short = await store._lane(max(1, pool_size // 2))
                store._long = await store._lane(max(1, pool_size - pool_size // 2))
            except BaseException:
                await connection.close()
                raise
            if read_only:
                await connection.close()
            else:
                store.writer.use(connection)
        except (ValueError, asyncpg.exceptions.ClientConfigurationError):
            # The driver quotes parts of the URL, and one of them may be the password.
            raise ConfigError(NO_URL) from None
        except LOST as error:
            raise StoreUnavailable(
                f"PostgreSQL does not answer as tidelog needs it: {type(error).__name__}: {error}. "
                "Check the `store` setting and that the role may create a schema."
            ) from error
        return store

    async def _lane(self, connections: int) -> asyncpg.Pool:
        return await asyncpg.create_pool(
            self._url,
            min_size=0,  # or the driver logs a stack whenever the server is away
            max_size=connections,
            timeout=self._connect_seconds,
            command_timeout=self._statement_timeout_ms / 1000,
            server_settings={"application_name": "tidelog"},
            reset=_left_as_it_was,
        )

    async def _connect(self) -> asyncpg.Connection:
        connection: asyncpg.Connection = await asyncpg.connect(
            self._url,
            timeout=self._connect_seconds,
            command_timeout=self._statement_timeout_ms / 1000,
            max_cacheable_statement_size=0,  # all: what a batch writes is one long statement
            server_settings={
                "application_name": "tidelog",
                # Who waited for another writer looks at what that one wrote, and is not refused.
                "default_transaction_isolation": "read committed",
                "jit": "off",  # it would compile that statement again for every batch
                "idle_in_transaction_session_timeout": str(HALF_OPEN_MS),
                "statement_timeout": str(self._statement_timeout_ms),
            },
        )
        return connection

    async def _prepare(
        self, connection: asyncpg.Connection, log_id: str, *, read_only: bool, require_fsync: bool
    ) -> None:
        known = self.schema.migrations(ENGINE)
        if read_only:
            version = await _version(connection, self._queries)
            if version > len(known):
                raise SchemaTooNew(too_new("the PostgreSQL store", version, len(known)))
            if version < len(known):
                raise StoreUnavailable(
                    f"the PostgreSQL store has schema version {version}, this tidelog reads "
                    f"{len(known)}. Start the server once; it creates or migrates the schema."
                )
            return
        if require_fsync:
            await self._require_durability(connection)
        await self._migrate(connection, known)
        await connection.execute(self._queries["create_head"], log_id, GENESIS_DIGEST)
        await connection.execute(self._queries["first_incarnation"], *new_incarnation())
        await connection.execute(self._queries["forget_writers"])
        for script in self.schema.tables(ENGINE):
            async with connection.transaction():
                await connection.execute(self._queries["lock_schema"])
                await connection.execute(script)
        await self._check_end(connection)

    async def _check_end(self, connection: asyncpg.Connection) -> None:
        """In one snapshot: other nodes may be writing."""
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            found = await connection.fetchrow(self._queries["head"])
            head = None if found is None else Head._make(found)
            after = 0 if head is None else head.committed_id - 1
            last = await connection.fetch(self._queries["entries_after"], after, MAX_ID, 2, MAX_ID)
        problem = end_problem(head, [Entry._make(from_record(record)) for record in last])
        if problem:
            raise StoreDamaged(f"the PostgreSQL store: {problem}. {REMEDY}")

    async def _require_durability(self, connection: asyncpg.Connection) -> None:
        for name, setting in await connection.fetch(self._queries["durability"]):
            if setting == "off":
                raise ConfigError(
                    f"PostgreSQL runs with {name} = off: it would acknowledge writes that a power "
                    f"cut undoes. Set {name} = on, or use --dev for data you can lose."
                )

    async def _migrate(self, connection: asyncpg.Connection, known: Sequence[str]) -> None:
        await migrate(connection, self._queries, known)

    async def head(self) -> Head:
        """See `Store.head`."""
        rows = await self._fetch("head")
        if not rows:
            raise StoreDamaged(f"the PostgreSQL store: the head row is missing. {REMEDY}")
        return Head._make(rows[0])

    async def incarnations(self) -> list[Incarnation]:
        """See `Store.incarnations`."""
        return [Incarnation._make(row) for row in await self.rows("incarnations", ())]

    def wal_bytes(self) -> int:
        """See `Store.wal_bytes`."""
        return 0

    async def clock_ms(self) -> int | None:
        """See `Store.clock_ms`."""
        now: int = (await self._fetch("clock"))[0][0]
        return now

    async def entries(
        self, after: int, *, through: int | None = None, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """See `Store.entries`."""
        bound = MAX_ID if through is None else through
        rows = await self._fetch(
            "entries_after", after, bound, min(limit, PAGE_ENTRIES), PAGE_BYTES
        )
        return [Entry._make(row) for row in rows]

    async def stream_entries(
        self, stream: str, after: int, *, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """See `Store.stream_entries`."""
        rows = await self._fetch(
            "stream_entries_after", escape(stream), after, min(limit, PAGE_ENTRIES), PAGE_BYTES
        )
        return [Entry._make(row) for row in rows]

    async def dedupe_row(self, scope: str, key: str) -> DedupeRow | None:
        """See `Store.dedupe_row`."""
        rows = await self._fetch("dedupe_rows", [escape(scope)], [escape(key)])
        return DedupeRow._make(rows[0]) if rows else None

    async def dedupe_count(self) -> int:
        """See `Store.dedupe_count`."""
        count: int = (await self._fetch("dedupe_count"))[0][0]
        return count

    async def rows(self, query: str, key: Key) -> tuple[Row, ...]:
        """See `Store.rows`; a query that takes several keys at once is asked for this one."""
        rows = await self._fetch(query, *to_columns([key], len(key)))
        return tuple(row[1:] for row in rows)

    async def rows_of(self, query: str, keys: Sequence[Key]) -> list[tuple[Row, ...]]:
        """See `Store.rows_of`."""
        found: list[tuple[Row, ...]] = [()] * len(keys)
        if keys:
            for number, *row in await self._fetch(query, *to_columns(keys, len(keys[0]))):
                found[number - 1] += (tuple(row),)
        return found

    async def rows_within(
        self, query: str, positions: Sequence[int], *, most_bytes: int
    ) -> list[Row]:
        """See `Store.rows_within`; the query itself takes all positions and the bytes."""
        return await self._fetch(query, list(positions), most_bytes) if positions else []

    async def lowest(
        self, query: str, names: Sequence[str], *, after: int, through: int, limit: int
    ) -> list[int]:
        """See `Store.lowest`; the query itself takes all names and the limit."""
        [column] = to_columns([(name,) for name in names], 1)
        rows = await self._fetch(query, column, after, through, limit)
        return [position for (position,) in rows]

    async def sealed_page(self, table: SealedTable, after: Key | None) -> list[Row]:
        """See `Store.sealed_page`."""
        text = table.page("tidelog.", "$", is_first=after is None)
        key = [escape(value) if isinstance(value, str) else value for value in after or ()]
        return await self._read(self._long, text, *key, table.rows_per_page)

    async def stats(self) -> list[SurfaceStats]:
        """See `Store.stats`."""
        return [SurfaceStats._make(row) for row in await self._fetch("stats")]

    async def _fetch(self, query: str, *values: Any) -> list[Row]:
        lane = self._short if query in self.schema.short_reads else self._long
        return await self._read(lane, self._queries[query], *values)

    async def _read(self, lane: asyncpg.Pool | None, text: str, *values: Any) -> list[Row]:
        assert lane is not None  # noqa: S101 - `open` made it
        try:
            found = await lane.fetch(text, *values)
        except LOST as error:
            raise StoreUnavailable(
                f"PostgreSQL could not be read: {type(error).__name__}: {error}"
            ) from error
        return [from_record(record) for record in found]

    def watch_head(self, moved: Callable[[int], None]) -> None:
        """See `Store.watch_head`."""
        self._listener.watch(HEAD, moved)

    async def announce(self, messages: Sequence[tuple[str, bytes]]) -> list[int]:
        """See `Store.announce`."""
        rows = await self._fetch("announce", self._node, *to_columns(messages, 2))
        now = asyncio.get_running_loop().time()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            await self._fetch("sweep_announcements", ANNOUNCED_MS)
        return [announcement_id for (announcement_id,) in rows]

    async def announcements(self, after: int) -> list[Announcement]:
        """See `Store.announcements`."""
        rows = await self._fetch("announcements_after", after, self._node, PAGE_ENTRIES)
        return [Announcement._make(row) for row in rows]

    async def last_announcement(self) -> int:
        """See `Store.last_announcement`."""
        last: int = (await self._fetch("last_announcement"))[0][0]
        return last

    async def announcement_keeper(self) -> tuple[str, int]:
        """See `Store.announcement_keeper`."""
        [(keeper, last)] = await self._fetch("announcement_keeper")
        return keeper, last

    def watch_announcements(self, heard: Callable[[int], None]) -> None:
        """See `Store.watch_announcements`."""
        self._listener.watch(ANNOUNCEMENT, heard)

    async def scrub(self) -> None:
        """See `Store.scrub`; what was removed is gone after the next VACUUM, which is not ours.

        VACUUM does not look at what the planner's statistics have sampled: that is replaced by some
        of what is there now.
        """
        assert self._long is not None  # noqa: S101 - `open` made it
        try:
            async with self._long.acquire() as connection, connection.transaction():
                # Of a table without rows nothing is sampled, and the old samples would stay.
                for step in ("add_unused_key", "sample_content", "remove_unused_key"):
                    await connection.execute(self._queries[step])
        except LOST as error:
            raise StoreUnavailable(f"PostgreSQL could not be analysed: {error}") from error

    async def close(self) -> None:
        """See `Store.close`."""
        await self._listener.close()
        await self.writer.close()
        for lane in (self._short, self._long):
            if lane is None:
                continue
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await lane.close()
            except LOST:
                lane.terminate()
