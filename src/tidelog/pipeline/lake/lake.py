"""The lake: Delta tables that Spark fills and anything may read, in a directory or object store.

A write has two halves. Spark's executors write Parquet files into a fresh folder of the table,
which no reader sees; then the driver adds those files, and takes away those they replace, in one
commit of the table's Delta log. So it is all or nothing wherever the process dies, needs no jar,
and runs on a cluster as it does on a laptop, if all of it sees the same file system.

Every commit says through which position of the log its table is complete, as the version of an
application transaction. That is what makes a repeated batch harmless and tells what is stale.

Where the tables are is known to `LakeFiles` alone; all work is done on files of a directory.
"""

import contextlib
import fcntl
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.pipeline.frames import arrow_schema, spark_path
from tidelog.pipeline.lake.compaction import AT_ONCE, LARGE_BYTES, joins, weight
from tidelog.pipeline.lake.errors import LakeError, LakeLocked, SchemaDrift
from tidelog.pipeline.lake.lake_files import local_path
from tidelog.pipeline.lake.notes import AGED, APPLICATION, INPUT, NOTHING, REBUILD, SEAL
from tidelog.pipeline.lake.object_store import without_secrets
from tidelog.pipeline.lake.open_tables import FOLLOWED_RETENTION, RETENTION
from tidelog.pipeline.lake.parquet_file import GROUP_BYTES, SORTED_GROUP_BYTES, write_parquet
from tidelog.pipeline.lake.reading import VACUUM_AFTER, ReadableLake, frame_of
from tidelog.pipeline.lake.replacing import (
    Gone,
    common,
    holding,
    others,
    rewritten,
    written,
)
from tidelog.pipeline.lake.seal import seal_of, sealed_files
from tidelog.pipeline.lake.statistics import sought_columns, statistics_of
from tidelog.pipeline.tables import BY_NAME, LOG, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATISTICS = "delta.dataSkippingStatsColumns"

FILE_ROWS = 2_000_000
"""Rows of one file at most: some hundred megabytes, what one executor can hold and one reader
wants to skip."""

CHANGING_ROWS = 50_000
"""The same of a table whose rows change, as Spark writes it."""

PARTS = 128
PART_ROWS = 4096
"""A table whose rows change is in about so many files, of at least so many rows: who changes a few
neighbours writes one of them again."""

_COMPACT_ROWS = 4096
"""Rows that are read at once to be joined: few, since the content of an entry may be large."""

_VACUUM_EVERY_SECONDS = 1800.0
"""How often one process looks for files that no version needs: it lists all files of a table."""

WAIT_SECONDS = 60.0
"""How long a writer waits for another one. A following ingest writes for a moment about every
second, a round of a service takes some ten, and a command must come in between; for a build of
everything nobody should sit waiting."""

_TOLD_AFTER_SECONDS = 1.0
"""A writer that waits longer says so."""


class Lake(ReadableLake):
    """A lake that is written to: by one process at a time, each table in commits of its own."""

    def __init__(self, root: Path, url: str = "") -> None:
        super().__init__(root, url)
        self._is_writing = False
        self._is_changed = False
        """Whether a table has changed since whoever writes now began to."""
        self.waiting: Callable[[], None] = lambda: None
        """Called once by a writer that waits for another one."""
        self._vacuumed: dict[str, float] = {}
        """When each table was last looked through for files to delete."""

    @contextlib.contextmanager
    def writing(self, *, wait_seconds: float | None = None) -> Iterator[None]:
        """The right to write, for one process at a time; it ends with the process.

        Whoever has it may ask for it again.

        Args:
            wait_seconds: how long to wait for another process that has it, if not `WAIT_SECONDS`.

        Raises:
            LakeLocked: another process has it still.
        """
        if self._is_writing:
            yield
            return
        self.root.mkdir(parents=True, exist_ok=True)
        began, is_told = time.monotonic(), False
        deadline = began + (WAIT_SECONDS if wait_seconds is None else wait_seconds)
        with (self.root / "_lock").open("a") as file:
            while not (_is_locked(file) and self.place.take()):
                if time.monotonic() > deadline:
                    raise LakeLocked(
                        f"another process writes to the lake {self.name}. Wait for it, or stop it."
                    )
                if not is_told and time.monotonic() > began + _TOLD_AFTER_SECONDS:
                    self.waiting()
                    is_told = True
                time.sleep(self.place.look_seconds)
            self._is_writing = True
            try:
                yield
                if self._is_changed:
                    from tidelog.pipeline.lake.iceberg import describe_again

                    describe_again(self)
            finally:
                self._is_writing = self._is_changed = False
                self.place.give_back()

    def note(self, name: str, properties: dict[str, str]) -> None:
        """Note something with a table that is there."""
        table = self.delta(name)
        if table is not None:
            with self._conflicts(name):
                table.alter.set_table_properties(
                    properties,
                    raise_if_not_exists=False,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )

    def append(
        self,
        name: str,
        frame: "DataFrame",
        through: int,
        properties: dict[str, str] | None = None,
        confirm: Callable[[], None] = lambda: None,
        notes: Mapping[str, int] = NOTHING,
    ) -> int:
        """Add rows; returns how many. They are all rows that a table complete to `through` lacks.

        Args:
            name: The table.
            frame: The rows.
            through: Position of the log through which the table is complete with them.
            properties: Noted with the table if it is created by this.
            confirm: Called when they are written and not yet committed; nothing is, if it raises.
            notes: Numbers to note with the commit, see `noted`.
        """
        return self._commit(
            name, frame, through, replaced=(), properties=properties, confirm=confirm, notes=notes
        )

    def new_folder(self, name: str) -> Path:
        """A folder of a table that no reader sees, for files that `append_files` may add."""
        return self.path(name) / f"part-{uuid4().hex}"

    def append_files(
        self,
        name: str,
        files: Sequence[Path],
        through: int,
        properties: dict[str, str],
        confirm: Callable[[], None],
        expected: int | None = None,
    ) -> int:
        """Add the rows of Parquet files in a folder from `new_folder`; else as `append`.

        Raises:
            LakeError: they are not `expected`, if that is given.
        """
        return self._put(
            name, files, through, expected=expected, properties=properties, confirm=confirm
        )

    def overwrite(
        self,
        name: str,
        frame: "DataFrame",
        through: int,
        made_of: str | None = None,
        notes: Mapping[str, int] = NOTHING,
    ) -> int:
        """Replace all rows; returns how many there are now.

        Args:
            name: The table.
            frame: The rows.
            through: Position of the log through which the table is complete with them.
            made_of: A table whose files, as they are now, are all that the rows are made of.
            notes: Numbers to note with the commit, see `noted`.
        """
        return self._commit(
            name,
            frame,
            through,
            replaced=self._names(name),
            made_of=made_of,
            is_rebuild=True,
            notes=notes,
        )

    def overwrite_files(
        self,
        name: str,
        files: Sequence[Path],
        through: int,
        notes: Mapping[str, int] = NOTHING,
        made_of: str | None = None,
    ) -> int:
        """Replace all rows by those of files in a folder from `new_folder`; else as `overwrite`."""
        return self._put(
            name,
            files,
            through,
            replaced=self._names(name),
            made_of=made_of,
            is_rebuild=True,
            notes=notes,
        )

    def upsert(
        self,
        name: str,
        frame: "DataFrame",
        through: int,
        made_of: str | None = None,
        notes: Mapping[str, int] = NOTHING,
        gone: Sequence[Gone] = (),
    ) -> int:
        """Replace the rows that share a key with `frame`, add the others; returns how many.

        They go to new files, and the rows of `gone` go. Only files that hold a row which is
        replaced or goes are written again.
        """
        table = BY_NAME[name]
        files, expected = self._written(table, frame)
        first = (table.order,) if table.order in table.key else ()
        key = [*first, *(column for column in table.key if column not in first)]
        names = pq.read_table([str(file) for file in files], columns=key) if files else None
        gone = gone if names is None else [*gone, Gone(names)]
        if expected != (found := 0 if names is None else names.num_rows):
            raise self._incomplete(name, expected, found)
        return self.replace(name, through, gone, files=files, made_of=made_of, notes=notes)

    def replace(
        self,
        name: str,
        through: int,
        gone: Sequence[Gone],
        rows: pa.Table | None = None,
        files: Sequence[Path] = (),
        made_of: str | None = None,
        notes: Mapping[str, int] = NOTHING,
    ) -> int:
        """Take rows away and add others; returns how many were written.

        Args:
            name: The table.
            through: Position of the log through which the table is complete afterwards.
            gone: Rows that go. Only files that hold such a row are written again.
            rows: Rows that come: where those of the same name were, else in files of their own.
            files: Files in a folder from `new_folder` with more rows that come.
            made_of: A table whose files, as they are now, are all that the rows are made of.
            notes: Numbers to note with the commit, see `noted`.
        """
        table, known, folder = BY_NAME[name], self.files(name), self.new_folder(name)
        rows = arrow_schema(table).empty_table() if rows is None else rows
        found = [holding(known, each) for each in gone]
        touched = sorted({file for each in found for file in each})
        changed = list(files)
        for file in touched:
            instead = [common(rows, each[file]) for each in found if rows.num_rows and file in each]
            for each in found:
                if rows.num_rows and file in each:
                    rows = others(rows, each[file])
            part = pa.concat_tables(instead) if instead else rows.slice(0, 0)
            changed += rewritten(file, gone, part, table.order, folder)
        changed += written(rows, table.order, folder, self.part_rows(name))
        return self._put(name, changed, through, replaced=touched, made_of=made_of, notes=notes)

    def part_rows(self, name: str, rows: int | None = None) -> int:
        """Rows that a file of a table has at most, if the table has so many."""
        if not BY_NAME[name].is_changing:
            return FILE_ROWS
        rows = self.rows(name) if rows is None else rows
        return min(FILE_ROWS, max(PART_ROWS, rows // PARTS))

    def rewrite(
        self,
        spark: "SparkSession",
        name: str,
        hits: "Callable[[DataFrame], DataFrame]",
        change: "Callable[[DataFrame], DataFrame]",
    ) -> int:
        """Rewrite the files that hold certain rows; returns how many such rows there were.

        Args:
            spark: Runs the work.
            name: The table.
            hits: Of all rows, those that are to change.
            change: Of all rows of a file, what takes their place.
        """
        from pyspark.sql import functions as sql

        table, files = BY_NAME[name], self.files(name)
        if not files:
            return 0
        stored = frame_of(spark, table, files).withColumn("_file", sql.col("_metadata.file_path"))
        touched = {
            local_path(row["_file"]): row["count"]
            for row in hits(stored).groupBy("_file").count().collect()
        }
        if touched:
            changed = change(frame_of(spark, table, sorted(touched)))
            self._commit(name, changed, self.through(name), replaced=sorted(touched))
        return sum(touched.values())

    def rewrite_files(
        self,
        name: str,
        files: Sequence[str],
        change: Callable[[str], Iterable[pa.RecordBatch]],
        notes: Mapping[str, int],
    ) -> None:
        """Write files of a table again, each with other rows, in one commit and without Spark.

        Args:
            name: The table.
            files: The files.
            change: Returns the rows that take the place of those of a file.
            notes: Numbers to note with the commit, see `noted`.
        """
        table, folder = BY_NAME[name], self.new_folder(name)
        schema, order = arrow_schema(table), table.sorted_by
        changed = [folder / f"{uuid4().hex}.parquet" for _ in files]
        for file, target in zip(files, changed, strict=True):
            write_parquet(target, schema, change(file), order)
        self._put(name, changed, self.through(name), replaced=files, notes=notes)

    def _commit(
        self,
        name: str,
        frame: "DataFrame",
        through: int,
        *,
        replaced: Sequence[str],
        properties: dict[str, str] | None = None,
        made_of: str | None = None,
        is_rebuild: bool = False,
        confirm: Callable[[], None] = lambda: None,
        notes: Mapping[str, int] = NOTHING,
    ) -> int:
        files, rows = self._written(BY_NAME[name], frame)
        return self._put(
            name,
            files,
            through,
            expected=rows,
            replaced=replaced,
            properties=properties,
            made_of=made_of,
            is_rebuild=is_rebuild,
            confirm=confirm,
            notes=notes,
        )

    def _written(self, table: Table, frame: "DataFrame") -> tuple[list[Path], int]:
        """The rows of a frame as files of a new folder, and how many rows there were."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        _check(table, frame)
        folder = self.new_folder(table.name)
        counted = Observation()
        if order := table.sorted_by:
            frame = frame.sortWithinPartitions(*order)
        (
            frame.observe(counted, sql.count(sql.lit(1)).alias("rows"))
            .write.option("compression", "zstd")
            .option("maxRecordsPerFile", CHANGING_ROWS if table.is_changing else FILE_ROWS)
            .option("parquet.block.size", SORTED_GROUP_BYTES if order else GROUP_BYTES)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(spark_path(folder))
        )
        for checksum in folder.glob(".*.crc"):  # Hadoop's; Parquet pages have their own
            checksum.unlink()
        return sorted(folder.glob("*.parquet")), counted.get.get("rows", 0)

    def _put(
        self,
        name: str,
        files: Sequence[Path],
        through: int,
        *,
        expected: int | None = None,
        replaced: Sequence[str] = (),
        properties: dict[str, str] | None = None,
        made_of: str | None = None,
        is_change: bool = True,
        is_rebuild: bool = False,
        confirm: Callable[[], None] = lambda: None,
        notes: Mapping[str, int] = NOTHING,
    ) -> int:
        """Add files and take others away; whether the rows change by it is `is_change`.

        Raises:
            LakeError: they have not as many rows as were written, which is `expected`.
        """
        table, root = BY_NAME[name], self.path(name)
        added, rows = _added(table, root, files, is_change=is_change)
        if expected is not None and rows != expected:
            raise self._incomplete(name, expected, rows)
        place = self.files_of(name)
        place.send(root / each.path for each in added)
        confirm()
        reach(FaultPoint.LAKE_WRITTEN)
        kept = FOLLOWED_RETENTION if table is LOG else RETENTION
        wanted = {**_skipping(table), **kept}
        known = self.delta(name)
        if known is None:
            with self._conflicts(name):
                place.create(
                    root,
                    _delta_schema(table),
                    name=name,
                    description=table.meaning,
                    configuration={"tidelog.layer": table.layer, **wanted, **(properties or {})},
                    raise_if_key_not_exists=False,
                )
        elif wanted.items() - known.metadata().configuration.items():  # of an earlier version
            self.note(name, wanted)
        self._require_mine(name)
        now_ms = int(time.time() * 1000)
        sizes = self._told(name, "size_bytes") if replaced else {}
        removed = [
            RemoveAction(path, is_change, now_ms, sizes[path])
            for path in self._relative(name, replaced)
        ]
        noted = {
            **notes,
            APPLICATION: through,
            SEAL: self._seal(name, added, removed),
        }
        if made_of is not None and (seal := self.seal(made_of)) is not None:
            noted[INPUT] = seal
        if is_rebuild:
            noted[REBUILD] = self.rebuilds(name) + 1
        if (is_rebuild or known is None) and table.inputs and (aged := self.noted("log", AGED)):
            noted[AGED] = aged  # it is made of what the others have
        target = place.table(root)
        version = target.version() + 1
        with self._conflicts(name):
            target.create_write_transaction(
                [*added, *removed],
                "append",
                _delta_schema(table),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(*each) for each in noted.items()],
                    custom_metadata={"tidelog.through": str(through), "tidelog.rows": str(rows)},
                    max_commit_retries=0,
                ),
            )
        place.committed(root, version)
        self._is_changed = True
        reach(FaultPoint.LAKE_COMMITTED)
        return rows

    def _require_mine(self, name: str) -> None:
        """Make sure of it before a commit, and before what no commit could refuse."""
        if not self.files_of(name).is_known_to_be_mine():
            raise LakeLocked(
                f"another process has taken over the lake {self.name}. Nothing of table {name} was "
                "changed; try again."
            )

    @contextlib.contextmanager
    def _conflicts(self, name: str) -> Iterator[None]:
        """Tell whoever commits to a table that somebody else has."""
        try:
            yield
        except CommitFailedError as error:
            raise LakeLocked(
                f"table {name} in {self.name} was changed by another process: "
                f"{without_secrets(str(error))}. Try again."
            ) from error

    def _incomplete(self, name: str, expected: int, rows: int) -> LakeError:
        return LakeError(
            f"of {expected} rows for table {name}, {rows} are in {self.path(name)}; nothing was "
            f"committed. {self.root} must be one directory for the driver and all workers."
        )

    def _seal(self, name: str, added: Sequence[AddAction], removed: Sequence[RemoveAction]) -> int:
        """The seal of a table after a commit."""
        now, gone = set(self.relative_files(name)), {each.path for each in removed}
        new, known = {each.path for each in added}, self.seal(name)
        if known is None or now == gone:  # of an earlier version, or rewritten as a whole
            return seal_of((now - gone) | new)
        return known ^ seal_of(gone) ^ seal_of(new)

    def outdate(self, name: str, notes: Mapping[str, int] = NOTHING) -> None:
        """Say that a table is complete through nothing, so that the next build rebuilds it.

        Its rows can be read until then.
        """
        is_other = any(self.noted(name, what) != number for what, number in notes.items())
        if self.through(name) or (is_other and self.delta(name) is not None):
            self._put(name, (), 0, notes=notes)

    def cut(self, name: str, through: int, notes: Mapping[str, int] = NOTHING) -> None:
        """Take away the rows after a position from a table that has a row for each."""
        import pyarrow.compute as pc

        def last_in(file: str) -> int:
            positions = pq.read_table(file, columns=["committed_id"])["committed_id"]
            return int(pc.max(positions).as_py())

        touched = [file for file in self.files(name) if last_in(file) > through]
        rest = self.new_folder(name) / "rest.parquet"
        self._join(name, touched, rest, through)
        self._put(name, [rest], through, replaced=touched, notes=notes)

    def compact(self, name: str) -> bool:
        """Join small files of a table that has many of a size; returns whether it had."""
        if BY_NAME[name].is_changing:
            return self._compact_parts(name)
        found = {file: Path(file).stat() for file in self.files(name)}
        as_written = sorted(found, key=lambda file: (found[file].st_mtime_ns, file))
        rows = self._rows(name)
        groups = joins((file, weight(found[file].st_size, rows[file])) for file in as_written)
        if not groups:
            return False
        folder = self.new_folder(name)
        joined = [folder / f"{number}.parquet" for number in range(len(groups))]
        for target, parts in zip(joined, groups, strict=True):
            self._join(name, parts, target)
        replaced = sorted(file for parts in groups for file in parts)
        self._put(name, joined, self.through(name), replaced=replaced, is_change=False)
        return True

    def _compact_parts(self, name: str) -> bool:
        """Join the smallest files of a table whose rows change, in the order of its rows.

        What comes of them is no larger than its other files: a change writes one again.
        """
        counts = self._rows(name)
        most = self.part_rows(name, sum(counts.values()))
        small = sorted((file for file in counts if 2 * counts[file] < most), key=counts.__getitem__)
        if len(small) < AT_ONCE:
            return False
        joined, size = list[str](), 0
        self._fetch(name, small)
        for file in small:
            size += Path(file).stat().st_size
            if size > LARGE_BYTES and len(joined) > 1:
                break
            joined.append(file)
        table = BY_NAME[name]
        schema = arrow_schema(table)
        rows = pa.concat_tables(
            [pq.read_table(file, columns=schema.names).cast(schema) for file in joined]
        )
        files = written(rows, table.order, self.new_folder(name), most)
        self._put(name, files, self.through(name), replaced=joined, is_change=False)
        return True

    def _join(
        self, name: str, parts: Sequence[str], file: Path, through: int | None = None
    ) -> None:
        """The rows of some files of a table in one; only those up to a position, if it is given."""
        from pyarrow.dataset import FileSystemDataset, field

        table = self.delta(name)
        assert table is not None  # noqa: S101 - it has files
        whole = table.to_pyarrow_dataset(filesystem=self._file_system(name))
        known = {each.path: each for each in whole.get_fragments()}
        fragments = [known[path] for path in self._relative(name, parts)]
        rows = FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)
        read = rows.to_batches(
            batch_size=_COMPACT_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
            filter=None if through is None else field("committed_id") <= through,
        )
        write_parquet(file, whole.schema, read, BY_NAME[name].sorted_by)

    def tidy(self, name: str) -> None:
        """Join small files of a table, and now and then delete what nobody needs any more."""
        self.compact(name)
        now = time.monotonic()
        if now - self._vacuumed.get(name, -math.inf) < _VACUUM_EVERY_SECONDS:
            return
        self._vacuumed[name] = now
        self.vacuum(name)

    def vacuum(self, name: str, keep: timedelta = VACUUM_AFTER) -> int:
        """Delete the files that no version younger than `keep` needs; returns how many.

        Counted in whole hours; zero also deletes what a write that is under way has written.
        """
        table = self.delta(name)
        if table is None:
            return 0
        self._require_mine(name)
        gone = table.vacuum(
            retention_hours=int(keep.total_seconds() // 3600),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,  # also what a killed write left, which the Delta log does not know
        )
        self.files_of(name).prune(self.path(name), self._names(name), keep)
        self._sweep(name, keep)
        return len(gone)

    def remove(self, name: str) -> None:
        """Remove a table with all that it has."""
        self._require_mine(name)
        self.files_of(name).remove(self.path(name))

    def _sweep(self, name: str, keep: timedelta) -> None:
        """Remove folders of writes of which no file is left; delta-rs deletes files alone.

        It also leaves what a killed write of Spark has in a folder of its own there.
        """
        before = time.time() - keep.total_seconds()
        for folder in self.path(name).glob("part-*"):
            if folder.stat().st_mtime <= before and not any(folder.glob("*.parquet")):
                shutil.rmtree(folder, ignore_errors=True)


def _is_locked(file: IO[str]) -> bool:
    """Whether this process has the lock of a file now; what it has it may ask for again."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _delta_schema(table: Table) -> Schema:
    kinds = {"bigint": "long", "array<string>": None}
    fields = [
        {
            "name": column.name,
            "type": kinds.get(column.kind, column.kind)
            or {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {"comment": column.meaning},
        }
        for column in table.columns
    ]
    return Schema.from_json(orjson.dumps({"type": "struct", "fields": fields}).decode())


def _check(table: Table, frame: "DataFrame") -> None:
    found = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    wanted = [(column.name, column.kind) for column in table.columns]
    if found != wanted:
        raise SchemaDrift(f"rows for table {table.name} have columns {found}, not {wanted}")


def _skipping(table: Table) -> dict[str, str]:
    """Of which columns the table's log says the smallest and largest values: see `statistics`.

    For a reader that does not know the list, of none.
    """
    columns = ",".join(sought_columns(table))
    return {_STATISTICS: columns, "delta.dataSkippingNumIndexedCols": "0"}


def _added(
    table: Table, root: Path, files: Sequence[Path], *, is_change: bool
) -> tuple[list[AddAction], int]:
    """What was written, in the words of the Delta log; empty files are left to the vacuum."""
    told: list[tuple[Path, int, str]] = []
    for file in files:  # one foot at a time: all of a large table's take a hundred megabytes
        foot = pq.read_metadata(file)
        if foot.num_rows:
            told.append((file, foot.num_rows, statistics_of(table, foot)))
    actions = []
    sealed = sealed_files([file for file, _, _ in told])
    for file, (_, _, statistics) in zip(sealed, told, strict=True):
        stat = file.stat()
        actions.append(
            AddAction(
                str(file.relative_to(root)),
                stat.st_size,
                {},
                int(stat.st_mtime * 1000),
                is_change,
                statistics,
            )
        )
    return actions, sum(rows for _, rows, _ in told)
