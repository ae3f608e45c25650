"""Channel messages: every version, and the newest state of each message.

An update or a delete says all of the data that it gave, and nothing of data that it kept; an append
says its fragment only. So a message is what its newest version says, and its data what the last
version that gave or cleared it said, with the fragments since then joined to it. A delete takes
nothing away by itself, and anything may follow it.
"""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.bodies import BODY_DDL, read_bodies
from tidelog.pipeline.transforms.shape import moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VISIBLE = "visible"
DELETED = "deleted"
PURGED = "purged"

_KEY = ("app_id", "channel", "message_serial")

_NEWEST = (
    "action",
    "name",
    "data_bytes",
    "extras",
    "tags",
    "creator",
    "client_id",
    "description",
    "metadata",
    "delivery_serial",
)
"""What a message takes from its newest version as it is."""


def message_versions(log: "DataFrame") -> "DataFrame":
    """Rows of `message_version` for the channel entries among some rows of `log`."""
    placed = log.filter(sql.col("surface") == "channels").select(
        "committed_id", "stream", "stream_serial", "kind", "entity", "actor", "committed_at", "body"
    )
    ddl = (
        "committed_id bigint, stream string, stream_serial bigint, kind string, entity string, "
        f"actor string, committed_at bigint, {BODY_DDL}"
    )
    return (
        placed.mapInArrow(read_bodies, ddl)
        .withColumns(
            {
                "app_id": sql.split_part("stream", sql.lit("/"), sql.lit(2)),
                "channel": sql.split_part("stream", sql.lit("/"), sql.lit(3)),
                "message_serial": sql.col("entity"),
                "delivery_serial": sql.col("stream_serial"),
                "action": sql.substring_index("kind", ".", -1),
                "committed_at": moment("committed_at"),
            }
        )
        .transform(shaped("message_version"))
    )


def fold(versions: "DataFrame", before: "DataFrame | None" = None) -> "DataFrame":
    """Rows of `message` for every message that has a version in `versions`, and for `before`.

    Nothing is `purged` yet, see `mark_purged`: the log does not tell.

    Args:
        versions: rows of `message_version`, in any order.
        before: rows of `message` that these versions follow: what the versions up to then made of
            them. So a fold costs as much as there is new, however long a message has been growing.
    """
    steps = _steps_of(versions)
    if before is not None:
        steps = steps.unionByName(_steps_before(before))
    # The hash is first among the keys because Spark sorts numbers by their bits; the texts decide.
    key = ["_hash", *_KEY]
    newer = Window.partitionBy(*key).orderBy(sql.desc("committed_id"))
    whole_steps_after = sql.sum(sql.col("_is_whole").cast("bigint")).over(
        newer.rowsBetween(Window.unboundedPreceding, -1)
    )
    counts = sql.coalesce(whole_steps_after, sql.lit(0)) == 0
    # One row of each message is the newest, so the first that is not null is the only one.
    newest = sql.first(sql.when(sql.col("_is_newest"), sql.struct(*_NEWEST)), ignorenulls=True)
    part = sql.when(
        sql.col("_counts") & sql.col("data").isNotNull(), sql.struct("committed_id", "data")
    )
    return (
        steps.withColumn("_hash", sql.xxhash64(*_KEY))
        .withColumns({"_counts": counts, "_is_newest": sql.row_number().over(newer) == 1})
        .groupBy(*key)
        .agg(
            newest.alias("_newest"),
            sql.collect_list(part).alias("_parts"),
            sql.bool_and(~sql.col("_counts") | sql.col("_is_complete")).alias("is_complete"),
            sql.max("history_serial").alias("history_serial"),
            sql.sum("_versions").alias("versions"),
            sql.sum("_appends").alias("appends"),
            sql.min("_first_committed_id").alias("first_committed_id"),
            sql.max("committed_id").alias("last_committed_id"),
            sql.min("_published_at").alias("published_at"),
            sql.max("_updated_at").alias("updated_at"),
        )
        .select("*", "_newest.*")
        .withColumns(
            {
                "state": sql.when(sql.col("action") == "delete", DELETED).otherwise(VISIBLE),
                "data": sql.when(sql.col("is_complete"), _joined(sql.col("_parts"))),
            }
        )
        .transform(shaped("message"))
    )


def _steps_of(versions: "DataFrame") -> "DataFrame":
    is_append = sql.col("action") == "append"
    # The log of an earlier schema repeats the data that a version keeps: such a version says all.
    keeps = sql.col("data").isNull() & sql.array_contains("kept", "data")
    is_whole = ~is_append & ~sql.coalesce(keeps, sql.lit(False))
    return versions.select(
        *_KEY,
        "committed_id",
        "history_serial",
        "data",
        *_NEWEST,
        is_whole.alias("_is_whole"),
        sql.col("is_available").alias("_is_complete"),
        sql.lit(1).cast("bigint").alias("_versions"),
        is_append.cast("bigint").alias("_appends"),
        sql.col("committed_id").alias("_first_committed_id"),
        sql.col("committed_at").alias("_published_at"),
        sql.col("committed_at").alias("_updated_at"),
    )


def _steps_before(messages: "DataFrame") -> "DataFrame":
    return messages.select(
        *_KEY,
        sql.col("last_committed_id").alias("committed_id"),
        "history_serial",
        "data",
        *_NEWEST,
        sql.lit(True).alias("_is_whole"),
        sql.col("is_complete").alias("_is_complete"),
        sql.col("versions").alias("_versions"),
        sql.col("appends").alias("_appends"),
        sql.col("first_committed_id").alias("_first_committed_id"),
        sql.col("published_at").alias("_published_at"),
        sql.col("updated_at").alias("_updated_at"),
    )


def _joined(parts: "Column") -> "Column":
    """One JSON text of several; of more than one, each is a string, and loses its quotes only."""
    ordered = sql.array_sort(parts)
    contents = sql.transform(
        ordered, lambda part: part["data"].substr(sql.lit(2), sql.length(part["data"]) - 2)
    )
    return (
        sql.when(sql.size(parts) == 1, sql.get(parts, 0)["data"])
        .when(
            sql.size(parts) > 1,
            sql.concat(sql.lit('"'), sql.array_join(contents, ""), sql.lit('"')),
        )
        .otherwise(sql.lit(None))
    )


def mark_purged(messages: "DataFrame", stored: "DataFrame") -> "DataFrame":
    """Rows of `message` with the state `purged` where the server has the message no more.

    Args:
        messages: rows of `message`.
        stored: the relation `channel_message`, read at or after the newest position in `messages`.
    """
    there = stored.select(
        sql.col("message").alias("first_committed_id"), sql.lit(True).alias("_is_there")
    )
    return (
        messages.join(there, "first_committed_id", "left")
        .withColumn(
            "state", sql.when(sql.col("_is_there"), sql.col("state")).otherwise(sql.lit(PURGED))
        )
        .transform(shaped("message"))
    )
