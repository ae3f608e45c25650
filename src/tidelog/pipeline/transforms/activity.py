"""What happened where, minute by minute."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.shape import minute_of, moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE_MS = 60_000


def activity(log: "DataFrame") -> "DataFrame":
    """Rows of `activity` for the streams and minutes among some rows of `log`."""
    size = sql.coalesce(sql.octet_length("body"), sql.lit(0)) + sql.coalesce(
        sql.octet_length("data"), sql.lit(0)
    )
    minute = ("stream", "minute")
    return (
        log.select(
            "stream",
            "surface",
            "actor",
            minute_of(moment("committed_at")).alias("minute"),
            size.cast("bigint").alias("bytes"),
        )
        .groupBy(*minute, "surface", "actor")
        .agg(sql.count("*").alias("writes"), sql.sum("bytes").alias("bytes"))
        .groupBy(*minute, "surface")
        .agg(
            sql.sum("writes").alias("writes"),
            sql.sum("bytes").alias("bytes"),
            sql.count("actor").alias("actors"),
        )
        .transform(shaped("activity"))
    )
