"""Files of the table `message_version`, made of the files of `log` by whoever reads them.

A task reads a range of the log and writes a file, whose rows are sorted by channel: who asks for
one channel reads a few row groups of it. Nothing goes through Spark's own rows, which would take
several times as long.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tidelog.pipeline.fill.position_ranges import Range, groups_of, planned
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake.parquet_file import SORTED_BYTES, SORTED_ROWS, write_parquet
from tidelog.pipeline.source.spark_source import is_read_here
from tidelog.pipeline.tables import MESSAGE_VERSION
from tidelog.pipeline.transforms.version_rows import ENTRY, versions_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_READ_ROWS = 16_384
"""Entries that are read at once: each is some objects of Python for a moment."""

_REPEATED = ["app_id", "channel", "action", "actor", "client_id", "creator", "name"]
"""Columns with few different values: of the others a dictionary would be as large as themselves."""


def write_versions(
    spark: "SparkSession", log: Sequence[str], after: int, through: int, folder: Path
) -> list[Path]:
    """Write the versions with `after < committed_id <= through` to a folder; returns its files.

    What else is in the folder afterwards was left by a task that failed, and is no part of them.
    """
    groups = [each for each in groups_of(log) if each.last > after and each.first <= through]
    ranges = [
        Range(max(each.after, after), min(each.through, through), each.files)
        for each in planned(groups, SORTED_ROWS, SORTED_BYTES)
    ]
    if not ranges or is_read_here(spark, through - after):
        return [_write_range(each, folder) for each in ranges]

    def write(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                file = _write_range(ranges[number], folder)
                yield pa.RecordBatch.from_pydict({"file": [str(file)]})

    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return [Path(row["file"]) for row in numbers.mapInArrow(write, "file string").collect()]


def _write_range(ids: Range, folder: Path) -> Path:
    """A file of its own for each try: one that was given up may still be writing."""
    file = folder / f"{ids.after + 1:020d}-{uuid4().hex}.parquet"
    write_parquet(
        file,
        arrow_schema(MESSAGE_VERSION),
        _versions(ids),
        MESSAGE_VERSION.sorted_by,
        use_dictionary=_REPEATED,
    )
    return file


def _versions(ids: Range) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    from pyarrow.dataset import dataset, field

    place = field("committed_id")
    entries = dataset(list(ids.files), format="parquet").to_batches(
        columns=list(ENTRY),
        filter=(place > ids.after) & (place <= ids.through) & (field("surface") == "channels"),
        batch_size=_READ_ROWS,
    )
    for batch in entries:
        yield from versions_of(pa.Table.from_batches([batch])).to_batches()
