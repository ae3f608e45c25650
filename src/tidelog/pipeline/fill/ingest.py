"""Filling the table `log`: every entry of the log, exactly once, in batches.

The table itself says through which position it is complete, in the commit that makes it so. A batch
says how far to bring it, and what is written is what it lacks of that: so a batch may be done
again, whatever died in between.

A following ingest is a streaming query, whose batch is committed twice: to the table, and then to
Spark's checkpoint. The process may die between the two, and Spark then runs the batch again. The
table is the truth, the checkpoint only saves looking: one that is gone or is ahead of the table is
started again where the table ends.
"""

import functools
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidelog.base.errors import TidelogError
from tidelog.pipeline.fill.entry_files import write_entries
from tidelog.pipeline.lake.lake import Lake, LakeError
from tidelog.pipeline.search.index import outdate_index
from tidelog.pipeline.source.spark_source import (
    LOCAL_ROWS,
    log_frame,
    offset_of,
    position_of,
    register_source,
)
from tidelog.pipeline.source.store_address import GENESIS_DIGEST, Position, StoreAddress, StoreHead
from tidelog.pipeline.spark.failure import first_line, own_cause
from tidelog.pipeline.tables import LOG, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_T = TypeVar("_T")

BATCH_ROWS = 500_000
"""Entries of one batch: what is done again after a crash, some seconds of work."""

FOLLOW_SECONDS = 1
"""How often a following ingest looks at the head. A look costs a millisecond, a batch about a
second, and a commit is to be in the lake within five."""

LOG_ID = "tidelog.log_id"
"""Property of the table: which log it was made from."""

INCARNATION = "tidelog.incarnation"
"""Property of the table: which continuation of that log its last entry was read in."""

CHANGED_IN_PLACE = ("message", "send")
"""Tables in which an earlier state of the store's relations stays: a store that went back in time
may have again what they say is gone, so in another incarnation they are rebuilt."""

LOCK_SECONDS = 3600.0
"""How long a batch waits for another process that writes to the lake: a build of everything, on a
lake of many millions of entries. Nothing is lost meanwhile, the next batch is larger."""

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
    """How far an ingest has come; of a following one, as Spark's streaming progress tells it."""

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
    """Bring the table `log` up to the head; returns through which position it is complete.

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
        known, head = settled(lake, address)
        batches = _Batches(spark, lake, address, known)
        if not follow:
            _bring_to(batches, head.committed_id, batch_rows, progress)
            return lake.through("log")
        if _checkpoint_position(batches.checkpoint) > known.committed_id:
            shutil.rmtree(batches.checkpoint)
    register_source(spark)
    query = (
        spark.readStream.format("tidelog")
        .option("store", address.location)
        .option("maxRowsPerTrigger", batch_rows)
        .option("startingOffset", json.dumps(offset_of(known)))
        .load()
        .writeStream.queryName("tidelog-ingest")
        .option("checkpointLocation", str(batches.checkpoint))
        .foreachBatch(batches.write)
        .trigger(processingTime=f"{FOLLOW_SECONDS} seconds")
    )
    try:
        _run(query, progress, stop or threading.Event())
    except Exception as error:
        raise _explained(error, batches.failure) from error
    return lake.through("log")


def catch_up(address: StoreAddress, lake: Lake) -> bool:
    """Bring the table `log` up to the head without Spark; returns whether it was so little.

    Raises:
        LogReplaced: the table was made from another log.
        StoreUnavailable: the store cannot be read.
        LakeLocked: another process writes to the lake.
    """
    with lake.writing():
        known, head = settled(lake, address)
        new = head.committed_id - known.committed_id
        if new > LOCAL_ROWS or (new and lake.files("forgotten")):
            return False
        _Batches(None, lake, address, known).bring(head.committed_id)
        return True


def settled(lake: Lake, address: StoreAddress) -> tuple[Position, StoreHead]:
    """Where the table ends and the head of its log, if that still has what the table has.

    An incarnation that begins where the table ends, or after it, is the same log to the lake from
    here on. So is the first one that a lake of an earlier version sees.

    Raises:
        LogReplaced: the table was made from another log, or has what the log has lost.
    """
    known = table_position(lake, address)
    head = address.require(known)
    _adopt(lake, head.incarnation)
    return known._replace(incarnation=head.incarnation), head


def noted_position(lake: Lake) -> Position | None:
    """What a lake says about the log it was made from, without its entries; None if nothing."""
    log_id = lake.property_of("log", LOG_ID)
    incarnation = lake.property_of("log", INCARNATION) or ""
    return Position(log_id, lake.through("log"), b"", incarnation) if log_id else None


def table_position(lake: Lake, address: StoreAddress) -> Position:
    """Where the table ends, in the log it was made from; the beginning if there is no table."""
    through = lake.through("log")
    if not through:
        return address.head().position._replace(committed_id=0, digest=GENESIS_DIGEST)
    last = lake.arrow("log", ["digest"], [("committed_id", "=", through)])
    digests = last["digest"].to_pylist()
    if len(digests) != 1:
        raise LakeError(
            f"table log in {lake.root} says it is complete through {through} and has that entry "
            f"{len(digests)} times. Remove {lake.path('log')} and ingest again."
        )
    noted = noted_position(lake) or Position("", through, b"")
    return noted._replace(digest=digests[0])


def roll_back(address: StoreAddress, lake: Lake) -> int:
    """Take a lake back to what it has in common with its log; returns up to where that is.

    For a log that was restored or failed over: what came after that is in the lake alone, and is
    given up. The next build rebuilds the tables. What was forgotten stays forgotten.

    Raises:
        LogReplaced: the table was made from another log altogether.
        LakeLocked: another process writes to the lake.
    """
    with lake.writing():
        known, head = table_position(lake, address), address.head()
        if known.log_id != head.log_id:
            address.require(known)  # raises
        shared = _shared_position(address, lake, min(known.committed_id, head.committed_id))
        if shared < known.committed_id:
            for table in TABLES:
                if table.inputs or table.relations:
                    lake.outdate(table.name)
            outdate_index(lake.root)
            lake.cut("log", shared)
            shutil.rmtree(lake.checkpoint("log"), ignore_errors=True)
        _adopt(lake, head.incarnation)
        return shared


def _shared_position(address: StoreAddress, lake: Lake, last: int) -> int:
    """The last position up to `last` at which both have the same entry; so have they before it."""
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        kept = lake.arrow("log", ["digest"], [("committed_id", "=", middle)])
        if kept["digest"].to_pylist() == [address.entry_digest_at(middle)]:
            low = middle
        else:
            high = middle - 1
    return low


def _adopt(lake: Lake, incarnation: str) -> None:
    """Go on in an incarnation that begins where the table ends, or after it."""
    before = lake.property_of("log", INCARNATION)
    if before == incarnation or lake.delta("log") is None:
        return
    if before:
        for name in CHANGED_IN_PLACE:
            lake.outdate(name)
        outdate_index(lake.root)
    lake.note("log", {INCARNATION: incarnation})


class _Batches:
    """Brings the table to the end of each batch, from wherever it is.

    A batch tells how far the log is to be brought; what is written is what the table lacks of it.
    So a batch that comes again after a crash, or after another ingest, adds nothing twice.
    """

    def __init__(
        self, spark: "SparkSession | None", lake: Lake, address: StoreAddress, known: Position
    ) -> None:
        self._spark = spark
        """None for a few entries of a lake in which nothing is forgotten."""
        self._lake = lake
        self._address = address
        self._known = known
        """Where the table ended before the batch."""
        self.checkpoint = lake.checkpoint("log")
        self.failure: Exception | None = None
        """Why a batch failed: Spark would only tell what Java makes of it."""

    @property
    def through(self) -> int:
        """Position through which the table is complete."""
        return self._lake.through("log")

    def write(self, _batch: "DataFrame", number: int) -> None:
        """What Spark calls; the entries are not taken from its frame, see `write_entries`."""
        try:
            end = _planned(self.checkpoint, number)
            with self._lake.writing(wait_seconds=LOCK_SECONDS):
                self.bring(end.committed_id)
        except Exception as error:
            self.failure = error
            raise

    def bring(self, through: int) -> Progress:
        """Make the table complete through a position; the caller may write to the lake."""
        began = time.monotonic()
        self._known, head = settled(self._lake, self._address)
        has = self._known.committed_id
        through = min(through, head.committed_id)
        if through <= has:
            return Progress(has, has, 0, 0.0)
        identity = {LOG_ID: self._known.log_id, INCARNATION: self._known.incarnation}
        if self._lake.files("forgotten"):
            # What is forgotten must be in no file, also not for the moment until it is erased.
            assert self._spark is not None  # noqa: S101 - as was promised
            remembered = self._remembered(self._spark, has, through)
            self._lake.append("log", remembered, through, identity, self._confirm)
        else:
            folder = self._lake.new_folder("log")
            files = write_entries(self._spark, self._address, has, through, folder)
            self._lake.append_files("log", files, through, identity, self._confirm)
        self._lake.compact("log")
        rows = through - has
        return Progress(through, through, rows, rows / (time.monotonic() - began))

    def _confirm(self) -> None:
        """Make sure that all of a batch was read in one history."""
        head = self._address.require(self._known)
        if head.incarnation != self._known.incarnation:
            raise IngestError(
                "the log was restored or failed over while it was read. Nothing was written; run "
                "the ingest again."
            )

    def _remembered(self, spark: "SparkSession", after: int, through: int) -> "DataFrame":
        """Entries without the content that is forgotten."""
        from tidelog.pipeline.transforms.erasure import erased

        columns = [column.name for column in LOG.columns]
        entries = log_frame(spark, self._address, columns, through, after)
        return erased("log", entries, self._lake.frame(spark, "forgotten"))


def _planned(checkpoint: Path, number: int) -> Position:
    """Where a batch ends: Spark writes that down before it runs the batch."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    return position_of(json.loads(lines[-1]))


def _checkpoint_position(checkpoint: Path) -> int:
    """Through where a checkpoint believes the table to be complete."""
    commits = [int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdecimal()]
    return _planned(checkpoint, max(commits)).committed_id if commits else 0


def _bring_to(
    batches: _Batches, head: int, batch_rows: int, progress: Callable[[Progress], None]
) -> None:
    """Bring the table to a position that the log has, batch by batch."""
    has = batches.through
    while has < head:
        end = min(head, has + batch_rows)
        try:
            done = _patiently(functools.partial(batches.bring, end))
        except Exception as error:
            raise _explained(error, None) from error
        progress(done._replace(head=head))
        has = end


def _run(
    query: "DataStreamWriter", progress: Callable[[Progress], None], stop: threading.Event
) -> None:
    def start() -> None:
        running = query.start()
        try:
            _watch(running, progress, stop)
        finally:
            running.stop()

    _patiently(start)


def _patiently(work: Callable[[], _T]) -> _T:
    """Do work again for which a process did not start in time."""
    for _ in range(_STARTS - 1):
        try:
            return work()
        except Exception as error:
            if _TOO_SLOW not in str(error):
                raise
    return work()


def _watch(
    query: "StreamingQuery", progress: Callable[[Progress], None], stop: threading.Event
) -> None:
    told = None
    while True:
        is_over, is_stopped = not query.isActive, stop.is_set()
        last = query.lastProgress
        if last is not None and last.batchId != told and (batch := _progress_of(last)).rows:
            told = last.batchId
            progress(batch)
        if is_over:
            query.awaitTermination()  # raises what ended it
            return
        if is_stopped:
            return
        stop.wait(_LOOK_SECONDS)


def _progress_of(told: "StreamingQueryProgress") -> Progress:
    """What Spark says of a batch. It counts no rows: they are not taken from its frame."""
    source = told.sources[0]
    start, end, latest = (
        json.loads(text or "null")
        for text in (source.startOffset, source.endOffset, source.latestOffset)
    )
    rows = end["committed_id"] - (start["committed_id"] if start else 0)
    seconds = max(1, told.durationMs.get("triggerExecution", 0)) / 1000
    head = (latest or end)["committed_id"]  # it is null for a batch that is run again
    return Progress(end["committed_id"], head, rows, rows / seconds)


def _explained(error: Exception, failure: Exception | None) -> Exception:
    """The error of ours that ended a query, wherever it was raised."""
    if isinstance(error, TidelogError):
        return error
    if failure is not None:
        return failure
    return own_cause(error) or IngestError(
        f"the ingest ended: {first_line(error)} What was ingested stays; run it again."
    )
