"""Retention: no event of sync goes before each of its partitions has a snapshot beyond it.

Reads the store. The server decides by its index of partitions; here the partitions that an event
itself names count as well. What is pruned must be in the archive, which sync reads too (sync D57).

Whether an event is pruned and archived is read in one moment, and the snapshots after that: they
only ever go on, so what was covered then is covered now.
"""

from hashlib import blake2b
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from tidelog.pipeline.checks.evidence import Evidence, within
from tidelog.pipeline.checks.finding import (
    FINDING_DDL,
    FIRST_FINDINGS,
    Finding,
    Verdict,
    first_of,
)
from tidelog.pipeline.frames import frame_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from tidelog.pipeline.checks.extent import Range

NAME = "retention"

RULES = {
    "pruned": "an event that was pruned is covered by a snapshot of each of its partitions",
    "prunable": "an event that would be pruned next is covered so too",
    "archive": "the body of an event that was pruned is in the archive",
    "snapshot": "a stored snapshot is what was stored, and of a place within the log",
}


MOST_FOUND = 10_000
"""Damaged snapshots that are counted: a store that has more has lost everything."""


def check(evidence: Evidence, ranges: "Sequence[Range]") -> Verdict:
    """Look at the events of ranges, their partitions and the snapshots that are as of there."""
    from pyspark.sql import functions as sql

    head, wanted = evidence.head.committed_id, tuple(ranges)
    found = _snapshot_findings(evidence, ranges)
    if not evidence.log_files and not _has_events(evidence, ranges):
        first = [Finding(rule, where, text, at) for at, rule, where, text in sorted(found)]
        return Verdict(NAME, head, 0, tuple(first[:FIRST_FINDINGS]), len(first), ranges=wanted)
    columns = ("committed_id", "surface", "body", "is_emptied", "is_archived")
    log = evidence.log(*columns, ranges=ranges).where("surface = 'sync'")
    # Counted apart: Spark leaves a branch without rows out, and what it observes there with it.
    examined = log.count()
    findings = frame_of_rows(evidence.spark, found, FINDING_DDL)
    if examined:
        events = log.select(
            "committed_id",
            sql.from_json(sql.col("body").cast("string"), "partitions array<string>")
            .getField("partitions")
            .alias("named"),
        )
        snapshots = evidence.relation("snapshots").select(
            "partition", sql.col("committed_id").alias("covered")
        )
        findings = findings.unionByName(
            uncovered(
                events,
                evidence.relation("event_partitions").where(within(ranges)),
                log.where("is_emptied != 0").select("committed_id"),
                log.where("is_archived != 0").select("committed_id"),
                snapshots,
            )
        )
    told, total = first_of(findings)
    return Verdict(NAME, head, examined, told, total, ranges=wanted)


def _has_events(evidence: Evidence, ranges: "Sequence[Range]") -> bool:
    """Whether entries in memory are events of sync, told without Spark."""
    return any(
        pc.any(pc.equal(each["surface"], "sync")).as_py()
        for each in evidence.log_tables(ranges, ["committed_id", "surface"])
    )


def uncovered(
    events: "DataFrame",
    indexed: "DataFrame",
    emptied: "DataFrame",
    archived: "DataFrame",
    snapshots: "DataFrame",
) -> "DataFrame":
    """Events that were or would be pruned too early, as findings.

    Args:
        events: `committed_id` and `named`, the partitions in its body; null if it has none.
        indexed: `partition`, `committed_id`, as the server's index has them.
        emptied: `committed_id` of events without a body in the log.
        archived: `committed_id` of events with a body in the archive.
        snapshots: `partition` and `covered`, the position that its snapshot includes.
    """
    from pyspark.sql import functions as sql

    pairs = (
        events.select("committed_id", sql.explode("named").alias("partition"))
        .withColumn("is_indexed", sql.lit(False))
        .unionByName(
            indexed.select("committed_id", "partition").withColumn("is_indexed", sql.lit(True))
        )
        .groupBy("committed_id", "partition")
        .agg(sql.max("is_indexed").alias("is_indexed"))
        .join(snapshots, "partition", "left")
        .withColumn(
            "is_covered",
            sql.coalesce(sql.col("covered") >= sql.col("committed_id"), sql.lit(False)),
        )
    )
    by_event = pairs.groupBy("committed_id").agg(
        sql.min("is_covered").alias("is_covered"),
        sql.min(sql.when(sql.col("is_indexed"), sql.col("is_covered"))).alias("looks_covered"),
        sql.sort_array(
            sql.collect_list(sql.when(~sql.col("is_covered"), sql.col("partition")))
        ).alias("open"),
    )
    gone = emptied.withColumn("is_pruned", sql.lit(True)).join(
        archived.withColumn("is_archived", sql.lit(True)), "committed_id", "left"
    )
    whole = by_event.join(gone, "committed_id", "full").select(
        "committed_id",
        sql.coalesce("is_pruned", sql.lit(False)).alias("is_pruned"),
        sql.coalesce("is_archived", sql.lit(False)).alias("is_archived"),
        sql.coalesce("is_covered", sql.lit(False)).alias("is_covered"),
        sql.coalesce("looks_covered", sql.lit(True)).alias("looks_covered"),
        sql.array_join(sql.coalesce("open", sql.array()), ", ").alias("open"),
    )
    where = sql.concat(sql.lit("event "), sql.col("committed_id").cast("string"))
    finding = sql.array(
        sql.when(
            sql.col("is_pruned") & ~sql.col("is_covered"),
            _finding("pruned", sql.concat(sql.lit("no snapshot beyond it of "), "open")),
        ),
        sql.when(
            ~sql.col("is_pruned") & sql.col("looks_covered") & ~sql.col("is_covered"),
            _finding(
                "prunable",
                sql.concat(
                    sql.lit("the index lets it go, no snapshot beyond it of "), sql.col("open")
                ),
            ),
        ),
        sql.when(
            sql.col("is_pruned") & ~sql.col("is_archived"),
            _finding("archive", sql.lit("its body is neither in the log nor in the archive")),
        ),
    )
    return (
        whole.select(
            sql.col("committed_id").alias("at"), where.alias("where"), sql.explode(finding)
        )
        .where("col IS NOT NULL")
        .select("at", "col.rule", "where", "col.text")
    )


def _finding(rule: str, text: "Column") -> "Column":
    from pyspark.sql import functions as sql

    return sql.struct(sql.lit(rule).alias("rule"), text.alias("text"))


def chosen_snapshots(evidence: Evidence, ranges: "Sequence[Range]") -> list[str]:
    """Partitions whose stored snapshot is as of a position in ranges, or of one after the log."""
    head, stored = evidence.head.committed_id, evidence.spooled("snapshots").scan().to_table()
    pairs = zip(stored["partition"].to_pylist(), stored["committed_id"].to_pylist(), strict=True)
    is_whole = any(not each.after and each.through == head for each in ranges)
    return [
        partition
        for partition, at in pairs
        if is_whole or at > head or any(each.after < at <= each.through for each in ranges)
    ]


def _snapshot_findings(
    evidence: Evidence, ranges: "Sequence[Range]"
) -> list[tuple[int, str, str, str]]:
    """Rows of `FINDING_DDL`."""
    found = []
    for page in evidence.snapshot_states(chosen_snapshots(evidence, ranges)):
        for row in page.to_pylist():
            where, at = f"snapshot of {row['partition']}", row["committed_id"]
            if at > evidence.head.committed_id:
                text = f"is as of {at}, the log ends at {evidence.head.committed_id}"
                found.append((at, "snapshot", where, text))
            if blake2b(row["state"], digest_size=16).digest() != row["digest"]:
                found.append((at, "snapshot", where, "is not what was stored"))
    return found[:MOST_FOUND]
