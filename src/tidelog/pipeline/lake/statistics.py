"""What a table's log says of each of its files, so that a reader need not open most of them.

Places in the log and times, and nothing else. The log of a table keeps what it said of files that
are long gone, and nothing of what is forgotten may stay in it; places and times stay anyway. All
other columns have their smallest and largest values in the files alone.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from tidelog.pipeline.tables import Table

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_PLACES = frozenset({"committed_id", "first_committed_id", "last_committed_id"})
_MILLISECOND = timedelta(milliseconds=1)


def sought_columns(table: Table) -> list[str]:
    """The columns of a table of which its log says the smallest and the largest value."""
    return [
        column.name
        for column in table.columns
        if column.kind == "timestamp" or column.name in _PLACES or column.name == "committed_at"
    ]


def statistics_of(table: Table, foot: "pq.FileMetaData") -> str:
    """What is said of a file, in the words of the Delta log, by the file's own foot."""
    lowest, highest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    names = foot.schema.names
    for name in sought_columns(table):
        number = names.index(name)
        parts = [
            foot.row_group(group).column(number).statistics for group in range(foot.num_row_groups)
        ]
        if any(part is None or not part.has_null_count for part in parts):
            continue  # the file does not tell
        full = [part for part in parts if part.num_values]
        if any(not part.has_min_max for part in full):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        if full:
            lowest[name] = _text(min(part.min for part in full))
            highest[name] = _text(max(part.max for part in full), is_upper=True)
    return orjson.dumps(
        {
            "numRecords": foot.num_rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        }
    ).decode()


def _text(value: Any, *, is_upper: bool = False) -> Any:
    """A time in milliseconds, which is as fine as all readers take it, and never too narrow."""
    if not isinstance(value, datetime):
        return value
    time = value.astimezone(UTC)
    whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
    if is_upper and whole < time:
        whole += _MILLISECOND
    return whole.strftime("%Y-%m-%dT%H:%M:%S.") + f"{whole.microsecond // 1000:03d}Z"
