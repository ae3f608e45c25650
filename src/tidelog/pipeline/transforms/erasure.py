"""Taking the content away from rows of what was forgotten; places, times and digests stay.

A forgotten row is as if its body had been pruned before it was ingested, so a table that was
erased in place equals one that is built from the erased log.
"""

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sql

from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame


class _Place(NamedTuple):
    """How the rows of a table tell what they are of."""

    stream: "Callable[[], Column]"
    entity: str
    position: str = "committed_id"
    """Column with the position that is compared with where the forgetting begins."""


def _channel_stream() -> "Column":
    return sql.concat_ws("/", sql.lit("channels"), "app_id", "channel")


_PLACES = {
    "log": _Place(lambda: sql.col("stream"), "entity"),
    "message_version": _Place(_channel_stream, "message_serial"),
    "message": _Place(_channel_stream, "message_serial", "last_committed_id"),
    "changes": _Place(lambda: sql.col("stream"), "entity"),
    "event": _Place(lambda: sql.lit("sync"), "event_id"),
    "send": _Place(lambda: sql.concat_ws("/", sql.lit("mesh"), "mesh_id"), "broker_message_id"),
}


def forgotten_rows(name: str, rows: "DataFrame", forgotten: "DataFrame") -> "DataFrame":
    """Those of some rows of a table that have content which is to be forgotten."""
    table = BY_NAME[name]
    has_content = sql.coalesce(*(sql.col(column).cast("string") for column in table.content))
    if flag := table.content_flag:
        has_content = sql.when(sql.col(flag), sql.lit("")).otherwise(has_content)
    return (
        _marked(_PLACES[name], rows, forgotten)
        .where(sql.col("_forgotten_from").isNotNull() & has_content.isNotNull())
        .drop("_forgotten_from")
    )


def erased(name: str, rows: "DataFrame", forgotten: "DataFrame") -> "DataFrame":
    """Some rows of a table, without the content that is forgotten.

    Args:
        name: The table.
        rows: Rows of it.
        forgotten: Rows of the table `forgotten`.
    """
    table = BY_NAME[name]
    is_forgotten = sql.col("_forgotten_from").isNotNull()
    new = {
        column: sql.when(~is_forgotten, sql.col(column)).otherwise(sql.lit(None))
        for column in table.content
    }
    if flag := table.content_flag:
        new[flag] = sql.col(flag) & ~is_forgotten
    if name == "message":
        # Its place in the history is known from any version that is left.
        is_whole = is_forgotten & (sql.col("first_committed_id") >= sql.col("_forgotten_from"))
        new["history_serial"] = sql.when(~is_whole, sql.col("history_serial"))
    marked = _marked(_PLACES[name], rows, forgotten).withColumns(new)
    return marked.select(*(column.name for column in table.columns))


def _marked(place: _Place, rows: "DataFrame", forgotten: "DataFrame") -> "DataFrame":
    """Rows with the column `_forgotten_from`, null where nothing is to be forgotten."""
    listed = forgotten.select(
        sql.col("stream").alias("_stream"),
        sql.col("entity").alias("_entity"),
        sql.col("first_committed_id").alias("_forgotten_from"),
    )
    fits = (
        (place.stream() == sql.col("_stream"))
        & (sql.col(place.entity) == sql.col("_entity"))
        & (sql.col(place.position) >= sql.col("_forgotten_from"))
    )
    return rows.join(listed, fits, "left").drop("_stream", "_entity")
