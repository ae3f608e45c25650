"""The lake: a directory of Delta tables that Spark fills and anything may read.

A write has two halves. Spark's executors write Parquet files into a fresh folder of the table,
which no reader sees; then the driver adds those files, and takes away those they replace, in one
commit of the table's Delta log. So it is all or nothing wherever the process dies, needs no jar,
and runs on a cluster as it does on a laptop, if all of it sees the same file system.

Every commit says through which position of the log its table is complete, as the version of an
application transaction. That is what makes a repeated batch harmless and tells what is stale.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from tidelog.base.errors import TidelogError
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.pipeline.frames import empty_frame
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.lake.seal import is_as_written, seal_of, sealed_files
from tidelog.pipeline.tables import BY_NAME, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "tidelog"
"""Whose transaction version is the position through which a table is complete."""

SEAL = "tidelog.seal"
"""Whose transaction version is the seal of a table's files."""

INPUT = "tidelog.input"
"""Whose transaction version is the seal of the table that this one was made of, if it says so."""

FILE_ROWS = 2_000_000
"""Rows of one file at most: some hundred megabytes, what one executor can hold and one reader
wants to skip."""

COMPACT_ABOVE_FILES = 32
"""A table of more files is compacted: `--follow` adds one every few seconds, and each costs a
reader an open."""

COMPACT_BYTES = 100 * 1024 * 1024
"""What small files become when they are joined; a larger file is left as it is."""

_COMPACT_ROWS = 4096
"""Rows that are read at once for that: few, since the content of an entry may be large."""

VACUUM_AFTER = timedelta(hours=1)
"""Files that no version needs are kept so long: whoever opened the table before they were
replaced is still reading them, and an unfinished write has not committed its own."""


WAIT_SECONDS = 3.0
"""How long a writer waits for another one. A following ingest writes for a moment about every
second, and a command must come in between; for one that builds tables nobody should sit waiting."""

_LOOK_SECONDS = 0.05


class LakeError(TidelogError):
    """Root of what a lake can raise."""


class LakeLocked(LakeError):  # noqa: N818 - the failure is the noun
    """Another process writes to the lake."""


class LakeDamaged(LakeError):  # noqa: N818 - the failure is the noun
    """What is where a table should be is none that can be read."""


class SchemaDrift(LakeError):  # noqa: N818 - the failure is the noun
    """A table, or what was to be written to it, does not have the columns it should have."""


class Lake:
    """The tables under one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_writing = False

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
        deadline = time.monotonic() + (WAIT_SECONDS if wait_seconds is None else wait_seconds)
        with (self.root / "_lock").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LakeLocked(
                            f"another process writes to the lake {self.root}. "
                            "Wait for it, or stop it."
                        ) from None
                time.sleep(_LOOK_SECONDS)
            self._is_writing = True
            try:
                yield
            finally:
                self._is_writing = False

    def path(self, name: str) -> Path:
        """Where a table is."""
        return self.root / BY_NAME[name].layer / name

    def checkpoint(self, name: str) -> Path:
        """Where the streaming query that fills a table remembers how far it is."""
        return self.root / "_checkpoints" / name

    def delta(self, name: str) -> DeltaTable | None:
        """The table as delta-rs knows it, or None if nothing was written to it yet."""
        try:
            table = DeltaTable(self.path(name))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise LakeDamaged(
                f"table {name} in {self.root} cannot be read: {_first_line(error)}. Remove "
                f"{self.path(name)} and rebuild it: `tidelog pipeline run`."
            ) from error
        found = [(field.name, _kind(field.type)) for field in table.schema().fields]
        wanted = [(column.name, column.kind) for column in BY_NAME[name].columns]
        if found != wanted:
            different = sorted({name for name, _ in set(found) ^ set(wanted)})
            raise SchemaDrift(
                f"table {name} in {self.root} has other columns than this version of tidelog "
                f"writes ({', '.join(different) or 'order'}). "
                f"Remove {self.path(name)} and rebuild it: `tidelog pipeline build {name}`."
            )
        return table

    def through(self, name: str) -> int:
        """Position of the log through which a table is complete."""
        table = self.delta(name)
        return 0 if table is None else table.transaction_version(APPLICATION) or 0

    def seal(self, name: str) -> int | None:
        """The sum of the files that the pipeline has written; None if no version noted it."""
        table = self.delta(name)
        return None if table is None else table.transaction_version(SEAL)

    def made_of(self, name: str) -> int | None:
        """The seal of what a table was made of, if it was noted."""
        table = self.delta(name)
        return None if table is None else table.transaction_version(INPUT)

    def written_elsewhere(self, name: str) -> list[str]:
        """What shows that something else than the pipeline has written a table, in words."""
        files, known = self.relative_files(name), self.seal(name)
        wrong = [
            f"file {file} is not what was written"
            for file in files
            if not is_as_written(self.path(name) / file)
        ]
        if known is not None and known != seal_of(files):
            wrong.insert(0, "its files are not those that the pipeline has written")
        return wrong

    def rows(self, name: str) -> int:
        """Number of rows of a table."""
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(file).num_rows for file in self.files(name))

    def relative_files(self, name: str) -> list[str]:
        """Files of a table's newest version, in order, as seen from the table."""
        return self._relative(name, self.files(name))

    def _relative(self, name: str, files: Iterable[str]) -> list[str]:
        return [os.path.relpath(file, self.path(name)) for file in files]

    def property_of(self, name: str, key: str) -> str | None:
        """What was noted with a table."""
        table = self.delta(name)
        return None if table is None else table.metadata().configuration.get(key)

    def note(self, name: str, properties: dict[str, str]) -> None:
        """Note something with a table that is there."""
        table = self.delta(name)
        if table is not None:
            table.alter.set_table_properties(properties, raise_if_not_exists=False)

    def files(self, name: str) -> list[str]:
        """Paths of the files of a table's newest version."""
        table = self.delta(name)
        return [] if table is None else _paths(table)

    def frame(self, spark: "SparkSession", name: str) -> "DataFrame":
        """A table as it is now, for Spark; empty if there is none yet."""
        return frame_of(spark, BY_NAME[name], self.files(name))

    def arrow(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Sequence[tuple[str, str, Any]] = (),
    ) -> "pa.Table":
        """A table as it is now, without Spark: rows that meet all of `where`."""
        table = self.delta(name)
        if table is None:
            raise LakeError(
                f"there is no table {name} in {self.root} yet. Build it: `tidelog pipeline run`."
            )
        return table.to_pyarrow_table(
            columns=None if columns is None else list(columns),
            filters=list(where) or None,
            filesystem=self._file_system(name),
        )

    def _file_system(self, name: str) -> Any:
        """Reads the files of a table.

        With delta-rs's own, which calls back into Python, a thread of Arrow that outlives the last
        statement of a script would abort the interpreter.
        """
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(str(self.path(name).absolute()), LocalFileSystem())

    # Writing.

    def append(
        self,
        name: str,
        frame: "DataFrame",
        through: int,
        properties: dict[str, str] | None = None,
        confirm: Callable[[], None] = lambda: None,
    ) -> int:
        """Add rows; returns how many. They are all rows that a table complete to `through` lacks.

        Args:
            name: The table.
            frame: The rows.
            through: Position of the log through which the table is complete with them.
            properties: Noted with the table if it is created by this.
            confirm: Called when they are written and not yet committed; nothing is, if it raises.
        """
        return self._commit(
            name, frame, through, replaced=(), properties=properties, confirm=confirm
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
    ) -> int:
        """Add the rows of Parquet files in a folder from `new_folder`; else as `append`."""
        return self._put(name, files, through, properties=properties, confirm=confirm)

    def overwrite(
        self, name: str, frame: "DataFrame", through: int, made_of: str | None = None
    ) -> int:
        """Replace all rows; returns how many there are now.

        Args:
            name: The table.
            frame: The rows.
            through: Position of the log through which the table is complete with them.
            made_of: A table whose files, as they are now, are all that the rows are made of.
        """
        return self._commit(name, frame, through, replaced=self.files(name), made_of=made_of)

    def upsert(self, name: str, frame: "DataFrame", through: int) -> int:
        """Replace the rows that share a key with `frame`, add the others; returns how many.

        Only files that hold such a row are rewritten.
        """
        from pyspark.sql import functions as sql

        table = BY_NAME[name]
        files = self.files(name)
        if not files:
            return self.append(name, frame, through)
        key = list(table.key)
        frame = frame.persist()
        try:
            stored = frame_of(frame.sparkSession, table, files).withColumn(
                "_file", sql.col("_metadata.file_path")
            )
            hit = stored.join(frame.select(key), key, "left_semi").select("_file").distinct()
            touched = {_local(row["_file"]) for row in hit.collect()}
            if touched:
                kept = frame_of(frame.sparkSession, table, sorted(touched))
                kept = kept.join(frame.select(key), key, "left_anti")
                frame_and_kept = frame.unionByName(kept)
            else:
                frame_and_kept = frame
            return self._commit(name, frame_and_kept, through, replaced=sorted(touched))
        finally:
            frame.unpersist()

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
            _local(row["_file"]): row["count"]
            for row in hits(stored).groupBy("_file").count().collect()
        }
        if touched:
            changed = change(frame_of(spark, table, sorted(touched)))
            self._commit(name, changed, self.through(name), replaced=sorted(touched))
        return sum(touched.values())

    def _commit(
        self,
        name: str,
        frame: "DataFrame",
        through: int,
        *,
        replaced: Sequence[str],
        properties: dict[str, str] | None = None,
        made_of: str | None = None,
        confirm: Callable[[], None] = lambda: None,
    ) -> int:
        _check(BY_NAME[name], frame)
        folder = self.new_folder(name)
        (
            frame.write.option("compression", "zstd")
            .option("maxRecordsPerFile", FILE_ROWS)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(str(folder))
        )
        for checksum in folder.glob(".*.crc"):  # Hadoop's; Parquet pages have their own
            checksum.unlink()
        files = sorted(folder.glob("*.parquet"))
        return self._put(
            name,
            files,
            through,
            replaced=replaced,
            properties=properties,
            made_of=made_of,
            confirm=confirm,
        )

    def _put(
        self,
        name: str,
        files: Sequence[Path],
        through: int,
        *,
        replaced: Sequence[str] = (),
        properties: dict[str, str] | None = None,
        made_of: str | None = None,
        is_change: bool = True,
        confirm: Callable[[], None] = lambda: None,
    ) -> int:
        """Add files and take others away; whether the rows change by it is `is_change`."""
        table, root = BY_NAME[name], self.path(name)
        added, rows = _added(root, files, is_change=is_change)
        confirm()
        reach(FaultPoint.LAKE_WRITTEN)
        if not DeltaTable.is_deltatable(str(root)):
            DeltaTable.create(
                root,
                _delta_schema(table),
                mode="ignore",
                name=name,
                description=table.meaning,
                configuration={
                    "tidelog.layer": table.layer,
                    # No smallest and largest values in the table's log, where nothing of what is
                    # forgotten may stay; the files have their own.
                    "delta.dataSkippingNumIndexedCols": "0",
                    **(properties or {}),
                },
                raise_if_key_not_exists=False,
            )
        now_ms = int(time.time() * 1000)
        removed = [
            RemoveAction(path, is_change, now_ms, (root / path).stat().st_size)
            for path in self._relative(name, replaced)
        ]
        notes = [
            Transaction(APPLICATION, through),
            Transaction(SEAL, self._seal(name, added, removed)),
        ]
        if made_of is not None and (seal := self.seal(made_of)) is not None:
            notes.append(Transaction(INPUT, seal))
        try:
            DeltaTable(root).create_write_transaction(
                [*added, *removed],
                "append",
                _delta_schema(table),
                commit_properties=CommitProperties(
                    app_transactions=notes,
                    custom_metadata={"tidelog.through": str(through), "tidelog.rows": str(rows)},
                ),
            )
        except CommitFailedError as error:
            raise LakeLocked(
                f"table {name} in {self.root} was changed by another process: {error}. Try again."
            ) from error
        reach(FaultPoint.LAKE_COMMITTED)
        return rows

    def _seal(self, name: str, added: Sequence[AddAction], removed: Sequence[RemoveAction]) -> int:
        """The seal of a table after a commit."""
        now, gone = set(self.relative_files(name)), {each.path for each in removed}
        new, known = {each.path for each in added}, self.seal(name)
        if known is None or now == gone:  # of an earlier version, or rewritten as a whole
            return seal_of((now - gone) | new)
        return known ^ seal_of(gone) ^ seal_of(new)

    def outdate(self, name: str) -> None:
        """Say that a table is complete through nothing, so that the next build rebuilds it.

        Its rows can be read until then.
        """
        if self.through(name):
            self._put(name, (), 0)

    def cut(self, name: str, through: int) -> None:
        """Take away the rows after a position from a table that has a row for each."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        def last_in(file: str) -> int:
            positions = pq.read_table(file, columns=["committed_id"])["committed_id"]
            return int(pc.max(positions).as_py())

        touched = [file for file in self.files(name) if last_in(file) > through]
        rest = self.new_folder(name) / "rest.parquet"
        self._join(name, touched, rest, through)
        self._put(name, [rest], through, replaced=touched)

    def compact(self, name: str) -> bool:
        """Join the small files of a table that has too many; returns whether it had."""
        files = self.files(name)
        if len(files) <= COMPACT_ABOVE_FILES:
            return False
        small = {file: Path(file).stat() for file in files}
        small = {file: stat for file, stat in small.items() if stat.st_size < COMPACT_BYTES}
        if len(small) < 2:
            return False
        bins, size = [list[str]()], 0
        for file in sorted(small, key=lambda file: (small[file].st_mtime_ns, file)):  # as written
            if size >= COMPACT_BYTES:
                bins.append([])
                size = 0
            bins[-1].append(file)
            size += small[file].st_size
        folder = self.new_folder(name)
        joined = [folder / f"{number}.parquet" for number in range(len(bins))]
        for target, parts in zip(joined, bins, strict=True):
            self._join(name, parts, target)
        self._put(name, joined, self.through(name), replaced=sorted(small), is_change=False)
        return True

    def _join(
        self, name: str, parts: Sequence[str], file: Path, through: int | None = None
    ) -> None:
        """The rows of some files of a table in one; only those up to a position, if it is given."""
        from pyarrow.dataset import FileSystemDataset, field

        table = self.delta(name)
        assert table is not None  # noqa: S101 - it has files
        whole = table.to_pyarrow_dataset(filesystem=self._file_system(name))
        wanted = set(self._relative(name, parts))
        fragments = [each for each in whole.get_fragments() if each.path in wanted]
        rows = FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)
        read = rows.to_batches(
            batch_size=_COMPACT_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
            filter=None if through is None else field("committed_id") <= through,
        )
        write_parquet(file, whole.schema, read)

    def vacuum(self, name: str, keep: timedelta = VACUUM_AFTER) -> int:
        """Delete the files that no version younger than `keep` needs; returns how many.

        Counted in whole hours; zero also deletes what a write that is under way has written.
        """
        table = self.delta(name)
        if table is None:
            return 0
        gone = table.vacuum(
            retention_hours=int(keep.total_seconds() // 3600),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,  # also what a killed write left, which the Delta log does not know
        )
        return len(gone)


def frame_of(spark: "SparkSession", table: Table, files: Sequence[str]) -> "DataFrame":
    """The rows of some files of a table."""
    if not files:
        return empty_frame(spark, table.ddl)
    return spark.read.schema(table.ddl).parquet(*files)


def forgotten_partitions(lake: Lake, through: int | None = None) -> set[str]:
    """Partitions with a forgotten event: their state cannot be told from the lake.

    Args:
        lake: The lake.
        through: only what was forgotten up to this position counts; all of it if None.
    """
    if lake.delta("forgotten") is None:
        return set()
    until = [] if through is None else [("first_committed_id", "<=", through)]
    lists = lake.arrow("forgotten", ["partitions"], until)["partitions"].to_pylist()
    return {partition for each in lists for partition in each or ()}


def _paths(table: DeltaTable) -> list[str]:
    return sorted(_local(uri) for uri in table.file_uris())


def _first_line(error: Exception) -> str:
    """What it says, without the addresses of machine code that delta-rs adds."""
    return str(error).partition("\n")[0]


def _local(uri: str) -> str:
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def _kind(kind: Any) -> str:
    """A type of delta-rs in the words of Spark SQL."""
    if kind.type == "array":
        return f"array<{_kind(kind.element_type)}>"
    return {"long": "bigint"}.get(kind.type, str(kind.type))


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


def _added(root: Path, files: Sequence[Path], *, is_change: bool) -> tuple[list[AddAction], int]:
    """What was written, in the words of the Delta log; empty files are left to the vacuum."""
    import pyarrow.parquet as pq

    counts = {file: pq.read_metadata(file).num_rows for file in files}
    full = {file: count for file, count in counts.items() if count}
    actions = []
    for file, count in zip(sealed_files(list(full)), full.values(), strict=True):
        stat = file.stat()
        actions.append(
            AddAction(
                str(file.relative_to(root)),
                stat.st_size,
                {},
                int(stat.st_mtime * 1000),
                is_change,
                orjson.dumps({"numRecords": count}).decode(),
            )
        )
    return actions, sum(full.values())
