"""Filling the table `log`: every entry of the log, exactly once, in batches.

A batch is committed twice: to the table, and then to Spark's checkpoint. The process may die
between the two, and Spark then runs the batch again. The table itself says through which position
it is complete, so what it already has is left out. The table is the truth, the checkpoint only
saves looking: one that is gone or is ahead of the table is begun anew where the table ends.
"""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import StreamingQueryException

from tidelog.base.errors import TidelogError
from tidelog.pipeline.failure import first_line, own_cause
from tidelog.pipeline.lake import Lake, LakeError
from tidelog.pipeline.source import offset_of, position_of
from tidelog.pipeline.store_address import Position, StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BATCH_ROWS = 500_000
"""Entries of one batch: what is done again after a crash, some seconds of work."""

FOLLOW_SECONDS = 1
"""How often a following ingest looks at the head. A look costs a millisecond, a batch about a
second, and a commit is to be in the lake within five."""

LOG_ID = "tidelog.log_id"
"""Property of the table: which log it was made from."""

_LOOK_SECONDS = 0.2
"""How often a running query is asked for its progress."""

_TOO_SLOW = "Python worker failed to connect back"
"""Spark gives the process of a source ten seconds to start, and that cannot be set. On a loaded
machine it may be too little; nothing was read yet, so it is started again."""

_STARTS = 6
"""How often that is tried: a machine that needs more than a minute cannot keep up anyway."""


class IngestError(TidelogError):
    """The streaming query ended for a reason that is not one of ours."""


class Progress(NamedTuple):
    """How far an ingest has come, as Spark's streaming progress tells it."""

    through: int
    """Position through which the table is complete."""
    head: int
    """Where the log ended when the batch was done."""
    rows: int
    """Entries of the last batch."""
    rows_per_second: float
    """How fast that batch was."""


def ingest(
    spark: "SparkSession",
    address: StoreAddress,
    lake: Lake,
    *,
    follow: bool = False,
    stop: threading.Event | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> int:
    """Bring the table `log` up to the head; answers through which position it is complete.

    Args:
        spark: the session.
        address: the store.
        lake: where the table is.
        follow: go on as the log grows, until `stop` is set.
        stop: ends a following ingest; a batch under way is left to the next one.
        batch_rows: most entries of a batch.
        progress: called after each batch.

    Raises:
        LogReplaced: the table was made from another log.
        StoreUnavailable: the store cannot be read.
        LakeLocked: another process writes to the lake.
    """
    with lake.writing():
        known = table_position(lake, address)
        head = address.require(known)
        if head.committed_id == known.committed_id and not follow:
            return known.committed_id
        checkpoint = lake.checkpoint("log")
        if _checkpoint_position(checkpoint) > known.committed_id:
            shutil.rmtree(checkpoint)
        batches = _Batches(lake, checkpoint, known.log_id)
        query = (
            spark.readStream.format("tidelog")
            .option("store", address.location)
            .option("maxRowsPerTrigger", batch_rows)
            .option("startingOffset", json.dumps(offset_of(known)))
            .load()
            .writeStream.queryName("tidelog-ingest")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(batches.write)
        )
        if follow:
            query = query.trigger(processingTime=f"{FOLLOW_SECONDS} seconds")
        else:
            query = query.trigger(availableNow=True)
        try:
            _run(query, progress, stop or threading.Event())
        except Exception as error:
            raise _explained(error, batches.failure) from error
        return lake.through("log")


def table_position(lake: Lake, address: StoreAddress) -> Position:
    """Where the table ends, in the log it was made from; the beginning if there is no table."""
    through = lake.through("log")
    if not through:
        return Position(address.head().log_id, 0, bytes(16))
    last = lake.arrow("log", ["digest"], [("committed_id", "=", through)])
    digests = last["digest"].to_pylist()
    if len(digests) != 1:
        raise LakeError(
            f"table log in {lake.root} says it is complete through {through} and has that entry "
            f"{len(digests)} times. Remove {lake.path('log')} and ingest anew."
        )
    return Position(lake.property_of("log", LOG_ID) or "", through, digests[0])


class _Batches:
    """Writes each batch to the table, or as much of it as the table lacks."""

    def __init__(self, lake: Lake, checkpoint: Path, log_id: str) -> None:
        self._lake = lake
        self._checkpoint = checkpoint
        self._log_id = log_id
        self.failure: Exception | None = None
        """Why a batch failed: Spark would only tell what Java makes of it."""

    def write(self, batch: "DataFrame", number: int) -> None:
        """What Spark calls; a batch may come again after a crash."""
        try:
            self._write(batch, number)
        except Exception as error:
            self.failure = error
            raise

    def _write(self, batch: "DataFrame", number: int) -> None:
        end = _planned(self._checkpoint, number)
        has = self._lake.through("log")
        if end.committed_id <= has:
            return
        lacking = batch.where(batch["committed_id"] > has)
        if self._lake.files("forgotten"):
            from tidelog.pipeline.transforms.erasure import erased

            forgotten = self._lake.frame(batch.sparkSession, "forgotten")
            lacking = erased("log", lacking, forgotten)
        self._lake.append("log", lacking, end.committed_id, {LOG_ID: self._log_id})
        self._lake.compact("log")


def _planned(checkpoint: Path, number: int) -> Position:
    """Where a batch ends: Spark writes that down before it runs the batch."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    return position_of(json.loads(lines[-1]))


def _checkpoint_position(checkpoint: Path) -> int:
    """Through where a checkpoint believes the table to be complete."""
    commits = [int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdecimal()]
    return _planned(checkpoint, max(commits)).committed_id if commits else 0


def _run(
    query: "DataStreamWriter", progress: Callable[[Progress], None], stop: threading.Event
) -> None:
    for attempt in range(1, _STARTS + 1):
        running = query.start()
        try:
            return _watch(running, progress, stop)
        except StreamingQueryException as error:
            if attempt == _STARTS or _TOO_SLOW not in str(error):
                raise
        finally:
            running.stop()
    return None


def _watch(
    query: "StreamingQuery", progress: Callable[[Progress], None], stop: threading.Event
) -> None:
    told = None
    while True:
        is_over = not query.isActive
        last = query.lastProgress
        if last is not None and last.numInputRows and last.batchId != told:
            told = last.batchId
            source = last.sources[0]
            end = json.loads(source.endOffset)
            latest = json.loads(source.latestOffset or "null") or end  # null for a batch run again
            progress(
                Progress(
                    through=end["committed_id"],
                    head=latest["committed_id"],
                    rows=last.numInputRows,
                    rows_per_second=last.processedRowsPerSecond,
                )
            )
        if is_over:
            query.awaitTermination()  # raises what ended it
            return
        if stop.wait(_LOOK_SECONDS):
            return


def _explained(error: Exception, failure: Exception | None) -> Exception:
    """The error of ours that ended a query, wherever it was raised."""
    if isinstance(error, TidelogError):
        return error
    if failure is not None:
        return failure
    return own_cause(error) or IngestError(
        f"the ingest ended: {first_line(error)} What was ingested stays; run it again."
    )
