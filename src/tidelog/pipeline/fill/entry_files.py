"""Entries as files of the table `log`, written by whoever reads them from the store.

They go from the store's driver through Arrow into Parquet, in one process: through Spark's own rows
it would take several times as long. The processes are Spark's, on as many machines as it has; a
range that is soon written is written by the driver, which takes less time than to ask for one.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.source.spark_source import (
    ROWS_PER_PARTITION,
    IdRange,
    Selection,
    id_ranges,
    is_read_here,
)
from tidelog.pipeline.tables import LOG

if TYPE_CHECKING:
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import StoreAddress

_REPEATED = ["stream", "surface", "kind", "ref", "actor"]
"""Columns with few different values: of the others a dictionary would be as large as themselves."""

_SOUGHT = ["committed_id", "committed_at", "stream", "surface"]
"""Columns by which rows are looked for: a reader skips the rows that cannot be meant."""

_WRITTEN = "file string"


def write_entries(
    spark: "Spark | None", address: "StoreAddress", after: int, through: int, folder: Path
) -> list[Path]:
    """Write the entries with `after < committed_id <= through` to a folder; returns its files.

    Without a session it is done here.

    What else is in the folder afterwards was left by a task that failed, and is no part of them.
    """
    if spark is None or is_read_here(spark, through - after):
        return [_write_range(address, IdRange(after, through), folder)]
    ranges = id_ranges(after, through, ROWS_PER_PARTITION)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                file = _write_range(address, ranges[number], folder)
                yield pa.RecordBatch.from_pydict({"file": [str(file)]})

    numbers = session_of(spark).range(0, len(ranges), 1, len(ranges))
    return [Path(row["file"]) for row in numbers.mapInArrow(write, _WRITTEN).collect()]


def _write_range(address: "StoreAddress", ids: IdRange, folder: Path) -> Path:
    """A file of its own for each try: one that was given up may still be writing."""
    columns = Selection(tuple(column.name for column in LOG.columns))
    file = folder / f"{ids.after + 1:020d}-{uuid4().hex}.parquet"
    write_parquet(
        file,
        columns.schema,
        columns.read(address, ids),
        use_dictionary=_REPEATED,
        write_statistics=_SOUGHT,
    )
    return file
