"""Continuity: no position of the log and no serial of a stream is missing or there twice (L1, L2).

Reads the store. Pruned entries keep their position, so pruning is never a gap. What is missing at
the end of a stream leaves no gap in it; it leaves one in the log. A stream goes on in a range where
it was before it: the store is asked for the last serial before the first one in the range.
"""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.finding import Verdict, first_of
from tidelog.pipeline.frames import frame_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from tidelog.pipeline.checks.extent import Range

NAME = "continuity"

BUCKET = 100_000
"""Numbers that one task puts in order at once; a stream may have any number of entries."""

_COLUMNS = ("committed_id", "stream", "stream_serial")


def check(evidence: Evidence, ranges: "Sequence[Range]") -> Verdict:
    """Look at the positions of the entries of ranges."""
    from pyspark.sql import functions as sql

    head = evidence.head.committed_id
    examined = sum(evidence.entries(each) for each in ranges)
    outside = evidence.outside
    found = []
    for each in ranges:
        if not outside and _is_gapless(evidence, each):
            continue
        log = evidence.log(*_COLUMNS, ranges=[each])
        found.append(breaks(log, each, streams_before(evidence, each, log)))
    if outside:
        rows = frame_of_rows(evidence.spark, [(at,) for at in outside], "committed_id bigint")
        found.append(
            rows.select(
                sql.col("committed_id").alias("at"),
                sql.lit("committed_id").alias("rule"),
                sql.concat(sql.lit("entry "), sql.col("committed_id")).alias("where"),
                sql.lit("lies outside the log: before its beginning or after its head").alias(
                    "text"
                ),
            )
        )
    if not found:
        return Verdict(NAME, head, examined, ranges=tuple(ranges))
    findings = found[0]
    for more in found[1:]:
        findings = findings.unionByName(more)
    named, total = first_of(findings)
    return Verdict(NAME, head, examined, named, total, ranges=tuple(ranges))


def _is_gapless(evidence: Evidence, wanted: "Range") -> bool:
    """Whether a range that is in memory has no gap, told without Spark."""
    if evidence.log_files:
        return False
    [*tables] = evidence.log_tables([wanted], _COLUMNS)
    log = pa.concat_tables(tables)
    if log.num_rows != wanted.entries or pc.count_distinct(log["committed_id"]).as_py() != len(log):
        return False
    streams = log.group_by("stream").aggregate(
        [
            ("stream_serial", "min"),
            ("stream_serial", "max"),
            ("stream_serial", "count"),
            ("stream_serial", "count_distinct"),
        ]
    )
    many = pc.add(
        pc.subtract(streams["stream_serial_max"], streams["stream_serial_min"]), pa.scalar(1)
    )
    if not (
        pc.all(pc.equal(many, streams["stream_serial_count"])).as_py()
        and pc.all(pc.equal(many, streams["stream_serial_count_distinct"])).as_py()
    ):
        return False
    first = dict(
        zip(streams["stream"].to_pylist(), streams["stream_serial_min"].to_pylist(), strict=True)
    )
    before = evidence.serials_before(first.items(), wanted.after) if wanted.after else {}
    return all(serial == before.get(stream, 0) + 1 for stream, serial in first.items())


def streams_before(evidence: Evidence, wanted: "Range", log: "DataFrame") -> "DataFrame | None":
    """Where each stream of some entries was before a range; None at the beginning of the log.

    Returns:
        Rows of `stream` and `before`, its last serial.
    """
    if not wanted.after:
        return None
    first = log.groupBy("stream").agg({"stream_serial": "min"}).collect()
    before = evidence.serials_before(((row[0], row[1]) for row in first), wanted.after)
    return frame_of_rows(evidence.spark, list(before.items()), "stream string, before bigint")


def breaks(log: "DataFrame", wanted: "Range", before: "DataFrame | None" = None) -> "DataFrame":
    """The gaps and duplicates among entries that should be those of a range, as findings.

    Args:
        log: The entries.
        wanted: The range.
        before: `stream` and `before`, the last serial of each stream before the range; 0 if None.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    begin = wanted.after
    if before is None:
        log = log.withColumn("base", sql.lit(0).cast("bigint"))
    else:
        log = log.join(sql.broadcast(before.withColumnRenamed("before", "base")), "stream")
    at = sql.col("committed_id").alias("position")
    series = sql.array(
        sql.struct(
            sql.lit(None).cast("string").alias("stream"),
            (sql.col("committed_id") - begin).alias("n"),
            sql.lit(begin).cast("bigint").alias("base"),
            at,
        ),
        sql.struct(
            sql.col("stream"), (sql.col("stream_serial") - sql.col("base")).alias("n"), "base", at
        ),
    )
    numbers = log.select(sql.explode(series).alias("one")).select(
        "one.stream", "one.n", "one.base", "one.position", sql.lit(False).alias("is_end")
    )
    length = [(None, wanted.entries, begin, wanted.through)]
    ends = (
        numbers.groupBy("stream", "base")
        .agg(sql.max("n").alias("last"), sql.max("position").alias("position"))
        .unionByName(
            frame_of_rows(
                numbers.sparkSession,
                length,
                "stream string, last bigint, base bigint, position bigint",
            )
        )
        .groupBy("stream", "base")
        .agg(sql.max("last").alias("last"), sql.max("position").alias("position"))
        .where(sql.col("last") > 0)
        .select(
            "stream",
            "base",
            "last",
            "position",
            sql.explode(
                sql.sequence(sql.lit(0).cast("bigint"), sql.floor((sql.col("last") - 1) / BUCKET))
            ).alias("bucket"),
        )
        .select(
            "stream",
            (sql.least(sql.col("last"), (sql.col("bucket") + 1) * BUCKET) + 1).alias("n"),
            "base",
            "position",
            sql.lit(True).alias("is_end"),
        )
    )
    n = sql.col("n")
    bucket = sql.floor((n - sql.when(sql.col("is_end"), 2).otherwise(1)) / BUCKET)
    in_order = Window.partitionBy("stream", "bucket").orderBy("n", "is_end")
    previous = sql.coalesce(
        sql.lag("n").over(in_order), sql.greatest(sql.col("bucket"), sql.lit(0)) * BUCKET
    )
    is_gap, is_twice = n > sql.col("before") + 1, (n <= sql.col("before")) & ~sql.col("is_end")
    first, last = sql.col("before") + 1 + sql.col("base"), n - 1 + sql.col("base")
    return (
        numbers.unionByName(ends)
        .withColumn("bucket", bucket)
        .withColumn("before", previous)
        .where(is_gap | is_twice)
        .select(
            sql.when(sql.col("stream").isNull(), _place())
            .otherwise(sql.col("position"))
            .alias("at"),
            sql.when(sql.col("stream").isNull(), "committed_id")
            .otherwise("stream_serial")
            .alias("rule"),
            sql.when(
                sql.col("stream").isNull(), sql.concat(sql.lit("entry "), _place().cast("string"))
            )
            .otherwise(sql.concat(sql.col("stream"), sql.lit(" serial "), _place().cast("string")))
            .alias("where"),
            sql.when(is_twice, sql.lit("there twice, or less than 1"))
            .otherwise(sql.concat(sql.lit("nothing from "), first, sql.lit(" to "), last))
            .alias("text"),
        )
    )


def _place() -> "Column":
    """The first number that is missing, or the one that is there twice."""
    from pyspark.sql import functions as sql

    is_gap = sql.col("n") > sql.col("before") + 1
    place = sql.when(is_gap, sql.col("before") + 1).otherwise(sql.col("n"))
    return place + sql.col("base")
