"""What the tables of a lake are compared by: a table twice, and the parts of it that are wanted."""

import itertools
import random
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.checks.beside import Ref
from tidelog.pipeline.checks.evidence import Evidence, within
from tidelog.pipeline.checks.extent import Extent, Range
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.notes import ALTERATIONS
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.transforms.snapshots import ModelSource

INTERVALS = 32
"""Stretches of positions that a reader is told to look in: it skips files and row groups by them,
and more of them would cost more to look at than they save."""

Key = tuple[Any, ...]

_NAME = pa.schema([("position", pa.int64()), ("scope", pa.string()), ("name", pa.string())])
"""What an alteration is of."""


class Pair(NamedTuple):
    """A table twice: as it should be, and as it is. Both have the columns of the table.

    Rows may have more columns, which say what is no finding: `_is_free`, that the row may be
    missing on the other side; `_is_open`, that columns outside `fixed` may have changed since.
    """

    made: "DataFrame"
    held: "DataFrame"
    key: tuple[str, ...]
    columns: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    """Columns that never change, if others may."""


class View:
    """What the tables are made of, and which part of them is wanted."""

    def __init__(
        self,
        spark: "Spark",
        lake: "Lake",
        evidence: Evidence,
        extent: Extent,
        model: "ModelSource | None",
        now_ms: int,
        only: dict[str, list[Key]] | None = None,
    ) -> None:
        """The wanted part is told by ranges of the log.

        Args:
            spark: The session.
            lake: The tables.
            evidence: The store now.
            extent: What is wanted.
            model: Of the sync surface.
            now_ms: What expiry is judged by.
            only: By table: rows that are wanted, and no others.
        """
        self.session = spark
        self.lake = lake
        self.evidence = evidence
        self.extent = extent
        self.model = model
        self.now_ms = now_ms
        self.only = only

    @property
    def spark(self) -> "SparkSession":
        """The session, for what is not little; it starts if it was not needed yet."""
        return session_of(self.session)

    @property
    def store(self) -> "StoreAddress":
        """The store."""
        return self.evidence.address

    @property
    def is_whole(self) -> bool:
        """Whether all rows are wanted."""
        return self.extent.is_whole and self.only is None

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Of the wanted rows; the last one goes on, to what should not be there."""
        return self.extent.ranges

    @property
    def forgets(self) -> bool:
        """Whether anything was ever forgotten."""
        return bool(self.lake.files("forgotten"))

    def again(self, only: dict[str, list[Key]], refs: Sequence[Ref]) -> "View":
        """The same of some rows, with the store as it is now."""
        evidence = self.evidence.again(refs)
        return View(self.session, self.lake, evidence, self.extent, self.model, self.now_ms, only)

    def altered_since(self, name: str) -> pa.Table | None:
        """What of a relation the store has changed since the table of its name was built.

        Returns:
            `position`, `scope` and `name` of each; None if the store cannot tell all of it.
        """
        noted, numbers = self.lake.noted(name, ALTERATIONS), self.store.now()[1]
        if noted is None or not numbers.has_after(noted):
            return None
        found = [
            page.filter(pc.field("relation") == name).select(_NAME.names).cast(_NAME)
            for page in self.store.alterations(noted, numbers.last)
        ]
        return pa.concat_tables([_NAME.empty_table(), *found])

    def frame(self, name: str) -> "DataFrame":
        """A table as it is."""
        return self.lake.frame(self.spark, name)

    def relation(self, name: str) -> "DataFrame":
        """A relation of the store: all of it, or what concerns the wanted entries."""
        return self.evidence.relation(name)

    def through(self, name: str, inputs: str) -> "DataFrame":
        """The rows of a table that another one was made of."""
        from pyspark.sql import functions as sql

        return self.frame(inputs).where(sql.col("committed_id") <= self.lake.through(name))

    def made_of(self, name: str, inputs: str = "log") -> "DataFrame":
        """The wanted rows of a table that another one was made of."""
        rows = self.through(name, inputs)
        return rows if self.is_whole else rows.where(within(self.ranges))

    def held(self, name: str) -> "DataFrame":
        """The wanted rows of a table with positions; those after what it has are always wanted."""
        rows = self.frame(name)
        if self.is_whole:
            return rows
        return rows.where(within(self.ranges) | self.is_after(name, "committed_id"))

    def is_after(self, name: str, column: str) -> "Column":
        """Whether a row of a table is after the position through which it says it is complete."""
        from pyspark.sql import functions as sql

        return sql.col(column) > max(self.lake.through(name), self.extent.new.through)

    @cached_property
    def entries(self) -> pa.Table:
        """The wanted entries of the table `log`, without content."""
        columns = ["committed_id", "stream", "surface", "entity", "committed_at"]
        parts = [
            self.lake.arrow(
                "log",
                columns,
                [("committed_id", ">", each.after), ("committed_id", "<=", each.through)],
            )
            for each in self.ranges
        ]
        none = self.lake.arrow("log", columns, [("committed_id", "<", 0)])
        return pa.concat_tables([none, *parts])

    def committed_at(self, position: int) -> int:
        """When an entry was committed, milliseconds since 1970; 0 if the lake does not have it."""
        if not position:
            return 0
        rows = self.lake.arrow("log", ["committed_at"], [("committed_id", "=", position)])
        return max(rows["committed_at"].to_pylist(), default=0)

    def named(self, name: str, keys: Iterable[Key]) -> "DataFrame":
        """Keys of a table as a frame."""
        columns = [c for c in BY_NAME[name].columns if c.name in BY_NAME[name].key]
        ddl = ", ".join(f"{column.name} {column.kind}" for column in columns)
        return frame_of_rows(self.spark, list(keys), ddl)

    @cached_property
    def messages(self) -> list[Key]:
        """Keys of the channel messages that are wanted: those that have a wanted version."""
        if self.only is not None:
            return self.only.get("message", [])
        channels = self.entries.filter(pc.field("surface") == "channels")
        pairs = channels.group_by(["stream", "entity"]).aggregate([])
        found = []
        for stream, entity in zip(
            pairs["stream"].to_pylist(), pairs["entity"].to_pylist(), strict=True
        ):
            _, app_id, channel = (*stream.split("/", 2), "", "")[:3]
            found.append((app_id, channel.split("/")[0], entity))
        return found

    @cached_property
    def sends(self) -> list[str]:
        """Messages of meshes that are wanted: those whose entry is."""
        if self.only is not None:
            return sorted({key[0] for keys in self.only.values() for key in keys})
        found: list[str] = self.entries.filter(pc.field("surface") == "mesh")["entity"].to_pylist()
        return found

    @property
    def chance(self) -> random.Random:
        """What decides about samples."""
        return random.Random(self.evidence.seed)  # noqa: S311 - a sample, no secret

    @cached_property
    def minutes(self) -> list[tuple[int, int]]:
        """Begin and end, milliseconds since 1970, of the stretches of minutes of the ranges."""
        found = []
        at, times = self.entries["committed_id"], self.entries["committed_at"]
        for each in self.ranges:
            inside = pc.and_(pc.greater(at, each.after), pc.less_equal(at, each.through))
            of_range = times.filter(inside)
            if len(of_range):
                first, last = pc.min_max(of_range).as_py().values()
                found.append((first - first % 60_000, last - last % 60_000 + 60_000))
        return found


def in_minutes(column: "Column", minutes: Sequence[tuple[int, int]]) -> "Column":
    """Whether a time, in milliseconds or as a timestamp, is in one of some stretches."""
    from pyspark.sql import functions as sql

    inside = sql.lit(False)
    for begin, end in minutes:
        inside = inside | ((column >= begin) & (column < end))
    return inside


def intervals_of(positions: Iterable[int]) -> tuple[Range, ...]:
    """A few ranges that hold all of some positions: the widest gaps are between them."""
    known = sorted(set(positions))
    if not known:
        return ()
    gaps = sorted(
        ((after - before, after) for before, after in itertools.pairwise(known)),
        reverse=True,
    )
    begins = sorted([known[0], *(begin for _, begin in gaps[: INTERVALS - 1])])
    return tuple(
        Range(begin - 1, known[_last_before(known, end)])
        for begin, end in zip(begins, [*begins[1:], known[-1] + 1], strict=True)
    )


def _last_before(known: Sequence[int], end: int) -> int:
    from bisect import bisect_left

    return bisect_left(known, end) - 1
