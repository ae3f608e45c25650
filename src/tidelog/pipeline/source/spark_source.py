"""The log as a source of Spark: `spark.read.format("tidelog")` and `spark.readStream`.

A row is an entry, a partition a range of ids: ids are gapless, so ranges of equal length hold
equally many rows. A stream's offset is a position in one particular incarnation of a log, with the
digest of the entry there; a store that has another history there is refused, at every batch.

The head is read after it was committed, and ids are given in the order of commits. So everything
up to a head is there: no entry is committed late, before an offset.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidelog.base.errors import ConfigError
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lazy_spark import is_local
from tidelog.pipeline.source.store_address import GENESIS_DIGEST, Position, StoreAddress
from tidelog.pipeline.tables import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.pipeline.lazy_spark import Spark

ROWS_PER_PARTITION = 100_000
"""Entries of one task unless the option says otherwise: a second or so of work, so that cores stay
busy and the start of a task does not show."""

LOCAL_ROWS = 20_000
"""Entries that the driver reads by itself: a tenth of a second of work, where a process of Spark's
that does it takes a second to start."""

LOCAL_BYTES = 64 * 1024 * 1024
"""Most content of entries that the driver reads by itself, however few they are."""

_ARROW = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
_KINDS = {column.name: column for column in LOG.columns}
_CONTENT = frozenset({"body", "data"})


def offset_of(position: Position) -> dict[str, Any]:
    """A position as Spark writes it into a checkpoint."""
    return {**position._asdict(), "digest": position.digest.hex()}


def position_of(offset: dict[str, Any]) -> Position:
    """The position an offset names."""
    return Position(
        offset["log_id"],
        offset["committed_id"],
        bytes.fromhex(offset["digest"]),
        offset.get("incarnation", ""),  # a checkpoint of an earlier version has none
    )


@dataclass(frozen=True)
class Selection:
    """What is wanted of the entries in a range of ids."""

    columns: tuple[str, ...]
    surface: str = ""
    """Only entries of this surface; empty: of all."""
    stream: str = ""
    """Only entries of this stream; empty: of all."""

    @property
    def schema(self) -> pa.Schema:
        """The wanted columns as Arrow has them."""
        kinds = [_KINDS[name] for name in self.columns]
        return pa.schema([pa.field(c.name, _ARROW[c.kind], c.is_nullable) for c in kinds])

    def read(self, address: StoreAddress, ids: "IdRange") -> Iterator[pa.RecordBatch]:
        """The entries of a range, page by page."""
        schema = self.schema
        pages = address.entries(
            ids.after,
            ids.through,
            surface=self.surface,
            stream=self.stream,
            with_content=not _CONTENT.isdisjoint(self.columns),
        )
        for page in pages:
            yield from page.select(self.columns).cast(schema).to_batches()


class RangesAlone:
    """Nothing of the entries in a range of ids, only the range: one row that says which it is."""

    schema = pa.schema(
        [pa.field(name, pa.int64(), nullable=False) for name in ("after", "through")]
    )
    ddl = "after bigint NOT NULL, through bigint NOT NULL"

    def read(self, _address: StoreAddress, ids: "IdRange") -> Iterator[pa.RecordBatch]:
        """The range."""
        yield pa.RecordBatch.from_pylist(
            [{"after": ids.after, "through": ids.through}], self.schema
        )


@dataclass
class IdRange(InputPartition):
    """The entries with `after < committed_id <= through`."""

    after: int
    through: int


def id_ranges(after: int, through: int, rows: int) -> list[IdRange]:
    """Ranges of about equal length, none longer than `rows`; none at all if there is no entry."""
    total = max(0, through - after)
    count = -(-total // rows)
    bounds = [after + total * number // count for number in range(count + 1)] if count else []
    return [IdRange(low, high) for low, high in pairwise(bounds)]


def log_frame(
    spark: "SparkSession",
    address: StoreAddress,
    columns: Sequence[str],
    through: int,
    after: int = 0,
) -> "DataFrame":
    """The entries with `after < committed_id <= through`, with some of their columns.

    A short log is read here and now, a longer one by this source when the frame is used.
    """
    selection = Selection(tuple(columns))
    if is_read_here(spark, through - after):
        batches, size = list[pa.RecordBatch](), 0
        for batch in selection.read(address, IdRange(after, through)):
            batches.append(batch)
            size += batch.nbytes
            if size > LOCAL_BYTES:
                break
        else:
            table = pa.Table.from_batches(batches, selection.schema)
            return frame_of_rows(spark, table, _ddl(columns))
    register_source(spark)
    return (
        spark.read.format(TidelogSource.name())
        .option("store", address.location)
        .option("columns", ",".join(columns))
        .option("after", after)
        .option("through", through)
        .load()
    )


def is_read_here(spark: "Spark", rows: int) -> bool:
    """Whether so many entries are read by the driver; on a cluster the executors read all."""
    return rows <= LOCAL_ROWS and is_local(spark)


def register_source(spark: "SparkSession") -> None:
    """Make `format("tidelog")` known to a session; it may be known already.

    The first time takes a second: Spark looks for sources in all of Python's packages. So a session
    for a small log does without it until it is needed.
    """
    spark.dataSource.register(TidelogSource)


def _ddl(columns: Sequence[str]) -> str:
    return LOG._replace(columns=tuple(_KINDS[name] for name in columns)).ddl


class TidelogSource(DataSource):
    """`format("tidelog")`.

    Options: `store`, a path or a `postgresql://` URL as in the server's setting; `columns`, the
    wanted ones with commas between them (content that is not wanted is not read); `surface` and
    `stream`, to read only theirs; `rowsPerPartition`. For a batch also `after` and `through`, to
    read only `after < committed_id <= through`; for a stream `maxRowsPerTrigger` and
    `startingOffset`, the JSON of an offset at which a query without a checkpoint begins. With
    `rows` set to `ranges` a row is not an entry but a range of them, `after` and `through`: for
    whoever reads the entries by other means.

    These are options and not conditions that Spark pushes down, because Spark 4.3 keeps what is
    pushed for one query with the frame: the next query on the same frame, with other conditions or
    none, would read too few entries and never know.
    """

    @classmethod
    def name(cls) -> str:
        """What is given to `format`."""
        return "tidelog"

    def schema(self) -> str:
        """The wanted columns."""
        if self._is_of_ranges():
            return RangesAlone.ddl
        wanted = self.options.get("columns")
        names = [name.strip() for name in wanted.split(",")] if wanted else list(_KINDS)
        if unknown := [name for name in names if name not in _KINDS]:
            raise ConfigError(
                f"columns: the log has no {', '.join(unknown)}; it has {', '.join(_KINDS)}"
            )
        return _ddl(names)

    def reader(self, schema: "StructType") -> "BatchReader":
        """Reads the log as it is when the query is planned."""
        return BatchReader(
            self._address(),
            self._selection(schema),
            self._rows_per_partition(),
            self._number("after", 0) or 0,
            self._number("through", 0),
        )

    def streamReader(self, schema: "StructType") -> "StreamReader":  # noqa: N802 - Spark's name
        """Reads the log as it grows."""
        starting = self.options.get("startingOffset")
        return StreamReader(
            self._address(),
            self._selection(schema),
            self._rows_per_partition(),
            self._number("maxRowsPerTrigger", 1),
            position_of(json.loads(starting)) if starting else None,
        )

    def _address(self) -> StoreAddress:
        store = self.options.get("store") or self.options.get("path")
        if not store:
            raise ConfigError('store: missing; .option("store", PATH_OR_URL) names the log')
        return StoreAddress(store)

    def _is_of_ranges(self) -> bool:
        rows = self.options.get("rows", "entries")
        if rows not in ("entries", "ranges"):
            raise ConfigError(f"rows: {rows!r}; must be entries or ranges")
        return rows == "ranges"

    def _selection(self, schema: "StructType") -> Selection | RangesAlone:
        if self._is_of_ranges():
            return RangesAlone()
        surface, stream = self.options.get("surface", ""), self.options.get("stream", "")
        return Selection(tuple(schema.names), surface, stream)

    def _rows_per_partition(self) -> int:
        return self._number("rowsPerPartition", 1) or ROWS_PER_PARTITION

    def _number(self, option: str, least: int) -> int | None:
        text = self.options.get(option)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise ConfigError(f"{option}: {text!r}; must be a whole number, at least {least}")
        return int(text)


class BatchReader(DataSourceReader):
    """One read of the log, up to its head when the query is planned."""

    def __init__(
        self,
        address: StoreAddress,
        selection: Selection | RangesAlone,
        rows_per_partition: int,
        after: int,
        through: int | None,
    ) -> None:
        self._address = address
        self._selection = selection
        self._rows_per_partition = rows_per_partition
        self._after = after
        self._through = through

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids up to the head."""
        through = self._address.head().committed_id
        if self._through is not None:
            through = min(through, self._through)
        ranges = id_ranges(self._after, through, self._rows_per_partition)
        return ranges or [IdRange(0, 0)]  # Spark would read a partition of its own making

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of a range that are wanted."""
        assert isinstance(partition, IdRange)  # noqa: S101 - `partitions` made it
        return self._selection.read(self._address, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows; its offsets say which log it is."""

    def __init__(
        self,
        address: StoreAddress,
        selection: Selection | RangesAlone,
        rows_per_partition: int,
        max_rows: int | None,
        starting: Position | None,
    ) -> None:
        self._address = address
        self._selection = selection
        self._rows_per_partition = rows_per_partition
        self._max_rows = max_rows
        self._starting = starting
        self._target: int | None = None
        """Where an available-now query ends, whatever is committed meanwhile."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The beginning of the log, or the position the option names."""
        if self._starting is not None:
            self._address.require(self._starting)
            return offset_of(self._starting)
        head = self._address.head()
        return offset_of(Position(head.log_id, 0, GENESIS_DIGEST, head.incarnation))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit given by the option."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where the log ends now."""
        self._target = self._address.head().committed_id

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """How far the next batch goes; a log that was replaced is refused."""
        begin = position_of(start)
        head = self._address.require(begin)
        through = (
            head.committed_id if self._target is None else min(head.committed_id, self._target)
        )
        if isinstance(limit, ReadMaxRows):
            through = min(through, begin.committed_id + limit.max_rows)
        if through <= begin.committed_id:
            return start
        if through == head.committed_id:
            return offset_of(head.position)
        digest = self._address.entry_digest_at(through)
        assert digest is not None  # noqa: S101 - ids are gapless and entries stay
        return offset_of(Position(head.log_id, through, digest, head.incarnation))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The head, so that a query's progress says how far behind it is."""
        return offset_of(self._address.head().position)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Ranges of ids of a batch, which may be one that was planned before a restart."""
        begin, last = position_of(start), position_of(end)
        self._address.require(begin, last)
        return id_ranges(begin.committed_id, last.committed_id, self._rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of a range."""
        assert isinstance(partition, IdRange)  # noqa: S101 - `partitions` made it
        return self._selection.read(self._address, partition)
