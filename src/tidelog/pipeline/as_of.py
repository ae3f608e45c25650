"""Time travel: what a channel, a sync partition or a mesh was at a position or a time.

Made from the table `log` by the same transformations that make the tables of the present, so it
shows also what the server has pruned since. What was forgotten is gone from every moment.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from tidelog.pipeline.frames import empty_frame
from tidelog.pipeline.lake.lake import Lake, LakeError, forgotten_partitions, frame_of
from tidelog.pipeline.tables import BY_NAME
from tidelog.pipeline.transforms.erasure import erased

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.transforms.snapshots import ModelSource

Kind = Literal["channel", "partition", "mesh"]

TOMBSTONE_DDL = "broker_message_id string, deleted_at bigint, reason string"


class AsOf(NamedTuple):
    """The state of one thing at one position."""

    kind: Kind
    name: str
    committed_id: int
    """The position: everything up to it counts."""
    rows: "DataFrame"
    """Of a channel, rows of `message` in the order of its history; of a partition, the one row of
    `snapshot`, or none if it had no event; of a mesh, rows of `send`."""
    counts: dict[str, int]
    """Of a channel, messages by state; of a partition, events; of a mesh, sends by destination."""


def as_of(
    spark: "SparkSession",
    lake: Lake,
    at: int | datetime,
    kind: Kind,
    name: str,
    model: "ModelSource | None" = None,
) -> AsOf:
    """What something was then.

    Args:
        spark: The session.
        lake: What was ingested of the log.
        at: A `committed_id`, or a time, which must have a zone: the last entry committed by then.
        kind: What it is.
        name: `{app_id}/{channel}`, the partition, or the id of the mesh.
        model: Of the sync surface; needed for a partition.

    Raises:
        LakeError: the position is not in the lake, a model is missing, or an event of the partition
            is forgotten.
    """
    position = position_at(spark, lake, at)
    made = {"channel": _channel, "partition": _partition, "mesh": _mesh}[kind]
    rows, counts = made(spark, lake, position, name, model)
    return AsOf(kind, name, position, rows, counts)


def position_at(spark: "SparkSession", lake: Lake, at: int | datetime) -> int:
    """The position that is meant; 0 for a time before the first entry.

    Raises:
        LakeError: it is not in the lake yet, or there can be no such position.
    """
    from pyspark.sql import functions as sql

    through = lake.through("log")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise LakeError(f"the time {at} has no zone: write {at.isoformat()}Z, or an offset")
        until = int(at.timestamp() * 1000)
        entries = lake.frame(spark, "log").where(sql.col("committed_at") <= until)
        last = entries.agg(sql.max("committed_id").alias("last")).collect()[0]["last"]
        return last or 0
    if not 0 <= at <= through:
        raise LakeError(
            f"position {at} is not in the lake, which is complete through {through}. "
            "Ingest first: `tidelog pipeline ingest`."
        )
    return at


def _until(spark: "SparkSession", lake: Lake, position: int) -> "DataFrame":
    from pyspark.sql import functions as sql

    log = lake.frame(spark, "log").where(sql.col("committed_id") <= position)
    if not lake.files("forgotten"):
        return log
    # Also of a forgetting that is not finished: what is noted is not shown any more.
    return erased("log", log, lake.frame(spark, "forgotten"))


def _channel(
    spark: "SparkSession", lake: Lake, position: int, name: str, model: "ModelSource | None"
) -> "tuple[DataFrame, dict[str, int]]":
    del model
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.messages import fold, message_versions

    log = _until(spark, lake, position).where(sql.col("stream") == f"channels/{name}")
    messages = fold(message_versions(log)).orderBy("first_committed_id")
    return messages, _counted(messages, "state")


def _partition(
    spark: "SparkSession", lake: Lake, position: int, name: str, model: "ModelSource | None"
) -> "tuple[DataFrame, dict[str, int]]":
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.events import events
    from tidelog.pipeline.transforms.snapshots import snapshots

    if model is None:
        raise LakeError(
            "the state of a partition needs the model of the sync surface. Name the server's "
            "configuration with --config."
        )
    if name in forgotten_partitions(lake, position):
        raise LakeError(
            f"an event of partition {name} was forgotten, so nobody can tell its state at "
            f"{position} from the lake. Choose an earlier position, or ask the server."
        )
    log = _until(spark, lake, position).where(sql.col("surface") == "sync")
    own = events(log).where(sql.col("partition") == name)
    none = frame_of(spark, BY_NAME["snapshot"], ())
    return snapshots(own, none, log, model), {"events": own.count()}


def _mesh(
    spark: "SparkSession", lake: Lake, position: int, name: str, model: "ModelSource | None"
) -> "tuple[DataFrame, dict[str, int]]":
    del model
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import sends

    log = _until(spark, lake, position).where(sql.col("stream") == f"mesh/{name}")
    sent = sends(log, empty_frame(spark, TOMBSTONE_DDL)).orderBy("history_id")
    return sent, _counted(sent, "destination_kind")


def _counted(frame: "DataFrame", column: str) -> dict[str, int]:
    return {row[column]: row["count"] for row in frame.groupBy(column).count().collect()}
