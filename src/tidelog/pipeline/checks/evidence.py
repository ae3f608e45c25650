"""What the checks look at: one reading of the store, which all of them share.

The entries of the wanted ranges are read once, in pages, up to the head that the log had when the
checks began; the rows beside the log in pages too, each a transaction of its own. Whatever was read
is kept in memory while it is little, else in files that go when the checks are done.

If all of the log is wanted, all of each relation is read. Else the rows that belong to the wanted
entries are looked up by their keys; and since a row that belongs to no entry is found by no key,
some rows of each relation are read in its own order from a place that nobody can foresee, and the
entries that they name are looked up. `Evidence.entries_beside` has those as well: of every entry
there, all that concerns it was read.

Pages are of different moments, so a finding on a store that is being written to counts only if a
second look still shows it: at what was found, and nothing else (`second_look`).
"""

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.checks.beside import LOOKED_AT, Gathered, Ref
from tidelog.pipeline.checks.extent import Range, merged
from tidelog.pipeline.checks.spool import BESIDE, ENTRIES, RELATIONS, Relation, Spool
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.lazy_spark import is_local, session_of
from tidelog.pipeline.source.spark_source import ROWS_PER_PARTITION, id_ranges
from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidelog.pipeline.lazy_spark import Spark

EVENTS_MOST = 50_000
"""Events that are looked up to make states of partitions again: they may be anywhere in the log."""

HERE_ROWS = 80_000
"""Entries that this process reads by itself: as much as there is new in some minutes, with
something old. It keeps them in memory unless their content is large."""

CHUNK_ROWS = 20_000
"""Entries whose rows are looked up together: what the driver holds at once."""

FOLDER = "_checks"
"""Where in the lake files are kept while checks run."""


class Evidence:
    """The store as one reading of it found it."""

    def __init__(
        self,
        spark: "Spark",
        address: StoreAddress,
        head: StoreHead,
        ranges: Iterable[Range],
        folder: Path,
        *,
        seed: int = 0,
        refs: Sequence[Ref] = (),
    ) -> None:
        """Nothing is read before it is asked for.

        Args:
            spark: Reads much at once.
            address: The store.
            head: Where the log ends, for these checks.
            ranges: Entries that are wanted.
            folder: For files; all of the cluster sees it.
            seed: Decides where relations are read in their own order.
            refs: What is to be looked at again; then relations are not read in their own order.
        """
        self.session = spark
        self.address = address
        self.head = head
        self.ranges = merged(ranges)
        self.seed = seed
        self._refs = refs
        self.folder = folder
        self._lock = threading.RLock()
        self._relations: dict[str, Spool] = {}

    @property
    def spark(self) -> "SparkSession":
        """The session, for what is not little; it starts if it was not needed yet."""
        return session_of(self.session)

    @property
    def is_whole(self) -> bool:
        """Whether all of the log is wanted, and so all of each relation."""
        return not self._refs and self.ranges in ((Range(0, self.head.committed_id),), ())

    def has(self, ranges: Sequence[Range]) -> bool:
        """Whether some ranges are among those that are wanted."""
        return merged((*self.ranges, *ranges)) == self.ranges

    def again(self, refs: Sequence[Ref]) -> "Evidence":
        """Another reading, of what was found and what belongs to it."""
        folder = self.folder / uuid4().hex
        return Evidence(self.session, self.address, self.head, (), folder, refs=refs)

    # Entries.

    def log(self, *columns: str, ranges: Sequence[Range] | None = None) -> "DataFrame":
        """The wanted entries, or those of some ranges among them."""
        frame = self._log_frame
        if ranges is not None and merged(ranges) != self.ranges:
            frame = frame.where(within(ranges))
        return frame.select(*columns) if columns else frame

    def entries(self, wanted: Range) -> int:
        """How many entries of a range were read."""
        if not wanted.entries:
            return 0
        at = pc.field("committed_id")
        inside = (at > wanted.after) & (at <= wanted.through)
        return int(self._log.scan().count_rows(filter=inside))

    def digest_at(self, position: int) -> bytes | None:
        """The digest of an entry, as it was read if it was."""
        if self.entries(Range(position - 1, position)) == 0:
            return self.address.entry_digest_at(position)
        at = pc.field("committed_id") == position
        return bytes(self._log.scan().to_table(["digest"], filter=at)["digest"][0].as_py())

    @property
    def log_files(self) -> list[str]:
        """Files in each of which entries are in order and none is left out; none: all in memory."""
        return self._log.files

    def log_tables(self, ranges: Sequence[Range], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Entries of ranges in order, a bounded number at a time."""
        at = pc.field("committed_id")
        for each in ranges:
            for chunk in id_ranges(each.after, each.through, CHUNK_ROWS):
                inside = (at > chunk.after) & (at <= chunk.through)
                yield (
                    self._log.scan().to_table(list(columns), filter=inside).sort_by("committed_id")
                )

    @cached_property
    def _log_frame(self) -> "DataFrame":
        return self._log.frame(self.spark)

    @property
    def _log(self) -> Spool:
        with self._lock:
            if "log" not in self._relations:
                self._relations["log"] = self._read_log()
            return self._relations["log"]

    def _read_first(self) -> None:
        """Entries are read before anything else."""
        assert self._log is not None  # noqa: S101 - reading it is the point

    def _read_log(self) -> Spool:
        spool = self._spool(ENTRIES)
        wanted = sum(each.entries for each in self.ranges)
        if wanted <= HERE_ROWS and is_local(self.session):
            for each in self.ranges:
                for page in self.address.entries(each.after, each.through, query="check_log"):
                    spool.add(page)
            spool.settle()
        else:
            spool.add_files(_read_by_tasks(self.spark, self.address, self.ranges, self.folder))
        return spool

    @cached_property
    def outside(self) -> list[int]:
        """Positions of the first entries before the beginning or after the head of the log."""
        pages = self.address.pages("check_outside", ("committed_id",), ())
        found: list[int] = next(pages, ENTRIES.schema.empty_table())["committed_id"].to_pylist()
        return found

    def serials_before(self, first: Iterable[tuple[str, int]], after: int) -> dict[str, int]:
        """Of streams with their first serial after a position: the last serial before it.

        That is 0 if there is none, and the first serial itself if it was there before.
        """
        named = ((stream, serial, after) for stream, serial in first)
        return {
            row["stream"]: row["before"] or 0
            for page in self.address.named("check_serials_before", named)
            for row in page.to_pylist()
        }

    # Relations.

    def relation(self, name: str) -> "DataFrame":
        """A relation: all of it if all of the log is wanted, else what is of `entries_beside`."""
        return self.spooled(name).frame(self.spark)

    def spooled(self, name: str) -> Spool:
        """The same as it was read: after the entries, so what an entry needs was there."""
        with self._lock:
            if name not in self._relations:
                self._read_first()
                if self.is_whole or name not in BESIDE:
                    self._relations[name] = self._read_whole(name)
                else:
                    self._relations |= self._gathered.rows
            return self._relations[name]

    def entries_beside(self, *columns: str) -> "DataFrame":
        """Wanted entries and those that rows of relations name."""
        wanted = self.log(*columns)
        if self.is_whole:
            return wanted
        with self._lock:
            more = self._gathered.entries.frame(self.spark)
        return wanted.unionByName(more.select(*columns) if columns else more)

    def tables_beside(self, columns: Sequence[str]) -> pa.Table | None:
        """The same in memory; None if it is not little."""
        spools = [self._log]
        if not self.is_whole:
            with self._lock:
                spools.append(self._gathered.entries)
        if any(spool.files for spool in spools):
            return None
        return pa.concat_tables([spool.scan().to_table(list(columns)) for spool in spools])

    def _read_whole(self, name: str) -> Spool:
        relation = RELATIONS[name]
        spool = self._spool(relation)
        for page in self.address.pages(f"check_{name}", relation.key, relation.lowest):
            spool.add(page)
        return spool

    @cached_property
    def _gathered(self) -> Gathered:
        gathered = Gathered(self.address, self.head, self.ranges, self.folder)
        for entries in self.log_tables(self.ranges, LOOKED_AT):
            gathered.follow_entries(entries)
        if self._refs:
            gathered.look_again(self._refs)
        else:
            gathered.read_on(random.Random(self.seed))  # noqa: S311 - a sample, no secret
        return gathered

    def events_of(self, partitions: Sequence[str], through: int) -> tuple[list[str], Spool, Spool]:
        """The events of as many of some partitions as `EVENTS_MOST` allows, by chance.

        The store's index tells which they are, up to a position.

        Returns:
            The partitions, which events are in them, and the entries of these.
        """
        chance = random.Random(self.seed)  # noqa: S311 - a sample, no secret
        chosen, positions = list[str](), set[int]()
        index, entries = self._spool(RELATIONS["event_partitions"]), self._spool(ENTRIES)
        for partition in chance.sample(partitions, len(partitions)):
            pages, found = list[pa.Table](), set[int]()
            for page in self.address.pages(
                "check_events_of_partition",
                ("committed_id",),
                (0,),
                of=(partition,),
                until=(through,),
            ):
                pages.append(page)
                found.update(page["committed_id"].to_pylist())
                if len(positions) + len(found) > EVENTS_MOST:
                    break
            if len(positions) + len(found) <= EVENTS_MOST:
                chosen.append(partition)
                positions |= found
                for page in pages:
                    index.add(page)
        for page in self.address.named("check_log_at", sorted(positions)):
            entries.add(page)
        return chosen, index, entries

    def _spool(self, relation: Relation) -> Spool:
        return Spool(self.folder, relation)

    def now(self) -> "Evidence":
        """Another reading, of all of each relation, that begins now."""
        folder = self.folder / uuid4().hex
        return Evidence(self.session, self.address, self.head, (), folder, seed=self.seed)

    def snapshot_states(self, partitions: Iterable[str]) -> Iterator[pa.Table]:
        """Stored snapshots of partitions with their states, some at a time."""
        return self.address.named("check_snapshot_states", partitions)


def within(ranges: Sequence[Range], column: str = "committed_id") -> "Column":
    """Whether the position of a row is in one of some ranges."""
    from pyspark.sql import functions as sql

    at, inside = sql.col(column), sql.lit(False)
    for each in ranges:
        inside = inside | ((at > each.after) & (at <= each.through))
    return inside


def _read_by_tasks(
    spark: "SparkSession", address: StoreAddress, ranges: Sequence[Range], folder: Path
) -> list[tuple[str, int]]:
    """Entries read and written by Spark's processes; returns files with their rows."""
    parts = [
        part for each in ranges for part in id_ranges(each.after, each.through, ROWS_PER_PARTITION)
    ]
    schema = ENTRIES.schema

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                part = parts[number]
                file = folder / f"log-{part.after + 1:020d}-{uuid4().hex}.parquet"
                pages = address.entries(part.after, part.through, query="check_log")
                tables = (page.select(schema.names).cast(schema) for page in pages)
                write_parquet(file, schema, (each for t in tables for each in t.to_batches()))
                yield pa.RecordBatch.from_pydict({"file": [str(file)], "rows": [_rows(file)]})

    numbers = spark.range(0, len(parts), 1, len(parts))
    found = numbers.mapInArrow(read, "file string, rows bigint").collect()
    return sorted((row["file"], row["rows"]) for row in found)


def _rows(file: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(file).num_rows)
