"""Rows take the place of others, in the files that hold those and in no others.

What a file may hold is told by its foot: the smallest and the largest value of a column. Tables lie
along the log, so what is new or has changed concerns few files. Of those the columns that name a
row are read, and only a file that really has one of the rows is written again.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.lake.parquet_file import write_parquet

SMALL_BYTES = 64 * 1024 * 1024
"""A file up to this size is read as a whole to be written again, in its order; a larger one goes
through in batches, and what takes the place of its rows follows in a file of its own."""

_BATCH_ROWS = 16_384
_FEET = 20_000
"""Feet of files that are remembered: files never change, they are named after what they hold."""


class Gone(NamedTuple):
    """Rows that are to go, by the values of some columns."""

    names: pa.Table
    """Those columns; the first is one that files lie along."""
    without: str = ""
    """Only rows that have no value in this column."""


class Span(NamedTuple):
    """The values of a column in a file: all lie between these; None if it has none."""

    least: Any
    most: Any
    has_nulls: bool


@lru_cache(_FEET)
def span_of(file: str, column: str) -> Span | None:
    """What the foot of a file says of a column; None if it does not tell."""
    foot = pq.read_metadata(file)
    number = foot.schema.names.index(column)
    least, most, has_nulls = None, None, False
    for at in range(foot.num_row_groups):
        group = foot.row_group(at)
        told = group.column(number).statistics
        if told is None or not told.has_null_count:
            return None
        has_nulls |= told.null_count > 0
        if told.null_count == group.num_rows:
            continue
        if not told.has_min_max:
            return None
        least = told.min if least is None else min(least, told.min)
        most = told.max if most is None else max(most, told.max)
    return Span(least, most, has_nulls)


def files_from(files: Iterable[str], column: str, value: Any) -> list[str]:
    """Those that may have rows with this value or more in a column."""
    spans = ((file, span_of(file, column)) for file in files)
    return [
        file
        for file, span in spans
        if span is None or (span.most is not None and span.most >= value)
    ]


def files_with(files: Iterable[str], column: str, values: Iterable[Any]) -> list[str]:
    """Those that may have rows with one of some values in a column."""
    wanted = sorted(set(values) - {None})
    return [file for file in files if _may_have(span_of(file, column), wanted)]


def files_in_minutes(files: Iterable[str], column: str, minutes: Iterable[datetime]) -> list[str]:
    """Those that may have rows with a time in one of some minutes."""
    wanted = sorted(minutes)

    def from_minute(span: Span | None) -> Span | None:
        if span is None or span.least is None:
            return span
        return span._replace(least=span.least.replace(second=0, microsecond=0))

    return [file for file in files if _may_have(from_minute(span_of(file, column)), wanted)]


def _may_have(span: Span | None, wanted: list[Any]) -> bool:
    if span is None:
        return bool(wanted)
    if span.least is None:
        return False
    at = bisect_left(wanted, span.least)
    return at < len(wanted) and bool(wanted[at] <= span.most)


def holding(files: Iterable[str], gone: Gone) -> dict[str, pa.Table]:
    """The files that have such a row, with the names of those they have."""
    names, found = gone.names, dict[str, pa.Table]()
    if not names.num_rows:
        return found
    if gone.without:
        spans = ((file, span_of(file, gone.without)) for file in files)
        candidates = [file for file, span in spans if span is None or span.has_nulls]
    else:
        candidates = files_with(files, names.column_names[0], names[0].to_pylist())
    columns = [*names.column_names, *([gone.without] if gone.without else [])]
    for file in candidates:
        stored = _among(pq.read_table(file, columns=columns), gone)
        held = common(names, stored.select(names.column_names))
        if held.num_rows:
            found[file] = held
    return found


def common(rows: pa.Table, names: pa.Table) -> pa.Table:
    """Those of some rows whose columns of these names have values that are in `names`."""
    return _joined(rows, names, "left semi")


def others(rows: pa.Table, names: pa.Table) -> pa.Table:
    """The rest of them."""
    return _joined(rows, names, "left anti")


def _joined(rows: pa.Table, names: pa.Table, how: str) -> pa.Table:
    """Joined by the names alone: Arrow joins no rows with lists, and keeps no order."""
    if not rows.num_rows or not names.num_rows:
        return rows.slice(0, 0 if how == "left semi" else None)
    keys = rows.select(names.column_names)
    names = names.cast(pa.schema([keys.schema.field(name) for name in names.column_names]))
    numbered = keys.append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    found = numbered.join(names, names.column_names, join_type=how)["_row"].combine_chunks()
    return rows.take(found.sort())


def rewritten(
    file: str,
    gone: Sequence[Gone],
    instead: pa.Table,
    order: str,
    folder: Path,
) -> list[Path]:
    """A file without certain rows and with others; returns the files that it is now.

    Args:
        file: The file.
        gone: The rows that go.
        instead: The rows that come, with all columns of the table.
        order: The column along which the rows lie.
        folder: Where the new files are put.
    """
    schema = instead.schema
    if Path(file).stat().st_size <= SMALL_BYTES:
        kept = _kept(pq.read_table(file, columns=schema.names).cast(schema), gone)
        return written(pa.concat_tables([kept, instead]), order, folder)
    target = folder / f"{uuid4().hex}.parquet"
    write_parquet(target, schema, _batches_kept(file, gone, schema))
    return [target, *written(instead, order, folder)]


def written(rows: pa.Table, order: str, folder: Path, most: int | None = None) -> list[Path]:
    """Rows as files of a folder, in their order and with at most so many rows; none for none."""
    files = []
    rows = rows.sort_by(order)
    size = most or max(1, rows.num_rows)
    for begin in range(0, rows.num_rows, size):
        files.append(folder / f"{uuid4().hex}.parquet")
        part = rows.slice(begin, size).to_batches(max_chunksize=_BATCH_ROWS)
        write_parquet(files[-1], rows.schema, part)
    return files


def _batches_kept(file: str, gone: Sequence[Gone], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as stored:
        for batch in stored.iter_batches(_BATCH_ROWS, columns=schema.names):
            yield from _kept(pa.Table.from_batches([batch]).cast(schema), gone).to_batches()


def _kept(rows: pa.Table, gone: Sequence[Gone]) -> pa.Table:
    for each in gone:
        if each.without:
            has_value = pc.is_valid(rows[each.without])
            free = rows.filter(has_value)
            rows = pa.concat_tables([free, others(_among(rows, each), each.names)])
        else:
            rows = others(rows, each.names)
    return rows


def _among(rows: pa.Table, gone: Gone) -> pa.Table:
    """The rows that may be meant."""
    return rows.filter(pc.is_null(rows[gone.without])) if gone.without else rows
