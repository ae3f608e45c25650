"""Retention: no event of sync goes before each of its partitions has a snapshot beyond it.

Reads the store. The server decides by its index of partitions; here the partitions that an event
itself names count as well. What is pruned must be in the archive, which sync reads too (sync D57).
"""

from hashlib import blake2b
from typing import TYPE_CHECKING

from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.finding import FINDING_DDL, Verdict, first_of
from tidelog.pipeline.frames import frame_of_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = "retention"
NEEDS = ("event_partitions", "archived_events", "emptied_events", "snapshots")

RULES = {
    "pruned": "an event that was pruned is covered by a snapshot of each of its partitions",
    "prunable": "an event that would be pruned next is covered so too",
    "archive": "the body of an event that was pruned is in the archive",
    "snapshot": "a stored snapshot is what was stored, and of a place within the log",
}


def check(evidence: Evidence) -> Verdict:
    """Look at all events, their partitions and the snapshots."""
    from pyspark.sql import functions as sql

    # Counted apart: Spark leaves a branch without rows out, and what it observes there with it.
    examined = evidence.log("committed_id", "surface").where("surface = 'sync'").count()
    events = (
        evidence.log("committed_id", "surface", "body")
        .where("surface = 'sync'")
        .select(
            "committed_id",
            sql.from_json(sql.col("body").cast("string"), "partitions array<string>")
            .getField("partitions")
            .alias("named"),
        )
    )
    snapshots = evidence.relation("snapshots").select(
        "partition", sql.col("committed_id").alias("covered")
    )
    findings = uncovered(
        events,
        evidence.relation("event_partitions"),
        evidence.relation("emptied_events"),
        evidence.relation("archived_events"),
        snapshots,
    ).unionByName(_snapshot_findings(evidence))
    named, total = first_of(findings)
    return Verdict(NAME, evidence.head.committed_id, examined, named, total)


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


def _snapshot_findings(evidence: Evidence) -> "DataFrame":
    found = []
    for row in evidence.tables["snapshots"].to_pylist():
        where = f"snapshot of {row['partition']}"
        if row["committed_id"] > evidence.head.committed_id:
            text = f"is as of {row['committed_id']}, the log ends at {evidence.head.committed_id}"
            found.append((row["committed_id"], "snapshot", where, text))
        if blake2b(row["state"], digest_size=16).digest() != row["digest"]:
            found.append((row["committed_id"], "snapshot", where, "is not what was stored"))
    return frame_of_rows(evidence.spark, found, FINDING_DDL)
