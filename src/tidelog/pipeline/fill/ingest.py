"""Filling the table `log`: every entry of the log, exactly once, in batches.

The table itself says through which position it is complete, in the commit that makes it so. A batch
says how far to bring it, and what is written is what it lacks of that: so a batch may be done
again, whatever died in between.

A following ingest is a streaming query, whose batch is committed twice: to the table, and then to
Spark's checkpoint. The table is the truth: a query begins where the table ends, whatever an earlier
one left in its checkpoint, and a batch that Spark runs again adds what the table lacks of it.
"""

import contextlib
import fcntl
import functools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidelog.base.errors import TidelogError
from tidelog.pipeline.fill.entry_files import write_entries
from tidelog.pipeline.frames import spark_path
from tidelog.pipeline.lake.errors import LakeError, LakeLocked
from tidelog.pipeline.lake.horizon import BASE, horizon
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import AGED, LOG_ID
from tidelog.pipeline.lake.replacing import Gone
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.search.index import outdate_index
from tidelog.pipeline.source.spark_source import (
    LOCAL_ROWS,
    log_frame,
    offset_of,
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

    from tidelog.pipeline.lazy_spark import Spark

_T = TypeVar("_T")

BATCH_ROWS = 500_000
"""Entries of one batch: what is done again after a crash, some seconds of work."""

FOLLOW_SECONDS = 1
"""How often a following ingest looks at the head. A look costs a millisecond, a batch about a
second, and a commit is to be in the lake within five."""

INCARNATION = "tidelog.incarnation"
"""Property of the table: which continuation of that log its last entry was read in."""

CHANGED_IN_PLACE = ("message", "send", "delivery", "mention", "dedupe", "latency")
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
    spark: "Spark",
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
    if follow:
        with _only_follower(lake):
            return _follow(
                session_of(spark), address, lake, stop or threading.Event(), batch_rows, progress
            )
    with lake.writing():
        known, head = settled(lake, address)
        batches = _Batches(spark, lake, address, known)
        _bring_to(batches, head.committed_id, batch_rows, progress)
        return lake.through("log")


def _follow(
    spark: "SparkSession",
    address: StoreAddress,
    lake: Lake,
    stop: threading.Event,
    batch_rows: int,
    progress: Callable[[Progress], None],
) -> int:
    with lake.writing():
        known, _ = settled(lake, address)
        shutil.rmtree(lake.checkpoint("log"), ignore_errors=True)
    batches = _Batches(spark, lake, address, known)
    register_source(spark)
    query = (
        spark.readStream.format("tidelog")
        .option("store", address.location)
        .option("rows", "ranges")
        .option("maxRowsPerTrigger", batch_rows)
        .option("startingOffset", json.dumps(offset_of(known)))
        .load()
        .writeStream.queryName("tidelog-ingest")
        .option("checkpointLocation", spark_path(lake.checkpoint("log")))
        .foreachBatch(batches.write)
        .trigger(processingTime=f"{FOLLOW_SECONDS} seconds")
    )
    try:
        _run(query, progress, stop)
    except Exception as error:
        raise _explained(error, batches.failure) from error
    return lake.through("log")


@contextlib.contextmanager
def _only_follower(lake: Lake) -> Iterator[None]:
    """The right to follow; two queries would disturb each other's checkpoint."""
    folder = lake.checkpoint("log").parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeLocked(
                f"another process follows the log into the lake {lake.name} already. Let it do so, "
                "or stop it first."
            ) from None
        yield


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
            f"table log in {lake.name} says it is complete through {through} and has that entry "
            f"{len(digests)} times. Remove {lake.place.address(lake.path('log'))} and ingest again."
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
            # The horizon comes back with the log: what is read again has its content.
            notes = {AGED: min(last, shared)} if (last := horizon(lake)) else {}
            for table in TABLES:
                if table.inputs or table.relations:
                    lake.outdate(table.name, notes)
            outdate_index(lake.root)
            if lake.delta(BASE) is not None:
                lost = lake.arrow(BASE, ["partition"], [("committed_id", ">", shared)])
                lake.replace(BASE, shared, [Gone(lost)], notes=notes)
            lake.cut("log", shared, notes)
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
    with lake.writing():
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
        self, spark: "Spark | None", lake: Lake, address: StoreAddress, known: Position
    ) -> None:
        self._spark = spark
        """None for a few entries of a lake in which nothing is forgotten."""
        self._lake = lake
        self._address = address
        self._known = known
        """Where the table ended before the batch."""
        self.failure: Exception | None = None
        """Why a batch failed: Spark would only tell what Java makes of it."""

    @property
    def through(self) -> int:
        """Position through which the table is complete."""
        return self._lake.through("log")

    def write(self, batch: "DataFrame", _number: int) -> None:
        """What Spark calls with the ranges of a batch; for the entries see `write_entries`."""
        try:
            end = max((row["through"] for row in batch.collect()), default=0)
            with self._lake.writing(wait_seconds=LOCK_SECONDS):
                self.bring(end)
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
        rows = through - has
        identity = {LOG_ID: self._known.log_id, INCARNATION: self._known.incarnation}
        if self._lake.files("forgotten"):
            # What is forgotten must be in no file, also not for the moment until it is erased.
            assert self._spark is not None  # noqa: S101 - as was promised
            remembered = self._remembered(session_of(self._spark), has, through)
            self._lake.append("log", remembered, through, identity, self._confirm)
        else:
            folder = self._lake.new_folder("log")
            files = write_entries(self._spark, self._address, has, through, folder)
            self._lake.append_files("log", files, through, identity, self._confirm, rows)
        self._lake.tidy("log")
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
    """What Spark says of a batch. It counts ranges, not entries."""
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
