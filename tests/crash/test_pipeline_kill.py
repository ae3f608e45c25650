"""`kill -9` of the ingest while a writer goes on: every entry is in the table exactly once."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from support.log_writer import live_writer, read_log, write_log
from support.pipeline_process import END_SECONDS, kill_group, pipeline_process, run_pipeline
from support.spark_cluster import SHORT_LIVED
from tidelog.base.faultpoint import FaultPoint
from tidelog.pipeline.fill.ingest import _checkpoint_position
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE
from tidelog.store.rows import Entry

CASES = 3
KILLS = max(CASES, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "0")))
"""Starts that are killed: at each fault point and at a random moment; `scripts/soak --kills` raises
it."""
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
RANDOM = ""
FAST = ("--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}")
ENGINES = ("sqlite",) if KILLS == CASES else ("sqlite", "postgresql")
"""A soak kills on both; what an ingest does to the lake does not depend on the engine."""


def schedule(kills: int) -> list[str]:
    """Where each start is killed; the empty text means at a random moment.

    The case that matters comes first, on a table that does not exist yet.
    """
    rng = random.Random(SEED)
    points = (FaultPoint.LAKE_COMMITTED, FaultPoint.LAKE_WRITTEN)
    plan = [f"{FaultPoint.LAKE_COMMITTED}=kill", f"{FaultPoint.LAKE_WRITTEN}=kill@2", RANDOM]
    while len(plan) < kills:
        plan.append(f"{rng.choice(points)}=kill@{rng.randint(2, 3)}")
        plan.append(RANDOM)
    return plan[:kills]


def rows(lake: Lake) -> list[Entry]:
    """The table in the order of the log; none if there is no table."""
    if lake.delta("log") is None:
        return []
    return [Entry(**row) for row in lake.arrow("log").sort_by("committed_id").to_pylist()]


def wait_for_growth(lake: Lake, before: int) -> None:
    """Wait until the table is complete through more than it was."""
    deadline = time.monotonic() + END_SECONDS
    while lake.through("log") == before:
        assert time.monotonic() < deadline, "the table did not grow within the time"
        time.sleep(0.05)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_entry_is_in_the_table_exactly_once(
    store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kills at the fault points and at random moments the table equals the log."""
    monkeypatch.setenv(BUILDING_VARIABLE, "-Xshare:auto")  # no archive of classes for so few starts
    rng = random.Random(SEED)
    lake, log = Lake(tmp_path / "lake"), tmp_path / "ingest.log"
    arguments = ("ingest", "--store", store_location, "--lake", str(lake.root), *FAST)
    write_log(store_location, [])
    between = 0
    with live_writer(store_location, tmp_path / "enough"):
        for faults in schedule(KILLS):
            before = lake.through("log")
            with pipeline_process(*arguments, "--follow", log=log, faults=faults) as process:
                if faults == RANDOM:
                    wait_for_growth(lake, before)
                    time.sleep(rng.uniform(0, 2))
                    kill_group(process)
                code = process.wait(END_SECONDS)
            assert code == -signal.SIGKILL, log.read_text(errors="replace")[-4000:]
            between += _checkpoint_position(lake.checkpoint("log")) < lake.through("log")
            ids = [entry.committed_id for entry in rows(lake)]
            assert ids == list(range(1, lake.through("log") + 1))
    assert between, "no kill fell between the table's commit and Spark's"
    run_pipeline(*arguments, log=log)
    assert rows(lake) == read_log(store_location)
