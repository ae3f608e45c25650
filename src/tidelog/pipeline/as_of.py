"""Time travel: what a channel, a sync partition or a mesh was at a position or a time.

The tables made of the log have what it is made of, row by row. As long as that is not much, this
process reads it and folds it with the code that Spark's tasks run; Spark does the rest, from the
table `log` where the others are not complete. Both show also what the server has pruned since. What
was forgotten is gone from every moment, and what was before the horizon cannot be told.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tidelog.pipeline.frames import empty_frame
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.forgetting import is_unfinished
from tidelog.pipeline.lake.horizon import BASE, begun_horizon, horizon, horizon_in_words
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.names import require_known
from tidelog.pipeline.lake.reading import forgotten_partitions
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.transforms.snapshots import ModelSource

Kind = Literal["channel", "partition", "mesh"]

SMALL_ROWS = 20_000
SMALL_BYTES = 256 * 1024 * 1024
"""What is made of so much is made by this process: a JVM would still be starting."""

MAX_ROWS = 100_000
"""Rows that are returned at most: this process has all of them."""

TOMBSTONE_DDL = "broker_message_id string, deleted_at bigint, reason string"


class AsOf(NamedTuple):
    """The state of one thing at one position."""

    kind: Kind
    name: str
    committed_id: int
    """The position: everything up to it counts."""
    rows: "pa.Table"
    """Of a channel, rows of `message` in the order of its history; of a partition, the one row of
    `snapshot`, or none if it had no event; of a mesh, rows of `send`. Not more than were asked."""
    counts: dict[str, int]
    """Of a channel, messages by state; of a partition, events; of a mesh, sends by destination."""


def position_at(lake: Lake, at: int | datetime) -> int:
    """The position that is meant; 0 for a time before the first entry.

    Args:
        lake: What was ingested of the log.
        at: A `committed_id`, or a time, which must have a zone: the last entry committed by then.

    Raises:
        LakeError: it is not in the lake yet, or there can be no such position.
    """
    import pyarrow.compute as pc

    through = lake.through("log")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise LakeError(f"the time {at} has no zone: write {at.isoformat()}Z, or an offset")
        until = ("committed_at", "<=", int(at.timestamp() * 1000))
        found = (batch["committed_id"] for batch in lake.batches("log", ["committed_id"], [until]))
        return max((pc.max(ids).as_py() for ids in found if len(ids)), default=0)
    if not 0 <= at <= through:
        raise LakeError(
            f"position {at} is not in the lake, which is complete through {through}. "
            "Ingest first: `tidelog pipeline ingest`."
        )
    return at


# Without Spark.


def as_of_here(
    lake: Lake,
    position: int,
    kind: Kind,
    name: str,
    model: "ModelSource | None" = None,
    limit: int = MAX_ROWS,
) -> AsOf | None:
    """What something was then; None if it takes Spark to tell.

    Args:
        lake: The lake.
        position: Where to look, see `position_at`.
        kind: What it is.
        name: `{app_id}/{channel}`, the partition, or the id of the mesh.
        model: Of the sync surface; needed for a partition.
        limit: Rows to return at most.

    Raises:
        UnknownName: the lake has no entry of it.
        LakeError: a model is missing, an event of the partition is forgotten, or the position is
            too old.
    """
    _require_kept(lake, position)
    if is_unfinished(lake):
        return None  # the tables still have what is noted as forgotten
    made = {"channel": _channel_here, "partition": _partition_here, "mesh": _mesh_here}[kind]
    found = made(lake, position, name, model)
    if found is None:
        return None
    rows, counts = found
    if not any(counts.values()):
        require_known(lake, kind, name)
    return AsOf(kind, name, position, rows.slice(0, limit), counts)


def _require_kept(lake: Lake, position: int) -> None:
    """Make sure that the lake has what was committed up to a position, or what came of it."""
    if 0 < position <= (last := begun_horizon(lake) or 0) and last > horizon(lake):
        # States are put aside before anything else, so they may be of a later position already.
        raise LakeError(
            f"content up to {last:,} is being removed by age, so the lake cannot tell what was at "
            f"{position:,}. Choose a position after {last:,}."
        )
    if 0 < position <= (last := horizon(lake)):
        raise LakeError(
            f"{horizon_in_words(lake)}, so the lake cannot tell what was at {position:,}. Choose a "
            f"position after {last:,}."
        )


def _channel_here(
    lake: Lake, position: int, name: str, model: "ModelSource | None"
) -> "tuple[pa.Table, dict[str, int]] | None":
    del model
    from tidelog.pipeline.transforms.message_fold import (
        READ,
        combined,
        messages_of,
        steps_of_versions,
    )

    if not _is_complete(lake, "message_version", position, ("stream", "=", f"channels/{name}")):
        return None
    app_id, _, channel = name.partition("/")
    own = (("app_id", "=", app_id), ("channel", "=", channel))
    versions = _few(lake, "message_version", READ, position, *own)
    if versions is None:
        return None
    messages = messages_of(combined(steps_of_versions(versions))).sort_by("first_committed_id")
    return messages, _counts(messages, "state")


def _partition_here(
    lake: Lake, position: int, name: str, model: "ModelSource | None"
) -> "tuple[pa.Table, dict[str, int]] | None":
    import pyarrow as pa

    from tidelog.pipeline.transforms.snapshots import state_of

    model = _required(lake, position, name, model)
    if not _is_complete(lake, "event", position, ("surface", "=", "sync")):
        return None
    read = ("partition", "committed_id", "type", "event")
    events = _few(lake, "event", read, position, ("partition", "=", name))
    if events is None:
        return None
    state = state_of(events, model, _state_before(lake, name, model))
    columns = [column.name for column in BY_NAME["snapshot"].columns]
    if state is None:
        rows = pa.table({column: pa.array([], pa.string()) for column in columns})
    else:
        at = ("committed_id", "=", state["committed_id"])
        [digest] = lake.arrow("log", ["digest"], [at])["digest"].to_pylist()
        state |= {"digest": digest.hex(), "model_version": model.model_version}
        rows = pa.Table.from_pylist([state]).select(columns)
    return rows, {"events": len(events)}


def _state_before(lake: Lake, name: str, model: "ModelSource") -> dict[str, Any] | None:
    """What a partition was at the horizon, if content of its events is too old."""
    if not lake.files(BASE):
        return None
    own = [("partition", "=", name), ("model_version", "=", model.model_version)]
    rows: list[dict[str, Any]] = lake.arrow(BASE, where=own).to_pylist()
    return rows[0] if rows else None


def _mesh_here(
    lake: Lake, position: int, name: str, model: "ModelSource | None"
) -> "tuple[pa.Table, dict[str, int]] | None":
    del model
    import pyarrow as pa

    if not _is_complete(lake, "send", position, ("stream", "=", f"mesh/{name}")):
        return None
    read = [column.name for column in BY_NAME["send"].columns]
    sent = _few(lake, "send", read, position, ("mesh_id", "=", name))
    if sent is None:
        return None
    for ended in ("deleted_at", "deleted_reason"):  # that came later
        at = sent.schema.get_field_index(ended)
        sent = sent.set_column(at, ended, pa.nulls(len(sent), sent.schema.field(ended).type))
    return sent.sort_by("history_id"), _counts(sent, "destination_kind")


def _is_complete(lake: Lake, table: str, position: int, own: tuple[str, str, str]) -> bool:
    """Whether a table has all that it will have of something up to a position."""
    through = lake.through(table)
    if through >= position:
        return lake.delta(table) is not None
    rest = [("committed_id", ">", through), ("committed_id", "<=", position), own]
    return through > 0 and not any(
        len(batch) for batch in lake.batches("log", ["committed_id"], rest)
    )


def _few(
    lake: Lake, table: str, columns: Sequence[str], position: int, *own: tuple[str, str, Any]
) -> "pa.Table | None":
    """The rows of something up to a position, if they are not too many to have them all."""
    import pyarrow as pa

    until = ("committed_id", "<=", position)
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in lake.batches(table, columns, [*own, until]):
        rows, size = rows + len(batch), size + batch.nbytes
        if rows > SMALL_ROWS or size > SMALL_BYTES:
            return None
        found.append(batch)
    if not rows:
        return lake.arrow(table, columns, [*own, until])  # no rows, with their types
    return pa.Table.from_batches(found)


def _counts(rows: "pa.Table", column: str) -> dict[str, int]:
    return {row["values"]: row["counts"] for row in rows[column].value_counts().to_pylist()}


def _required(lake: Lake, position: int, name: str, model: "ModelSource | None") -> "ModelSource":
    """The model, if the state of the partition can be told."""
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
    return model


# With Spark.


def as_of(
    spark: "SparkSession",
    lake: Lake,
    position: int,
    kind: Kind,
    name: str,
    model: "ModelSource | None" = None,
    limit: int = MAX_ROWS,
) -> AsOf:
    """What something was then, however much it is made of: see `as_of_here`."""
    _require_kept(lake, position)
    made = {"channel": _channel, "partition": _partition, "mesh": _mesh}[kind]
    rows, counts = made(spark, lake, position, name, model)
    if not any(counts.values()):
        require_known(lake, kind, name)
    return AsOf(kind, name, position, rows.limit(limit).toArrow(), counts)


def _until(spark: "SparkSession", lake: Lake, position: int) -> "DataFrame":
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.erasure import erased

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

    from tidelog.pipeline.fill.sync_states import states_of
    from tidelog.pipeline.transforms.events import events, without_body

    model = _required(lake, position, name, model)
    log = _until(spark, lake, position).where(sql.col("surface") == "sync")
    if _is_complete(lake, "event", position, ("surface", "=", "sync")):
        known = lake.frame(spark, "event").where(sql.col("committed_id") <= position)
    elif without_body(log).isEmpty():
        known = events(log)
    else:
        raise LakeError(
            "some events were pruned before they were ingested, and only the table event knows "
            f"their partitions; it is complete through {lake.through('event')}. Build it: "
            "`tidelog pipeline build event`."
        )
    own = known.where(sql.col("partition") == name)
    return states_of(spark, lake, own, log, model), {"events": own.count()}


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
