"""Files of tables whose rows are made of single entries: `message_version`, `audit`, `changes`.

A task reads a range of the files of `log` and writes a file. Nothing goes through Spark's own rows,
which would take several times as long; and a short range is read and written here, without Spark.

Rows of `message_version` are sorted by channel: who asks for one channel reads a few row groups.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from tidelog.pipeline.fill.position_ranges import Range, groups_of, planned
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake.parquet_file import SORTED_BYTES, SORTED_ROWS, write_parquet
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.source.spark_source import is_read_here
from tidelog.pipeline.tables import BY_NAME
from tidelog.pipeline.transforms import audit_rows, change_rows, version_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.pipeline.lazy_spark import Spark

READ_ROWS = 16_384
"""Entries that are read at once: each is some objects of Python for a moment."""


class RowsOf(NamedTuple):
    """How rows of a table are made of entries."""

    columns: tuple[str, ...]
    """Of `log`, that they are made of."""
    make: "Callable[[pa.Table], pa.Table]"
    """Makes them."""
    repeated: tuple[str, ...]
    """Columns with few different values: of the others a dictionary would be as large as they."""
    surface: str = ""
    """Whose entries they are made of; of all, if it is empty."""


ROWS = {
    "message_version": RowsOf(
        version_rows.ENTRY,
        version_rows.versions_of,
        ("app_id", "channel", "action", "actor", "client_id", "creator", "name"),
        "channels",
    ),
    "audit": RowsOf(
        audit_rows.ENTRY,
        audit_rows.audit_of,
        ("surface", "stream", "actor", "action", "ref"),
    ),
    "changes": RowsOf(
        change_rows.ENTRY,
        change_rows.changes_of,
        ("surface", "stream", "kind", "ref", "actor"),
    ),
}
"""By table."""


def write_rows(
    spark: "Spark", name: str, log: Sequence[str], after: int, through: int, folder: Path
) -> list[Path]:
    """Write rows of entries with `after < committed_id <= through` to a folder; returns its files.

    What else is in the folder afterwards was left by a task that failed, and is no part of them.

    Args:
        spark: Runs the tasks.
        name: One of `ROWS`.
        log: Files of `log`.
        after: The entries begin after it.
        through: The last entry.
        folder: Where the files are put.
    """
    groups = [each for each in groups_of(log) if each.last > after and each.first <= through]
    ranges = [
        Range(max(each.after, after), min(each.through, through), each.files)
        for each in planned(groups, SORTED_ROWS, SORTED_BYTES)
    ]
    if not ranges or is_read_here(spark, through - after):
        return [_write_range(name, each, folder) for each in ranges]

    def write(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                file = _write_range(name, ranges[number], folder)
                yield pa.RecordBatch.from_pydict({"file": [str(file)]})

    numbers = session_of(spark).range(0, len(ranges), 1, len(ranges))
    return [Path(row["file"]) for row in numbers.mapInArrow(write, "file string").collect()]


def _write_range(name: str, ids: Range, folder: Path) -> Path:
    """A file of its own for each try: one that was given up may still be writing."""
    file, table = folder / f"{ids.after + 1:020d}-{uuid4().hex}.parquet", BY_NAME[name]
    write_parquet(
        file,
        arrow_schema(table),
        _rows(ROWS[name], ids),
        table.sorted_by,
        use_dictionary=list(ROWS[name].repeated),
    )
    return file


def _rows(made: RowsOf, ids: Range) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    from pyarrow.dataset import dataset, field

    place = field("committed_id")
    wanted = (place > ids.after) & (place <= ids.through)
    if made.surface:
        wanted &= field("surface") == made.surface
    entries = dataset(list(ids.files), format="parquet").to_batches(
        columns=list(made.columns), filter=wanted, batch_size=READ_ROWS
    )
    for batch in entries:
        yield from made.make(pa.Table.from_batches([batch])).to_batches()
