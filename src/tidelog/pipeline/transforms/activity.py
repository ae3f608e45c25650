"""What happened where, minute by minute."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.channels.protocol.verbs import kind_of
from tidelog.pipeline.tables import ACTION_COUNTS
from tidelog.pipeline.transforms.shape import minute_of, moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_MS = 60_000


def activity(log: "DataFrame") -> "DataFrame":
    """Rows of `activity` for the streams and minutes among some rows of `log`."""
    size = sql.coalesce(sql.octet_length("body"), sql.lit(0)) + sql.coalesce(
        sql.octet_length("data"), sql.lit(0)
    )
    minute = ("stream", "minute")
    counts = {
        column: (sql.col("kind") == kind_of(verb)).cast("bigint")
        for column, verb in ACTION_COUNTS.items()
    }
    return (
        log.select(
            "stream",
            "surface",
            "actor",
            minute_of(moment("committed_at")).alias("minute"),
            size.cast("bigint").alias("bytes"),
            *(count.alias(column) for column, count in counts.items()),
        )
        .groupBy(*minute, "surface", "actor")
        .agg(sql.count("*").alias("writes"), *_sums("bytes", *counts))
        .groupBy(*minute, "surface")
        .agg(
            *_sums("writes", "bytes", *counts),
            sql.count("actor").alias("actors"),
        )
        .transform(shaped("activity"))
    )


def _sums(*columns: str) -> "list[Column]":
    return [sql.sum(column).alias(column) for column in columns]
