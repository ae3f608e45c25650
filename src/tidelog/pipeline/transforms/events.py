"""Sync events, one row for each of their partitions."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.shape import moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITIONS = ',"partitions":['
_EVENT = '],"event":'
"""What stands before the parts of a stored body. No text before them can hold these marks: its
quotes are escaped. So the event is cut out as it was sent, whatever it holds."""


def events(log: "DataFrame", index: "DataFrame | None" = None) -> "DataFrame":
    """Rows of `event` for the sync entries among some rows of `log`.

    Args:
        log: rows of `log`.
        index: the relation `sync_event_partition`, which tells the partitions of entries whose
            body is gone; nothing else does, and without it they have no rows.
    """
    text = sql.col("_text")
    begin = sql.locate(_PARTITIONS, text) + len(_PARTITIONS) - 1
    mark = sql.locate(_EVENT, text)
    partitions = sql.from_json(text.substr(begin, mark - begin + 1), "array<string>")
    event_begin = mark + len(_EVENT)
    entries = log.filter(sql.col("surface") == "sync").select(
        "committed_id",
        moment("committed_at").alias("committed_at"),
        sql.col("entity").alias("event_id"),
        sql.col("actor").alias("client_id"),
        sql.col("kind").alias("type"),
        sql.col("body").cast("string").alias("_text"),
    )
    found = (
        entries.filter(text.isNotNull())
        .withColumns(
            {
                "event": text.substr(event_begin, sql.length(text) - event_begin),
                "partition": sql.explode(partitions),
            }
        )
        .transform(shaped("event"))
    )
    if index is None:
        return found
    gone = (
        entries.filter(text.isNull())
        .join(index.select("committed_id", "partition"), "committed_id")
        .withColumn("event", sql.lit(None))
        .transform(shaped("event"))
    )
    return found.unionByName(gone)


def forgotten_index(log: "DataFrame", forgotten: "DataFrame") -> "DataFrame":
    """Which of some rows of `log` are events that were forgotten, and in which partitions.

    It tells the partitions of an event also when its store does so no more: rows like those of
    `sync_event_partition`.
    """
    gone = forgotten.filter(sql.col("stream") == "sync").select(
        "entity", sql.explode("partitions").alias("partition")
    )
    return without_body(log).join(gone, "entity").select("partition", "committed_id")


def without_body(log: "DataFrame") -> "DataFrame":
    """The sync entries among some rows of `log` whose partitions only the index tells."""
    return log.filter((sql.col("surface") == "sync") & sql.col("body").isNull())
