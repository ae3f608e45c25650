"""What happened where, minute by minute, over Arrow tables.

Counts of a minute are added up: those that are known, and those of the entries that came since.
Only the number of different actors is not, so whoever has been there before is told beside.

The same is written once more for Spark, in `activity`: a full check compares what both make.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.channels.protocol.verbs import kind_of
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.tables import ACTION_COUNTS, BY_NAME
from tidelog.pipeline.transforms.entry_columns import moments

MINUTE_MS = 60_000

ENTRY = ("stream", "surface", "actor", "kind", "committed_at", "body", "data")
"""The columns of `log` that a row is made of."""

ACTORS = ("stream", "surface", "minute", "actor")
"""What tells who was where."""

_KEY = ("stream", "surface", "minute")
_COUNTS = ("writes", "bytes", *ACTION_COUNTS)


def counted(entries: pa.Table) -> pa.Table:
    """What entries add to the counts of each actor in each minute: `ACTORS` and the counts."""
    size = pc.add(_length(entries["body"]), _length(entries["data"]))
    kinds = {
        column: pc.cast(pc.equal(entries["kind"], kind_of(verb)), pa.int64())
        for column, verb in ACTION_COUNTS.items()
    }
    rows = pa.table(
        {
            "stream": entries["stream"],
            "surface": entries["surface"],
            "minute": _minutes(entries["committed_at"]),
            "actor": entries["actor"],
            "writes": pa.repeat(pa.scalar(1, pa.int64()), len(entries)),
            "bytes": size,
            **kinds,
        }
    )
    return _summed(rows, ACTORS)


def actors_of(entries: pa.Table) -> pa.Table:
    """Who was where among some entries, each once."""
    rows = pa.table(
        {
            "stream": entries["stream"],
            "surface": entries["surface"],
            "minute": _minutes(entries["committed_at"]),
            "actor": entries["actor"],
        }
    )
    return rows.group_by(list(ACTORS)).aggregate([]).select(list(ACTORS))


def activity_of(
    parts: Iterable[pa.Table], known: pa.Table | None = None, before: pa.Table | None = None
) -> pa.Table:
    """Rows of `activity` for the streams and minutes of some counts.

    Args:
        parts: What `counted` returns.
        known: Rows of `activity` for the same streams and minutes that entries before these made.
        before: Who was where in the entries of these minutes before these.
    """
    schema = arrow_schema(BY_NAME["activity"])
    made = [*parts]
    if not made:
        return schema.empty_table()
    new = _summed(pa.concat_tables(made), ACTORS)
    counts = _summed(new, _KEY)
    actors = new.select(list(ACTORS))
    if before is not None:
        actors = pa.concat_tables([actors, before.select(list(ACTORS)).cast(actors.schema)])
    if known is not None:
        counts = pa.concat_tables([counts, known.select(counts.column_names).cast(counts.schema)])
        counts = _summed(counts, _KEY)
    actors = actors.group_by(list(ACTORS)).aggregate([])
    number = actors.group_by(list(_KEY)).aggregate([([], "count_all")])
    number = number.rename_columns({"count_all": "actors"})
    whole = counts.join(number, list(_KEY), join_type="left outer")
    return whole.select(schema.names).cast(schema)


def _length(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.cast(pc.binary_length(values), pa.int64()), 0)


def _minutes(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """The begin of the minute of each time; times of the log are after 1970."""
    whole = pc.cast(milliseconds, pa.int64())
    return moments(pc.multiply(pc.divide(whole, MINUTE_MS), MINUTE_MS))


def _summed(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    sums = rows.group_by(list(key)).aggregate([(name, "sum") for name in _COUNTS])
    sums = sums.rename_columns({f"{name}_sum": name for name in _COUNTS})
    return sums.select([*key, *_COUNTS])
