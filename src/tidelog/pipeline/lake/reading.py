"""A lake as it is now: where its tables are, how far they are complete, and their rows.

Nothing here changes a table. Rows are read by Spark, or by Arrow without it; the same rules say
which files are opened, and fetched if the lake is on an object store.
"""

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidelog.pipeline.frames import arrow_schema, empty_frame, spark_path
from tidelog.pipeline.lake.errors import LakeDamaged, LakeError, SchemaDrift
from tidelog.pipeline.lake.lake_files import LakeFiles, LocalFiles
from tidelog.pipeline.lake.notes import APPLICATION, INPUT, REBUILD, SEAL
from tidelog.pipeline.lake.replacing import (
    Gone,
    common,
    files_from,
    holding,
)
from tidelog.pipeline.lake.seal import seal_of
from tidelog.pipeline.lake.statistics import sought_columns
from tidelog.pipeline.tables import BY_NAME, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.dataset import Dataset
    from pyspark.sql import DataFrame, SparkSession

_READ_ROWS = 16_384
"""Entries that are read at once."""

VACUUM_AFTER = timedelta(hours=1)
"""Files that no version needs are kept so long: whoever opened the table before they were
replaced is still reading them, and an unfinished write has not committed its own."""


class ReadableLake:
    """The tables under one directory, or under a URL with copies of their files in a directory."""

    def __init__(self, root: Path, url: str = "") -> None:
        self.root = root
        self.url = url
        """Of the object store it is on; empty if it is the directory."""
        self.place = _files_at(root, url)
        """Where its files are kept."""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.place.name

    def require_directory(self, why: str) -> None:
        """Refuse what is not done on an object store.

        Raises:
            LakeError: it is on one.
        """
        if self.url:
            raise LakeError(
                f"this needs a lake in a directory, and this one is {self.url}: {why}. Make one "
                "beside it: `tidelog pipeline run --lake DIRECTORY`."
            )

    def files_of(self, name: str) -> LakeFiles:
        """Where a table is kept."""
        del name
        return self.place

    def path(self, name: str) -> Path:
        """Where a table is."""
        return self.root / BY_NAME[name].layer / name

    def checkpoint(self, name: str) -> Path:
        """Where the streaming query that fills a table remembers how far it is."""
        return self.root / "_checkpoints" / name

    def delta(self, name: str) -> "DeltaTable | None":
        """The table as delta-rs knows it, or None if nothing was written to it yet."""
        files, path = self.files_of(name), self.path(name)
        try:
            table = files.table(path)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise LakeDamaged(
                f"table {name} in {self.name} cannot be read: {_first_line(error)}. Remove "
                f"{files.address(path)} and rebuild it: `tidelog pipeline run`."
            ) from error
        found = [(field.name, _kind(field.type)) for field in table.schema().fields]
        wanted = [(column.name, column.kind) for column in BY_NAME[name].columns]
        if found != wanted:
            different = sorted({name for name, _ in set(found) ^ set(wanted)})
            raise SchemaDrift(
                f"table {name} in {self.name} has other columns than this version of tidelog "
                f"writes ({', '.join(different) or 'order'}). "
                f"Remove {files.address(path)} and {_remade(name)}."
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
        return self.noted(name, INPUT)

    def noted(self, name: str, what: str) -> int | None:
        """A number that was noted with the newest commit that had one of this kind."""
        table = self.delta(name)
        return None if table is None else table.transaction_version(what)

    def rebuilds(self, name: str) -> int:
        """How often all rows of a table were replaced."""
        table = self.delta(name)
        return 0 if table is None else table.transaction_version(REBUILD) or 0

    def written_elsewhere(self, name: str, only: Container[str] | None = None) -> list[str]:
        """What shows that something else than the pipeline has written a table, in words.

        Args:
            name: The table.
            only: Of the files themselves, only these are read; all if None.
        """
        files, known = self.relative_files(name), self.seal(name)
        wrong = [
            f"file {file} is not what was written"
            for file in files
            if only is None or str(self.path(name) / file) in only
            if not self.files_of(name).is_as_written(self.path(name) / file)
        ]
        if known is not None and known != seal_of(files):
            wrong.insert(0, "its files are not those that the pipeline has written")
        return wrong

    def rows(self, name: str) -> int:
        """Number of rows of a table."""
        return sum(self._rows(name).values())

    def _rows(self, name: str) -> dict[str, int]:
        """Number of rows of each file of a table, as its log says."""
        path = self.path(name)
        return {str(path / file): rows for file, rows in self._told(name, "num_records").items()}

    def _told(self, name: str, what: str) -> dict[str, int]:
        """A number that the log of a table says of each of its files, as seen from the table."""
        table = self.delta(name)
        if table is None:
            return {}
        told = pa.table(table.get_add_actions())
        return dict(zip(told["path"].to_pylist(), told[what].to_pylist(), strict=True))

    def relative_files(self, name: str) -> list[str]:
        """Files of a table's newest version, in order, as seen from the table."""
        return self._relative(name, self._names(name))

    def _relative(self, name: str, files: Iterable[str]) -> list[str]:
        return [os.path.relpath(file, self.path(name)) for file in files]

    def property_of(self, name: str, key: str) -> str | None:
        """What was noted with a table."""
        table = self.delta(name)
        return None if table is None else table.metadata().configuration.get(key)

    def files(self, name: str, after: int = 0) -> list[str]:
        """Paths of the files of a table's newest version; those that may have rows after a place.

        Args:
            name: The table.
            after: A position of the log, for a table that has a row for each.
        """
        names = self._names(name, f"committed_id > {after}" if after else None)
        self._fetch(name, names)
        return names

    def _fetch(self, name: str, files: Iterable[str]) -> None:
        """Have files of a table here, and those that were fetched once and are old no more."""
        place, path = self.files_of(name), self.path(name)
        if place.fetch(path, files):
            place.prune(path, self._names(name), VACUUM_AFTER)

    def _fetch_where(self, name: str, where: Sequence[tuple[str, str, Any]] = ()) -> None:
        """Have the files here that may have rows that meet all of `where`."""

        def wanted() -> Iterator[str]:
            yield from self._names(name, _predicate(BY_NAME[name], where))

        self._fetch(name, wanted())

    def _names(self, name: str, predicate: str | None = None) -> list[str]:
        """The same, and it does not matter whether the files are here."""
        table, path = self.delta(name), self.path(name)
        if table is None:
            return []
        files = self.files_of(name)
        return sorted(
            files.path(path, uri) for uri in table.file_uris(file_pruning_predicate=predicate)
        )

    def frame(self, spark: "SparkSession", name: str) -> "DataFrame":
        """A table as it is now, for Spark; empty if there is none yet."""
        return frame_of(spark, BY_NAME[name], self.files(name))

    def frame_from(self, spark: "SparkSession", name: str, column: str, value: Any) -> "DataFrame":
        """The rows of a table that have a value or more in a column; other files are not opened."""
        from pyspark.sql import functions as sql

        files = files_from(self.files(name), column, value)
        return frame_of(spark, BY_NAME[name], files).where(sql.col(column) >= sql.lit(value))

    def arrow(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        where: Sequence[tuple[str, str, Any]] = (),
    ) -> pa.Table:
        """A table as it is now, without Spark: rows that meet all of `where`."""
        table = self.delta(name)
        if table is None:
            raise LakeError(
                f"there is no table {name} in {self.name} yet. Build it: `tidelog pipeline run`."
            )
        self._fetch_where(name, where)
        return table.to_pyarrow_table(
            columns=None if columns is None else list(columns),
            filters=list(where) or None,
            filesystem=self._file_system(name),
        )

    def batches(
        self,
        name: str,
        columns: Sequence[str],
        where: Sequence[tuple[str, str, Any]] = (),
    ) -> Iterator[pa.RecordBatch]:
        """The same, some rows at a time; none if there is no table yet."""
        from pyarrow.parquet import filters_to_expression

        rows = self.dataset(name, where)
        if rows is not None:
            yield from rows.to_batches(
                columns=list(columns),
                filter=filters_to_expression(list(where)) if where else None,
                batch_readahead=2,
                fragment_readahead=1,
            )

    def dataset(
        self, name: str, where: Sequence[tuple[str, str, Any]] = (), *, is_read: bool = True
    ) -> "Dataset | None":
        """A table as it is now, to be read with Arrow; None if there is none yet.

        Args:
            name: The table.
            where: What all rows that are read will meet.
            is_read: Whether rows will be read at all, or only the columns asked for.
        """
        table = self.delta(name)
        if table is None:
            return None
        if is_read:
            self._fetch_where(name, where)
        return table.to_pyarrow_dataset(filesystem=self._file_system(name))

    def named(self, name: str, gone: Gone) -> pa.Table:
        """The rows of a table with certain names, without Spark; other files are not read."""
        schema = arrow_schema(BY_NAME[name])
        found = [
            common(pq.read_table(file, columns=schema.names).cast(schema), held)
            for file, held in holding(self.files(name), gone).items()
        ]
        return pa.concat_tables([schema.empty_table(), *found])

    def between(self, name: str, columns: Sequence[str], after: int, through: int) -> pa.Table:
        """Rows of entries in a range of positions, without Spark; other files are not read."""
        from pyarrow.dataset import dataset, field

        schema = pa.schema([arrow_schema(BY_NAME[name]).field(column) for column in columns])
        files = files_from(self.files(name), "committed_id", after + 1)
        if not files:
            return schema.empty_table()
        position = field("committed_id")
        read = dataset(files, format="parquet").to_table(
            columns=list(columns), filter=(position > after) & (position <= through)
        )
        return read.cast(schema)

    def entries_between(
        self,
        columns: Sequence[str],
        after: int,
        through: int,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> Iterator[pa.Table]:
        """Entries of a range, some at a time.

        Args:
            columns: Columns of `log`.
            after: The entries begin after it.
            through: The last of them.
            since_ms: Only those that were committed at this time or later.
            until_ms: Only those that were committed before this time.
        """
        from pyarrow.dataset import dataset, field

        files = files_from(self.files("log"), "committed_id", after + 1)
        place = field("committed_id")
        wanted = (place > after) & (place <= through)
        if since_ms is not None:
            files = files_from(files, "committed_at", since_ms)
            wanted &= field("committed_at") >= since_ms
        if until_ms is not None:
            wanted &= field("committed_at") < until_ms
        if files:
            for batch in dataset(files, format="parquet").to_batches(
                columns=list(columns),
                filter=wanted,
                batch_size=_READ_ROWS,
                batch_readahead=2,
                fragment_readahead=1,
            ):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])

    def has_entry(self, surface: str, after: int, through: int) -> bool:
        """Whether an entry of a range is of a surface; the feet of most files tell it."""
        from pyarrow.dataset import dataset, field

        if not (files := files_from(self.files("log"), "committed_id", after + 1)):
            return False
        place = field("committed_id")
        wanted = (place > after) & (place <= through) & (field("surface") == surface)
        found = dataset(files, format="parquet").head(1, columns=["committed_id"], filter=wanted)
        return bool(found.num_rows)

    def _file_system(self, name: str) -> Any:
        """Reads the files of a table.

        With delta-rs's own, which calls back into Python, a thread of Arrow that outlives the last
        statement of a script would abort the interpreter.
        """
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        return SubTreeFileSystem(str(self.path(name).absolute()), LocalFileSystem())


def frame_of(spark: "SparkSession", table: Table, files: Sequence[str]) -> "DataFrame":
    """The rows of some files of a table."""
    if not files:
        return empty_frame(spark, table.ddl)
    return spark.read.schema(table.ddl).parquet(*map(spark_path, files))


def forgotten_partitions(lake: ReadableLake, through: int | None = None) -> set[str]:
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


def _files_at(root: Path, url: str) -> LakeFiles:
    if not url:
        return LocalFiles(root)
    from tidelog.pipeline.lake.object_files import ObjectFiles

    return ObjectFiles(root, url)


_COMPARED = ("=", "<", "<=", ">", ">=")


def _predicate(table: Table, where: Sequence[tuple[str, str, Any]]) -> str | None:
    """What of a condition tells files apart without opening them."""
    places = [name for name in sought_columns(table) if name.endswith("committed_id")]
    parts = [
        f"{column} {sign} {value}"
        for column, sign, value in where
        if column in places and sign in _COMPARED and isinstance(value, int)
    ]
    return " AND ".join(parts) or None


def _remade(name: str) -> str:
    """What makes a table again that is not there."""
    if BY_NAME[name].inputs or BY_NAME[name].relations:
        return f"rebuild it: `tidelog pipeline build {name}`"
    command = {"log": "ingest", "verdict": "check"}.get(name)
    if command:
        return f"make it again: `tidelog pipeline {command}`"
    return "run the pipeline again; what only this table held is lost: `tidelog pipeline run`"


def _first_line(error: Exception) -> str:
    """What it says, without the addresses of machine code that delta-rs adds."""
    return str(error).partition("\n")[0]


def _kind(kind: Any) -> str:
    """A type of delta-rs in the words of Spark SQL."""
    if kind.type == "array":
        return f"array<{_kind(kind.element_type)}>"
    return {"long": "bigint"}.get(kind.type, str(kind.type))
