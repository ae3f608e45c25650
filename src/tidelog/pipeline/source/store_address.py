"""Where the store is, and reading it from outside: briefly, read-only, on either engine.

Every read is a transaction of its own and as short as a page of rows takes, so no reader ever holds
back a checkpoint of the server's SQLite file or a vacuum of its PostgreSQL. Nothing is created: a
store that is not there is an error.

Do not read a SQLite store from the process that writes it: the driver brings its own SQLite, and
two of them in one process take each other's file locks away. The pipeline is a process of its own.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.base.data.incarnation import Incarnation, Incarnations
from tidelog.base.data.nultext import MARK, escape, unescape
from tidelog.base.errors import ConfigError, StoreUnavailable, TidelogError
from tidelog.base.settings.kinds import SecretUrl, masked
from tidelog.base.sql.queries import load_queries
from tidelog.pipeline.source.kept_connections import KeptConnections

PAGE_ROWS = 4000
"""Entries of one read: some ten milliseconds, too short to hold a checkpoint back, and enough that
the cost of a query does not show."""

WIDEST_PAGE = 64_000
"""Positions that one read of rows beside the log looks at, where few have any: as many entries as
SQLite passes over in some ten milliseconds."""

PAGE_BYTES = 16 * 1024 * 1024
"""Content of one read, so that memory stays bounded however large entries are; one entry is always
read."""

CONNECT_SECONDS = 5
"""A PostgreSQL that does not answer for so long, or whose machine takes nothing, is unreachable."""

STATEMENT_MS = 60_000
"""A statement that takes longer is cancelled by PostgreSQL: a relation of millions of rows takes
seconds."""

PAGE_MS = 10_000
"""No read of a page may take longer: a store in production is never held for more than that. A page
takes some ten milliseconds."""

NAMED_ROWS = 250
"""Rows that are looked up at once."""

GENESIS_DIGEST = bytes(16)
"""The digest before the first entry."""

_KEPT = KeptConnections()


class LogReplaced(TidelogError):  # noqa: N818 - the failure is the noun
    """The store holds another log than the one that was read before."""


class Position(NamedTuple):
    """A position in one particular log."""

    log_id: str
    """Which log: an id minted with it."""
    committed_id: int
    """Last entry before it; 0 at the beginning."""
    digest: bytes
    """Digest of that entry. It vouches for every entry before it."""
    incarnation: str = ""
    """Which continuation of the log it was read in; empty if nobody noted it."""


class StoreHead(NamedTuple):
    """Where the log ends."""

    log_id: str
    committed_id: int
    digest: bytes
    committed_at: int
    """When its last entry was committed, milliseconds since 1970."""
    incarnation: str
    """Which continuation of the log it is now."""

    @property
    def position(self) -> Position:
        """The end as a position."""
        return Position(self.log_id, self.committed_id, self.digest, self.incarnation)


class AlterationNumbers(NamedTuple):
    """Which alterations beside the log a store can tell."""

    first: int
    """The first one that is kept; 0 if there was none."""
    last: int
    """The last one; 0 if there was none."""

    def has_after(self, number: int) -> bool:
        """Whether all alterations after a number are kept, so that a table can go on from there."""
        return number <= self.last and (number >= self.first - 1 or not self.last)


class Reading(Protocol):
    """An open connection."""

    def table(self, query: str, values: tuple[Any, ...] = ()) -> pa.Table:
        """Run a named query that returns at most `PAGE_ROWS` rows.

        A column in which no row has a value has the type null.
        """


class StoreAddress:
    """A store named as the server names it: a path of an SQLite file or a `postgresql://` URL."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __repr__(self) -> str:
        return f"StoreAddress({self.shown!r})"

    @property
    def shown(self) -> str:
        """The location without its password."""
        shown: str = masked(SecretUrl, self.location)
        return shown

    @property
    def engine(self) -> str:
        """`sqlite` or `postgresql`."""
        is_url = self.location.startswith(("postgresql://", "postgres://"))
        return "postgresql" if is_url else "sqlite"

    def head(self) -> StoreHead:
        """Where the log ends now: every entry up to there is committed."""
        with self._reading(PAGE_MS) as reading:
            return _head(reading)

    def now(self) -> tuple[StoreHead, AlterationNumbers]:
        """Where the log ends and which alterations beside it there were, at one moment."""
        with self._reading(PAGE_MS) as reading, reading.at_one_moment():
            [numbers] = reading.table("alteration_numbers").to_pylist()
            return _head(reading), AlterationNumbers(**numbers)

    def entry_digest_at(self, committed_id: int) -> bytes | None:
        """The digest of one entry, or None if there is no such entry."""
        with self._reading(PAGE_MS) as reading:
            return _digest_at(reading, committed_id)

    def require(self, *known: Position) -> StoreHead:
        """The head of the log, if it still is the log in which these positions are.

        Raises:
            LogReplaced: it is not.
        """
        with self._reading(PAGE_MS) as reading, reading.at_one_moment():
            head = _head(reading)
            for position in known:
                if why := _other_history(reading, head, position):
                    raise self._replaced(why, can_go_back=position.log_id == head.log_id)
                if _digest_at(reading, position.committed_id) != position.digest:
                    why = f"entry {position.committed_id} is another one than was read"
                    raise self._replaced(why, can_go_back=True)
        return head

    def other_history(self, known: Position) -> LogReplaced | None:
        """Why a position is not in this log, told without looking at entries; None if it may be."""
        with self._reading(PAGE_MS) as reading, reading.at_one_moment():
            head = _head(reading)
            why = _other_history(reading, head, known)
        return self._replaced(why, can_go_back=known.log_id == head.log_id) if why else None

    def relations(self, queries: Mapping[str, str]) -> tuple[StoreHead, dict[str, pa.Table]]:
        """Relations that change after the commit, all as of one moment, and the head then.

        Args:
            queries: relation to the name of its query in `sql/`.
        """
        with self._reading() as reading, reading.at_one_moment():
            head = _head(reading)
            return head, {name: reading.whole(query) for name, query in queries.items()}

    def alterations(self, after: int, through: int) -> Iterator[pa.Table]:
        """Pages of the alterations beside the log with `after < number <= through`, in order."""
        with self._reading(PAGE_MS) as reading:
            while after < through:
                page = reading.table("alterations", (after, through, PAGE_ROWS))
                if not page.num_rows:
                    return
                yield page
                after = page["number"][-1].as_py()

    def altered_relations(self, after: int, through: int) -> set[str]:
        """The relations that have an alteration with `after < number <= through`."""
        with self._reading() as reading:
            found = reading.table("altered_relations", (after, through))
        return set(found["relation"].to_pylist())

    def related(self, query: str, after: int, through: int, *values: int) -> Iterator[pa.Table]:
        """Pages of rows beside the log, for a range of positions or of numbers of alterations.

        A page has at most `PAGE_ROWS` rows, unless a single position or alteration has more.

        Args:
            query: a query that takes the range, and then `values`.
            after: the range begins after it.
            through: its end.
            values: what else the query takes.
        """
        with self._reading() as reading:
            width = PAGE_ROWS
            while after < through:
                upto = min(through, after + width)
                page = None
                with reading.at_one_moment():
                    count = reading.count(query, (after, upto, *values))
                    if count > PAGE_ROWS and upto > after + 1:
                        width = (upto - after) // 2
                        continue
                    if count:
                        page = reading.rows(query, (after, upto, *values), count)
                if page is not None:
                    yield page
                after = upto
                if count < PAGE_ROWS // 2:
                    width = min(2 * width, WIDEST_PAGE)

    def has_rows(self, relation: str) -> bool:
        """Whether a relation has any."""
        with self._reading() as reading:
            return bool(reading.table(f"{relation}_exists")["exists"][0].as_py())

    def keys_of_no_entry(self) -> Iterator[pa.Table]:
        """Pages of the keys that stand for no entry."""
        last = ("", "")
        with self._reading() as reading:
            while True:
                page = reading.table("dedupe_of_no_entry", (*last, PAGE_ROWS))
                if not page.num_rows:
                    return
                yield page
                last = (page["scope"][-1].as_py(), page["key"][-1].as_py())

    def entries(
        self,
        after: int,
        through: int,
        *,
        surface: str = "",
        stream: str = "",
        with_content: bool = True,
        query: str = "",
    ) -> Iterator[pa.Table]:
        """Pages of the entries with `after < committed_id <= through`, in order.

        Args:
            after: where to begin.
            through: the last entry.
            surface: only entries of this surface.
            stream: only entries of this stream.
            with_content: whether `body` and `data` are among the columns.
            query: one that returns more columns of the same entries.
        """
        with self._reading(PAGE_MS) as reading:
            if stream:
                pages = _pages_of_stream(reading, after, through, stream, with_content=with_content)
                for page in pages:
                    yield page.filter(pc.field("surface") == surface) if surface else page
            else:
                named = query or ("entries" if with_content else "entries_without_content")
                yield from _pages(
                    reading, named, after, through, surface, with_content=with_content
                )

    def pages(
        self,
        query: str,
        key: Sequence[str],
        after: tuple[Any, ...],
        *,
        of: tuple[Any, ...] = (),
        until: tuple[Any, ...] = (),
    ) -> Iterator[pa.Table]:
        """Pages of a relation in the order of its key, each as of a moment of its own.

        Args:
            query: Returns as many rows as its last parameter says.
            key: Columns of the key.
            after: The key to begin after: parameters of the query.
            of: Parameters before these.
            until: Parameters after these.
        """
        with self._reading(PAGE_MS) as reading:
            while True:
                page = reading.table(query, (*of, *after, *until, PAGE_ROWS))
                if page.num_rows:
                    after = tuple(page[column][-1].as_py() for column in key)
                    yield page
                if page.num_rows < PAGE_ROWS:
                    return

    def named(self, query: str, names: Iterable[Any]) -> Iterator[pa.Table]:
        """The rows that a query finds for names: texts, numbers, or tuples of them; some at a time.

        Args:
            query: Its parameter is a JSON array of names.
            names: Of any number.
        """
        rest = iter(names)
        with self._reading(PAGE_MS) as reading:
            while some := list(islice(rest, NAMED_ROWS)):
                if self.engine == "postgresql":
                    some = [_escaped(name) for name in some]
                yield reading.whole(query, (json.dumps(some),))

    def _replaced(self, why: str, *, can_go_back: bool) -> LogReplaced:
        lead = f"the store {self.shown} is not the log that was ingested before: {why}. "
        if not can_go_back:
            lead += (
                "Name the store this lake was made from, or ingest into another lake: --lake DIR."
            )
            return LogReplaced(lead)
        return LogReplaced(
            f"{lead}Keep this lake as it is and ingest into another one, `--lake DIR`; or give up "
            "what only this lake has, and go on from what both have: "
            "`tidelog pipeline ingest --roll-back`."
        )

    @contextlib.contextmanager
    def _reading(self, statement_ms: int = STATEMENT_MS) -> Iterator["_Reading"]:
        from adbc_driver_manager import Error

        try:
            with self._connection(statement_ms) as connection:
                yield _Reading(connection, self.engine)
        except Error as error:
            raise self._unavailable(error) from None

    @contextlib.contextmanager
    def _connection(self, statement_ms: int = STATEMENT_MS) -> Iterator[Any]:
        if self.engine == "postgresql":
            try:
                url = _with_timeouts(self.location, statement_ms)
            except ValueError:
                raise _not_a_url() from None
            with _KEPT.lent(url) as connection:
                yield connection
            return
        from adbc_driver_sqlite import dbapi as sqlite

        path = Path(self.location).absolute()
        if not path.is_file():
            raise StoreUnavailable(
                f"there is no store at {path}. Name the server's --store or --data-dir."
            )
        try:
            path.open("rb").close()
        except OSError as error:  # of which the driver says that there is no memory
            raise StoreUnavailable(
                f"the store {path} cannot be read: {error.strerror}. Run this as the user who "
                "runs the server, or as one who may read its files."
            ) from None
        with contextlib.closing(
            sqlite.connect(f"{path.as_uri()}?mode=ro", autocommit=True)
        ) as connection:
            yield connection

    def _unavailable(self, error: Exception) -> StoreUnavailable | ConfigError:
        text = " ".join(str(error).split())
        if "URI" in text:  # libpq quotes the part it cannot read, and that may be the password
            return _not_a_url()
        if "no such table" in text or "does not exist" in text or "not a database" in text:
            return StoreUnavailable(
                f"{self.shown} is not a tidelog store of this version: {text}. Name the server's "
                "--store or --data-dir; starting the server once creates or migrates its store."
            )
        return StoreUnavailable(
            f"the store {self.shown} cannot be read: {text}. Check that it is there and may be "
            "read; what was ingested stays, and the next run continues."
        )


class _Reading:
    """See `Reading`."""

    def __init__(self, connection: Any, engine: str) -> None:
        self._connection = connection
        self._engine = engine
        self._queries = _queries(engine)
        if engine == "sqlite":
            self._run("wait_for_locks")

    def table(self, query: str, values: tuple[Any, ...] = ()) -> pa.Table:
        return self._table(self._queries[query], values, PAGE_ROWS)

    def whole(self, query: str, values: tuple[Any, ...] = ()) -> pa.Table:
        """Run a named query that returns any number of rows."""
        most = self.count(query, values) if self._engine == "sqlite" else PAGE_ROWS
        return self.rows(query, values, most)

    def count(self, query: str, values: tuple[Any, ...] = ()) -> int:
        """How many rows a named query returns."""
        text = self._queries[query].rstrip().removesuffix(";")
        counted = f"SELECT count(*) AS rows FROM ({text}) AS counted"
        [number] = self._table(counted, values, 1)["rows"].to_pylist()
        return int(number)

    def rows(self, query: str, values: tuple[Any, ...], most: int) -> pa.Table:
        """Run a named query that returns at most so many rows."""
        return self._table(self._queries[query], values, most)

    def _table(self, text: str, values: tuple[Any, ...], most: int) -> pa.Table:
        """The result of a query that returns at most so many rows.

        SQLite's columns have no type until a value is seen. The driver looks at one batch, so a
        whole result must be one; and it reserves room for a batch before it reads any of it.
        """
        with self._connection.cursor() as cursor:
            if self._engine == "sqlite":
                cursor.adbc_statement.set_options(
                    **{"adbc.sqlite.query.batch_rows": str(max(1, most))}
                )
            else:
                values = tuple(escape(v) if isinstance(v, str) else v for v in values)
            cursor.execute(text, values or None)
            table = cast("pa.Table", cursor.fetch_arrow_table())
        return _cleaned(table, is_escaped=self._engine == "postgresql")

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """All reads of the block see the store as it is at the first of them."""
        self._run("begin_reading")
        try:
            yield
        finally:
            self._run("end_reading")

    def _run(self, query: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(self._queries[query])


def _escaped(name: Any) -> Any:
    """A name, or a tuple of them, as PostgreSQL keeps its texts."""
    if isinstance(name, str):
        return escape(name)
    return [_escaped(part) for part in name] if isinstance(name, tuple) else name


def _not_a_url() -> ConfigError:
    return ConfigError("store: not a valid postgresql:// URL; percent-encode special characters")


@cache
def _queries(engine: str) -> dict[str, str]:
    return load_queries(files("tidelog.pipeline.source") / "sql" / engine)


def _with_timeouts(url: str, statement_ms: int) -> str:
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    wanted = {
        "connect_timeout": str(CONNECT_SECONDS),
        "tcp_user_timeout": str(1000 * CONNECT_SECONDS),
        "application_name": "tidelog pipeline",
        "options": (
            f"-c statement_timeout={statement_ms} "
            f"-c idle_in_transaction_session_timeout={statement_ms}"
        ),
    }
    query = urlencode({**wanted, **dict(given)}, quote_via=quote)
    return urlunsplit(parts._replace(query=query))


def _cleaned(table: pa.Table, *, is_escaped: bool) -> pa.Table:
    columns = []
    for column in table.columns:
        if column.null_count == len(column):
            columns.append(pa.chunked_array([pa.nulls(len(column))], pa.null()))
        elif (
            is_escaped
            and pa.types.is_string(column.type)
            and pc.any(pc.match_substring(column, MARK)).as_py()
        ):
            texts = [None if text is None else unescape(text) for text in column.to_pylist()]
            columns.append(pa.chunked_array([texts], pa.string()))
        else:
            columns.append(column)
    return pa.Table.from_arrays(columns, names=table.column_names)


def _head(reading: Reading) -> StoreHead:
    rows = reading.table("head").to_pylist()
    if not rows:
        raise StoreUnavailable(
            "the store has no head row: it is damaged, or no server has been started on it. "
            "`tidelog log verify` tells."
        )
    return StoreHead(**rows[0])


def _other_history(reading: Reading, head: StoreHead, known: Position) -> str | None:
    """Why a position is not in a log; None if it may be, as far as the log and its head tell."""
    if known.log_id != head.log_id:
        return f"it is log {head.log_id}, not {known.log_id}"
    if known.incarnation and known.incarnation != head.incarnation:
        rows = reading.table("incarnations").to_pylist()
        shared = Incarnations(Incarnation(**row) for row in rows).shared_with(known.incarnation)
        if shared is not None and known.committed_id > shared:
            went_on = f"goes on after {shared} in" if shared else "is"
            return (
                f"it was restored or failed over and {went_on} another incarnation, "
                f"but {known.committed_id} was read in the one before"
            )
    if known.committed_id > head.committed_id:
        return f"it ends at {head.committed_id}, but {known.committed_id} was read"
    return None


def _digest_at(reading: Reading, committed_id: int) -> bytes | None:
    if committed_id == 0:
        return GENESIS_DIGEST
    rows = reading.table("digest_at", (committed_id,)).to_pylist()
    return rows[0]["digest"] if rows else None


def _pages(
    reading: Reading, query: str, after: int, through: int, surface: str, *, with_content: bool
) -> Iterator[pa.Table]:
    while after < through:
        upto = min(through, after + PAGE_ROWS)
        while with_content and upto > after + 1:
            [size] = reading.table("content_bytes", (after, upto, surface))["bytes"].to_pylist()
            if size <= PAGE_BYTES:
                break
            upto = (after + upto) // 2
        yield reading.table(query, (after, upto, surface))
        after = upto


def _pages_of_stream(
    reading: Reading, after: int, through: int, stream: str, *, with_content: bool
) -> Iterator[pa.Table]:
    query = "entries_of_stream" if with_content else "entries_without_content_of_stream"
    serial = 0
    while True:
        page = reading.table(query, (after, through, stream, serial, PAGE_ROWS, PAGE_BYTES))
        if not page.num_rows:
            return
        yield page
        serial = page["stream_serial"][-1].as_py()
