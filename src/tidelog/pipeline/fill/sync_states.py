"""States of sync partitions, as far as the lake can tell them.

A state is made of all events of its partition. Those that are too old for the lake to keep their
content are told by the state that they had made by then, in the table `snapshot_base`.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.lake.horizon import BASE
from tidelog.pipeline.transforms.snapshots import continued, newer, snapshots
from tidelog.sync.protocol.profiles import TREE_ACTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.transforms.snapshots import ModelSource


def tellable_events(spark: "SparkSession", lake: "Lake", events: "DataFrame") -> "DataFrame":
    """Events of partitions of which none is forgotten: of others nobody can tell the state."""
    if not lake.files("forgotten"):
        return events
    gone = lake.frame(spark, "forgotten").select(sql.explode("partitions").alias("partition"))
    return events.join(gone, "partition", "left_anti")


def states_of(
    spark: "SparkSession",
    lake: "Lake",
    events: "DataFrame",
    log: "DataFrame",
    source: "ModelSource",
) -> "DataFrame":
    """Rows of `snapshot` for partitions.

    Args:
        spark: Runs the work.
        lake: Has the states of what is too old.
        events: All rows of `event` of the partitions, up to a position after the horizon.
        log: Rows of `log` with the entries of the events.
        source: The model.
    """
    base = lake.frame(spark, BASE)
    if not lake.files(BASE):
        return snapshots(events, base, log, source)
    return continued(events, base, log, source)


def untold_partitions(
    spark: "SparkSession", lake: "Lake", events: "DataFrame", source: "ModelSource"
) -> "DataFrame":
    """The partitions of some events whose state nobody can tell: content is gone."""
    if lake.files(BASE):
        events = newer(events, lake.frame(spark, BASE), source)
    is_gone = sql.col("event").isNull() & sql.col("type").isin(*TREE_ACTIONS)
    return events.where(is_gone).select("partition").distinct()
