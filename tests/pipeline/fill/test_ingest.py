"""Filling the table `log` from the log, in the test's own session."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.log.log_writer import draft, live_writer, read_log, write_log
from tidelog.base import faultpoint
from tidelog.base.faultpoint import FaultPoint
from tidelog.pipeline.fill.ingest import FOLLOW_SECONDS, Progress, ingest
from tidelog.pipeline.lake.errors import LakeLocked
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import LogReplaced, StoreAddress
from tidelog.store.rows import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 90.0


def ingested(lake: Lake) -> list[Entry]:
    """The rows of the table, in the order of the log."""
    return [Entry(**row) for row in lake.arrow("log").sort_by("committed_id").to_pylist()]


def test_the_table_equals_the_log_and_grows_with_it(
    spark: "SparkSession", store_location: str, tmp_path: Path
) -> None:
    """Two runs bring every entry once and tell how far they are; another log is refused."""
    lake, address = Lake(tmp_path / "lake"), StoreAddress(store_location)
    write_log(store_location, [draft(n, data=b"\xff\0") for n in range(25)], log_id="L")
    told: list[Progress] = []
    assert ingest(spark, address, lake, batch_rows=20, progress=told.append) == 25
    assert ingested(lake) == read_log(store_location)
    assert [(each.through, each.head) for each in told][-1] == (25, 25)
    write_log(store_location, [draft(n) for n in range(5)])
    assert ingest(spark, address, lake) == 30
    for number, (log_id, first) in enumerate((("M", 0), ("L", 7))):
        other = str(tmp_path / f"{number}.db")
        write_log(other, [draft(n) for n in range(first, first + 40)], log_id=log_id)
        with pytest.raises(LogReplaced, match="is not the log that was ingested before"):
            ingest(spark, StoreAddress(other), lake)
    assert ingested(lake) == read_log(store_location)


def test_the_table_is_the_truth_not_the_checkpoint(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint it goes on where the table ends; without a table it begins anew.

    It fails first, with rows in files that are not committed: the next one brings them. One that
    was killed after the commit: `tests/crash/test_pipeline_kill.py`.
    """
    location = str(tmp_path / "tidelog.db")
    lake, address = Lake(tmp_path / "lake"), StoreAddress(location)
    write_log(location, [draft(n) for n in range(5)])
    armed = faultpoint._parse(f"{FaultPoint.LAKE_WRITTEN}=enospc@2")
    monkeypatch.setattr(faultpoint, "_armed", armed)
    with pytest.raises(OSError, match="injected"):
        follow_to(spark, address, lake, 5)
    monkeypatch.undo()
    assert lake.through("log") == 4
    follow_to(spark, address, lake, 5)
    assert ingested(lake) == read_log(location)
    write_log(location, [draft(n) for n in range(5)])
    shutil.rmtree(lake.checkpoint("log"))
    follow_to(spark, address, lake, 10)
    assert ingested(lake) == read_log(location)
    shutil.rmtree(lake.path("log"))
    follow_to(spark, address, lake, 10)
    assert ingested(lake) == read_log(location)


def follow_to(spark: "SparkSession", address: StoreAddress, lake: Lake, head: int) -> None:
    """Follow the log until the table has come so far, in batches of four."""
    stop = threading.Event()

    def progress(now: Progress) -> None:
        if now.through == head:
            stop.set()

    ended = ingest(spark, address, lake, follow=True, stop=stop, batch_rows=4, progress=progress)
    assert ended == head


def test_following_brings_what_is_committed_meanwhile(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """It keeps up with a writer until it is stopped, and lets others write to the lake between."""
    location = str(tmp_path / "tidelog.db")
    lake, address = Lake(tmp_path / "lake"), StoreAddress(location)
    write_log(location, [draft(1)])
    stop, ends = threading.Event(), list[int]()
    follower = threading.Thread(
        target=lambda: ends.append(ingest(spark, address, lake, follow=True, stop=stop))
    )
    follower.start()
    try:
        with live_writer(location, tmp_path / "enough"):
            _until(lambda: Lake(tmp_path / "lake").through("log") > 1)
            first = Lake(tmp_path / "lake").through("log")
            with pytest.raises(LakeLocked, match="another process follows the log"):
                ingest(spark, address, Lake(tmp_path / "lake"), follow=True)
            _until(lambda: Lake(tmp_path / "lake").through("log") > first)
            other = Lake(tmp_path / "lake")
            with other.writing():
                brought = ingest(spark, address, other)
                time.sleep(2 * FOLLOW_SECONDS)  # it would have written by now
                assert other.through("log") == brought
            _until(lambda: other.through("log") > brought)
        total = len(read_log(location))
        _until(lambda: Lake(tmp_path / "lake").through("log") == total)
    finally:
        stop.set()
        follower.join(WAIT_SECONDS)
    assert ends == [total]
    assert ingested(lake) == read_log(location)


def test_a_log_replaced_under_a_following_ingest_ends_it(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """What a batch finds wrong with the store comes out as the error it is; nothing is added."""
    location, other = tmp_path / "tidelog.db", tmp_path / "other.db"
    lake = Lake(tmp_path / "lake")
    write_log(str(location), [draft(1)])
    write_log(str(other), [draft(2), draft(3)])

    def replace(_progress: Progress) -> None:
        other.rename(location)

    with pytest.raises(LogReplaced, match="it is log"):
        ingest(spark, StoreAddress(str(location)), lake, follow=True, progress=replace)
    assert lake.through("log") == 1


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.1)
