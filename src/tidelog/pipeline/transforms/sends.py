"""Messages that the broker of a mesh accepted, and what is known of them beside the log."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.shape import moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_META = ',"meta":'
"""What stands before the sender's own JSON, which is last. No text before it can hold this mark:
its quotes are escaped."""

_HEAD = (
    "client_message_id string, sender_name string, priority string, reply_to_id string, "
    "supersedes string, mentions array<string>"
)


def head_of(body: "Column") -> "Column":
    """What the broker wrote into a stored body, without the sender's `meta`: a struct."""
    text = body.cast("string")
    mark = sql.locate(_META, text)
    head = sql.when(mark > 0, sql.concat(text.substr(sql.lit(1), mark - 1), sql.lit("}")))
    return sql.from_json(head.otherwise(text), _HEAD)


def _meta_of(body: "Column") -> "Column":
    text = body.cast("string")
    begin = sql.locate(_META, text) + len(_META)
    return sql.when(begin > len(_META), text.substr(begin, sql.length(text) - begin))


def sends(log: "DataFrame", tombstones: "DataFrame") -> "DataFrame":
    """Rows of `send` for the mesh entries among some rows of `log`.

    Args:
        log: rows of `log`.
        tombstones: the relation `tombstone`.
    """
    is_here = sql.col("body").isNotNull()
    return (
        log.filter((sql.col("surface") == "mesh") & sql.col("kind").startswith("send."))
        .select(
            "committed_id",
            sql.substring_index("stream", "/", -1).alias("mesh_id"),
            sql.col("stream_serial").alias("history_id"),
            sql.col("entity").alias("broker_message_id"),
            sql.substring_index("kind", ".", -1).alias("destination_kind"),
            sql.col("ref").alias("destination_ref"),
            sql.col("actor").alias("sender_member_id"),
            moment("committed_at").alias("committed_at"),
            head_of(sql.col("body")).alias("_head"),
            _meta_of(sql.col("body")).alias("meta"),
            sql.col("data").alias("content"),
            sql.when(is_here, sql.coalesce(sql.octet_length("data"), sql.lit(0))).alias(
                "content_bytes"
            ),
        )
        .select("*", "_head.*")
        .withColumn(
            "mentions",
            sql.when(sql.col("_head").isNotNull(), sql.coalesce("mentions", sql.array())),
        )
        .join(_ends(tombstones), "broker_message_id", "left")
        .transform(shaped("send"))
    )


def newly_ended(known: pa.Table, tombstones: pa.Table) -> pa.Table:
    """Rows of `send` that retention took, as they are now, over Arrow."""
    at = pc.index_in(known["broker_message_id"], tombstones["broker_message_id"])
    ended = {
        "deleted_at": pc.cast(
            pc.multiply(pc.take(tombstones["deleted_at"], at), 1000), pa.timestamp("us", "UTC")
        ),
        "deleted_reason": pc.take(tombstones["reason"], at),
    }
    for name, column in ended.items():
        number = known.column_names.index(name)
        known = known.set_column(number, known.schema.field(name), column)
    return known


def _ends(tombstones: "DataFrame") -> "DataFrame":
    return tombstones.select(
        "broker_message_id",
        moment("deleted_at").alias("deleted_at"),
        sql.col("reason").alias("deleted_reason"),
    )


def deliveries(stored: "DataFrame") -> "DataFrame":
    """Rows of `delivery`: the relation of that name, without leases, which end within seconds."""
    is_leased = sql.col("status") == "claimed"
    return stored.withColumns(
        {
            "status": sql.when(is_leased, "pending").otherwise(sql.col("status")),
            "attempts": sql.col("attempts") - is_leased.cast("bigint"),
            "created_at": moment("created_at"),
            "delivered_at": moment("delivered_at"),
        }
    ).transform(shaped("delivery"))


def mentions(stored: "DataFrame") -> "DataFrame":
    """Rows of `mention`: the relation of that name."""
    return stored.withColumn("created_at", moment("created_at")).transform(shaped("mention"))


def remembered_keys(stored: "DataFrame") -> "DataFrame":
    """Rows of `dedupe`: the relation of that name."""
    return stored.withColumns(
        {
            "is_available": sql.col("available") == 1,
            "first_seen_at": moment("first_seen_at"),
            "expires_at": moment("expires_at"),
        }
    ).transform(shaped("dedupe"))
