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


class _Content(NamedTuple):
    """Where the content of a table is."""

    stream: "Callable[[], Column]"
    entity: str
    position: str
    """Column with the position that is compared with where the forgetting begins."""
    cleared: tuple[str, ...]
    """Columns that become null."""
    flag: str | None = None
    """Column that says whether the content is here; it becomes false."""


def _channel_stream() -> "Column":
    return sql.concat_ws("/", sql.lit("channels"), "app_id", "channel")


_BODY = (
    "name",
    "data",
    "data_bytes",
    "extras",
    "tags",
    "creator",
    "client_id",
    "description",
    "metadata",
)

_CONTENT = {
    "log": _Content(lambda: sql.col("stream"), "entity", "committed_id", ("body", "data")),
    "message_version": _Content(
        _channel_stream,
        "message_serial",
        "committed_id",
        (*_BODY, "history_serial", "message_id", "op_id", "kept", "cleared"),
        "is_available",
    ),
    "message": _Content(
        _channel_stream, "message_serial", "last_committed_id", _BODY, "is_complete"
    ),
    "changes": _Content(lambda: sql.col("stream"), "entity", "committed_id", ("change", "content")),
    "event": _Content(lambda: sql.lit("sync"), "event_id", "committed_id", ("event",)),
    "send": _Content(
        lambda: sql.concat_ws("/", sql.lit("mesh"), "mesh_id"),
        "broker_message_id",
        "committed_id",
        (
            "client_message_id",
            "sender_name",
            "priority",
            "reply_to_id",
            "supersedes",
            "mentions",
            "meta",
            "content",
            "content_bytes",
        ),
    ),
}

TABLES_WITH_CONTENT = tuple(_CONTENT)
"""In the order in which they are erased: what others are built from comes first."""


def forgotten_rows(name: str, rows: "DataFrame", forgotten: "DataFrame") -> "DataFrame":
    """Those of some rows of a table that have content which is to be forgotten."""
    content = _CONTENT[name]
    has_content = sql.coalesce(*(sql.col(column).cast("string") for column in content.cleared))
    if content.flag is not None:
        has_content = sql.when(sql.col(content.flag), sql.lit("")).otherwise(has_content)
    return (
        _marked(content, rows, forgotten)
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
    content = _CONTENT[name]
    is_forgotten = sql.col("_forgotten_from").isNotNull()
    new = {
        column: sql.when(~is_forgotten, sql.col(column)).otherwise(sql.lit(None))
        for column in content.cleared
    }
    if content.flag is not None:
        new[content.flag] = sql.col(content.flag) & ~is_forgotten
    if name == "message":
        # Its place in the history is known from any version that is left.
        is_whole = is_forgotten & (sql.col("first_committed_id") >= sql.col("_forgotten_from"))
        new["history_serial"] = sql.when(~is_whole, sql.col("history_serial"))
    marked = _marked(content, rows, forgotten).withColumns(new)
    return marked.select(*(column.name for column in BY_NAME[name].columns))


def _marked(content: _Content, rows: "DataFrame", forgotten: "DataFrame") -> "DataFrame":
    """Rows with the column `_forgotten_from`, null where nothing is to be forgotten."""
    listed = forgotten.select(
        sql.col("stream").alias("_stream"),
        sql.col("entity").alias("_entity"),
        sql.col("first_committed_id").alias("_forgotten_from"),
    )
    fits = (
        (content.stream() == sql.col("_stream"))
        & (sql.col(content.entity) == sql.col("_entity"))
        & (sql.col(content.position) >= sql.col("_forgotten_from"))
    )
    return rows.join(listed, fits, "left").drop("_stream", "_entity")
