"""The state of sync partitions, made by the reducer that the server and its clients use.

A state continues the one before it, so it costs as much as there are new events. Rows are sorted
by partition and position and go through the reducer one by one: memory holds one partition's state,
and a hundred thousand small partitions cost no more than their events. The reducer itself needs no
Spark, so Spark is loaded only by what uses it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from tidelog.base.errors import TidelogError
from tidelog.sync.protocol.profiles import COMPATIBILITY, TREE_ACTIONS, Model, Target
from tidelog.sync.protocol.tree import TreeState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_BYTES = 16 * 1024 * 1024
"""States that are handed back together: what one Arrow batch may hold of them."""

_STATE = "partition string, committed_id bigint, events bigint, state string"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class SnapshotFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """The events of a partition do not make a state under the given model."""


class ModelSource(NamedTuple):
    """A model that can be sent to where it is needed: compiled schemas cannot."""

    kinds: dict[str, str]
    """The kind of each registered target. A reducer needs no more: what is committed was judged."""
    model_version: int
    """The version in use: an administrator may have raised it over the file's."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], model_version: int) -> "ModelSource":
        """For the targets of a model."""
        kinds = {name: target.kind for name, target in targets.items()}
        return cls(kinds, model_version)

    def model(self) -> Model:
        """A model with the same targets."""
        targets = {
            name: Target(name, kind, frozenset(TREE_ACTIONS), {})
            for name, kind in self.kinds.items()
        }
        return Model(targets, {}, self.model_version, (COMPATIBILITY,))


def snapshots(
    events: "DataFrame", before: "DataFrame", log: "DataFrame", source: ModelSource
) -> "DataFrame":
    """Rows of `snapshot` for the partitions that have an event in `events`.

    A partition has none if content of its events is gone, so that nobody can tell its state, or if
    its tree is too deep to be written: then the server has no snapshot of it either.

    Args:
        events: rows of `event` after those in `before`.
        before: rows of `snapshot` to continue.
        log: rows of `log` with the entries of `events`; their digests tie a state to its log.
        source: the model.
    """
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.shape import shaped

    is_tree = sql.col("type").isin(*TREE_ACTIONS)
    new = events.select(
        "partition",
        "committed_id",
        sql.lit(False).alias("is_state"),
        # Another profile's event changes nothing, but a state that includes it says so.
        sql.when(sql.col("event").isNull() & is_tree, sql.lit(None).cast("bigint"))
        .otherwise(1)
        .alias("events"),
        sql.when(is_tree, sql.col("event")).alias("text"),
    )
    old = before.join(events.select("partition").distinct(), "partition", "left_semi").select(
        "partition",
        "committed_id",
        sql.lit(True).alias("is_state"),
        "events",
        sql.col("state").alias("text"),
    )
    digests = log.select("committed_id", sql.lower(sql.hex("digest")).alias("digest"))
    return (
        new.unionByName(old)
        .repartition("partition")
        .sortWithinPartitions("partition", "committed_id", sql.desc("is_state"))
        .mapInArrow(Reducer(source), _STATE)
        .join(digests, "committed_id")
        .withColumn("model_version", sql.lit(source.model_version))
        .transform(shaped("snapshot"))
    )


def continued(
    events: "DataFrame", base: "DataFrame", log: "DataFrame", source: ModelSource
) -> "DataFrame":
    """Rows of `snapshot` for the partitions that have an event in `events`.

    Args:
        events: all rows of `event` of these partitions, up to a position.
        base: rows of `snapshot_base`: what events up to a position made, whose content is gone.
        log: rows of `log` with the entries of the events after that.
        source: the model; a state that another version of it made is none to go on from.
    """
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.shape import shaped

    known = base.where(sql.col("model_version") == source.model_version)
    new = newer(events, base, source)
    resting = known.join(events.select("partition").distinct(), "partition", "left_semi").join(
        new.select("partition").distinct(), "partition", "left_anti"
    )
    return snapshots(new, known, log, source).unionByName(resting.transform(shaped("snapshot")))


def newer(events: "DataFrame", base: "DataFrame", source: ModelSource) -> "DataFrame":
    """Rows of `event` that are not in a state of `base`, see `continued`."""
    from pyspark.sql import functions as sql

    known = base.where(sql.col("model_version") == source.model_version)
    ends = known.select("partition", sql.col("committed_id").alias("_end"))
    is_newer = sql.col("_end").isNull() | (sql.col("committed_id") > sql.col("_end"))
    return events.join(ends, "partition", "left").where(is_newer).drop("_end")


def state_of(
    events: pa.Table, source: ModelSource, before: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """What a partition is after all of its events: partition, committed_id, events and state.

    Args:
        events: rows of `event` of one partition.
        source: the model.
        before: the row of `snapshot_base` that they continue.
    """
    import pyarrow.compute as pc

    rows = events.sort_by("committed_id")
    begun = []
    if before is not None:
        rows = rows.filter(pc.field("committed_id") > before["committed_id"])
        same = {name: before[name] for name in ("partition", "committed_id", "events")}
        begun = [{**same, "is_state": True, "text": before["state"]}]
    is_tree = pc.is_in(rows["type"], value_set=pa.array(TREE_ACTIONS, pa.string()))
    is_gone = pc.and_(pc.is_null(rows["event"]), is_tree)
    steps = pa.table(
        {
            "partition": rows["partition"],
            "committed_id": rows["committed_id"],
            "is_state": pa.repeat(pa.scalar(value=False), len(rows)),
            "events": pc.if_else(is_gone, pa.scalar(None, pa.int64()), pa.scalar(1, pa.int64())),
            "text": pc.if_else(is_tree, rows["event"], pa.scalar(None, pa.string())),
        }
    )
    if begun:
        steps = pa.concat_tables([pa.Table.from_pylist(begun, steps.schema), steps])
    made = [row for batch in Reducer(source)(steps.to_batches()) for row in batch.to_pylist()]
    return made[0] if made else None


class _Open:
    """The partition whose rows are being read."""

    def __init__(self, name: str, model: Model) -> None:
        self.name = name
        self.tree = TreeState(model)
        self.committed_id = 0
        self.events = 0
        self.is_known = True

    def follow(self, model: Model, row: dict[str, Any]) -> None:
        self.committed_id = row["committed_id"]
        if row["events"] is None:
            self.is_known = False
        if not self.is_known:
            return
        self.events += row["events"]
        try:
            if row["is_state"]:
                self.tree = TreeState.load(model, _decode(row["text"]), is_given=True)
            elif row["text"] is not None:
                self.tree.apply(_decode(row["text"]))
        except Exception as error:
            raise SnapshotFailed(
                f"partition {self.name!r}: the event at {self.committed_id} does not fit the "
                f"model ({error!r}). Give the server's own model, and build `snapshot` in full if "
                "it was changed without a new model_version."
            ) from error

    def written(self) -> str | None:
        """The state as JSON text; None if it is not known or too deep."""
        if not self.is_known:
            return None
        try:
            return _encode(self.tree.export()).decode()
        except RecursionError:
            return None


class Reducer:
    """For `mapInArrow`: from sorted steps to states."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each partition whose state can be told."""
        done: list[dict[str, Any]] = []
        size = 0
        for row in self._states(batches):
            done.append(row)
            size += len(row["state"])
            if size >= BATCH_BYTES:
                yield _batch(done)
                done, size = [], 0
        if done:
            yield _batch(done)

    def _states(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        model = self._source.model()
        current: _Open | None = None
        for batch in batches:
            for row in batch.to_pylist():
                if current is None or row["partition"] != current.name:
                    yield from _row_of(current)
                    current = _Open(row["partition"], model)
                current.follow(model, row)
        yield from _row_of(current)


def _row_of(done: _Open | None) -> Iterator[dict[str, Any]]:
    if done is not None and (state := done.written()) is not None:
        yield {
            "partition": done.name,
            "committed_id": done.committed_id,
            "events": done.events,
            "state": state,
        }


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    kinds = {
        "partition": pa.string(),
        "committed_id": pa.int64(),
        "events": pa.int64(),
        "state": pa.string(),
    }
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(kinds.items())))
