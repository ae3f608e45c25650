"""Continuity: no position of the log and no serial of a stream is missing or there twice (L1, L2).

Reads the store. Pruned entries keep their position, so pruning is never a gap. What is missing at
the end of a stream leaves no gap in it; it leaves one in the log.
"""

from typing import TYPE_CHECKING

from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.finding import Verdict, first_of
from tidelog.pipeline.frames import frame_of_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = "continuity"
NEEDS = ("entries", "outside")

BUCKET = 100_000
"""Numbers that one task puts in order at once; a stream may have any number of entries."""


def check(evidence: Evidence) -> Verdict:
    """Look at the positions of all entries."""
    from pyspark.sql import functions as sql

    log = evidence.log("committed_id", "stream", "stream_serial")
    outside = evidence.relation("outside").select(
        sql.col("committed_id").alias("at"),
        sql.lit("committed_id").alias("rule"),
        sql.concat(sql.lit("entry "), sql.col("committed_id")).alias("where"),
        sql.lit("lies outside the log: before its beginning or after its head").alias("text"),
    )
    findings = breaks(log, evidence.head.committed_id).unionByName(outside)
    named, total = first_of(findings)
    return Verdict(NAME, evidence.head.committed_id, evidence.entries, named, total)


def breaks(log: "DataFrame", head: int) -> "DataFrame":
    """The gaps and duplicates among entries that should be 1 to `head`, as findings."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    series = sql.array(
        sql.struct(
            sql.lit(None).cast("string").alias("stream"), sql.col("committed_id").alias("n")
        ),
        sql.struct(sql.col("stream"), sql.col("stream_serial").alias("n")),
    )
    numbers = log.select(sql.explode(series).alias("one")).select(
        "one.stream", "one.n", sql.lit(False).alias("is_end")
    )
    ends = (
        numbers.groupBy("stream")
        .agg(sql.max("n").alias("last"))
        .unionByName(
            frame_of_rows(numbers.sparkSession, [(None, head)], "stream string, last bigint")
        )
        .groupBy("stream")
        .agg(sql.max("last").alias("last"))
        .select(
            "stream",
            "last",
            sql.explode(
                sql.sequence(sql.lit(0).cast("bigint"), sql.floor((sql.col("last") - 1) / BUCKET))
            ).alias("bucket"),
        )
        .where(sql.col("last") > 0)
        .select(
            "stream",
            (sql.least(sql.col("last"), (sql.col("bucket") + 1) * BUCKET) + 1).alias("n"),
            sql.lit(True).alias("is_end"),
        )
    )
    n = sql.col("n")
    bucket = sql.floor((n - sql.when(sql.col("is_end"), 2).otherwise(1)) / BUCKET)
    in_order = Window.partitionBy("stream", "bucket").orderBy("n", "is_end")
    before = sql.coalesce(
        sql.lag("n").over(in_order), sql.greatest(sql.col("bucket"), sql.lit(0)) * BUCKET
    )
    is_gap, is_twice = n > sql.col("before") + 1, (n <= sql.col("before")) & ~sql.col("is_end")
    return (
        numbers.unionByName(ends)
        .withColumn("bucket", bucket)
        .withColumn("before", before)
        .where(is_gap | is_twice)
        .select(
            sql.col("n").alias("at"),
            sql.when(sql.col("stream").isNull(), "committed_id")
            .otherwise("stream_serial")
            .alias("rule"),
            sql.when(sql.col("stream").isNull(), sql.concat(sql.lit("entry "), _position()))
            .otherwise(sql.concat(sql.col("stream"), sql.lit(" serial "), _position()))
            .alias("where"),
            sql.when(is_twice, sql.lit("there twice, or less than 1"))
            .otherwise(
                sql.concat(sql.lit("nothing from "), sql.col("before") + 1, sql.lit(" to "), n - 1)
            )
            .alias("text"),
        )
    )


def _position() -> "Column":
    from pyspark.sql import functions as sql

    is_gap = sql.col("n") > sql.col("before") + 1
    return sql.when(is_gap, sql.col("before") + 1).otherwise(sql.col("n")).cast("string")
