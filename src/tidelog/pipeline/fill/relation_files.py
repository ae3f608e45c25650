"""Rows beside the log as Parquet files, written by whoever reads them from the store.

What came with the entries of a range of positions is read page by page, as entries are (see
`entry_files`): by tasks of Spark, or by the driver if the range is short. So it does not matter how
many rows a relation has; nobody holds more than a page of them.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.source.relations import arrow_of, typed
from tidelog.pipeline.source.spark_source import (
    ROWS_PER_PARTITION,
    IdRange,
    id_ranges,
    is_read_here,
)

if TYPE_CHECKING:
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import StoreAddress

FILE_ROWS = 50_000
"""Rows of one file, about."""

_WRITTEN = "file string"

Change = Callable[[pa.Table], pa.Table]
"""What becomes of each page."""


def relation_files(
    spark: "Spark",
    address: "StoreAddress",
    relation: str,
    after: int,
    through: int,
    folder: Path,
    change: Change,
) -> list[Path]:
    """Write what belongs to the entries with `after < committed_id <= through`; returns the files.

    What else is in the folder afterwards was left by a task that failed, and is no part of them.

    Args:
        spark: Runs the tasks.
        address: The store.
        relation: The relation.
        after: The entries begin after it.
        through: The last entry.
        folder: Where the files are put.
        change: What becomes of the rows of a page.
    """
    if after >= through or not address.has_rows(relation):
        return []
    if is_read_here(spark, through - after):
        return _write_range(address, relation, IdRange(after, through), folder, change)
    ranges = id_ranges(after, through, ROWS_PER_PARTITION)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                files = _write_range(address, relation, ranges[number], folder, change)
                yield pa.RecordBatch.from_pydict({"file": pa.array(map(str, files), pa.string())})

    numbers = session_of(spark).range(0, len(ranges), 1, len(ranges))
    return [Path(row["file"]) for row in numbers.mapInArrow(write, _WRITTEN).collect()]


def files_of_pages(pages: Iterable[pa.Table], folder: Path) -> list[Path]:
    """Pages of rows as files of about equal size; a file of its own for each try."""
    files, held, rows = list[Path](), list[pa.Table](), 0

    def write() -> None:
        files.append(folder / f"{uuid4().hex}.parquet")
        batches = (batch for page in held for batch in page.to_batches())
        write_parquet(files[-1], held[0].schema, batches)
        held.clear()

    for page in pages:
        if page.num_rows:
            held.append(page)
            rows += page.num_rows
        if rows >= FILE_ROWS:
            write()
            rows = 0
    if held:
        write()
    return files


def relation_rows(address: "StoreAddress", relation: str, after: int, through: int) -> pa.Table:
    """What belongs to the entries of a range, all at once."""
    pages = [
        typed(relation, page) for page in address.related(f"{relation}_of_entries", after, through)
    ]
    return pa.concat_tables([arrow_of(relation).empty_table(), *pages])


def _write_range(
    address: "StoreAddress", relation: str, ids: IdRange, folder: Path, change: Change
) -> list[Path]:
    read = address.related(f"{relation}_of_entries", ids.after, ids.through)
    return files_of_pages((change(typed(relation, page)) for page in read), folder)
