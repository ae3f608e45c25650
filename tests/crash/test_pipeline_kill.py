"""`kill -9` of the pipeline while a writer goes on: every entry is in its tables exactly once."""

import asyncio
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from support.channels.peer import channels_server, ok
from support.log.log_writer import live_writer, read_log, write_log
from support.pipeline import mixed_log
from support.pipeline.pipeline_process import (
    END_SECONDS,
    RUN_SECONDS,
    kill_group,
    pipeline_process,
    run_pipeline,
)
from support.pipeline.spark_cluster import SHORT_LIVED
from support.pipeline.whole_pipeline import write_config
from tidelog.base.faultpoint import FaultPoint
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE
from tidelog.store.rows import Entry

CASES = 2
KILLS = max(CASES, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "0")))
"""Starts that are killed: at each fault point; `scripts/soak --kills` raises it, and then some are
killed at a random moment."""
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
    """After kills at the fault points, in a soak also at random moments, it equals the log."""
    monkeypatch.setenv(BUILDING_VARIABLE, "-Xshare:auto")  # no archive of classes for so few starts
    rng = random.Random(SEED)
    lake, log = Lake(tmp_path / "lake"), tmp_path / "ingest.log"
    arguments = ("ingest", "--store", store_location, "--lake", str(lake.root), *FAST)
    write_log(store_location, [])
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
            ids = [entry.committed_id for entry in rows(lake)]
            assert ids == list(range(1, lake.through("log") + 1))
    run_pipeline(*arguments, log=log)
    assert rows(lake) == read_log(store_location)


async def publish(store: Path, folder: Path, count: int) -> None:
    """Let the server publish messages."""
    async with channels_server(folder, str(store)) as node:
        for number in range(count):
            body = {"name": "n", "channel": "after-the-kill", "data": f"message {number}"}
            ok(await node.api.post("/events", body))


def wait_for_tables(
    lake: Lake, head: int, process: subprocess.Popen[bytes], log: Path, *more: str
) -> None:
    """Wait until the service has brought every table that is built, and more, to a position."""
    names = ("log", *buildable(), *more)
    deadline = time.monotonic() + RUN_SECONDS
    while {lake.through(name) for name in names} != {head}:
        said = log.read_text(errors="replace")[-4000:]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def test_a_service_goes_on_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First all of it in the middle of a build, then its JVM alone as it begins to check.

    Every table is as it must be: the service's own checks make each again and compare. It ends with
    1 if they find something. The build ends while Spark starts, which saves ten seconds of
    processor time; in `tests/pipeline/fill/test_derived_tables.py` builds end after Spark has made
    tables, those of meshes too.
    """
    monkeypatch.setenv(BUILDING_VARIABLE, "-Xshare:auto")
    store, lake, log = tmp_path / "tidelog.db", Lake(tmp_path / "lake"), tmp_path / "service.log"
    mixed_log.write(str(store), 150, SEED, surfaces=("channels", "sync"))
    write_config(tmp_path)
    config = ("--config", str(tmp_path / "tidelog.toml"))
    arguments = ("run", "--every", "1s", "--json", *config, *FAST)
    with pipeline_process(
        *arguments, log=log, faults=f"{FaultPoint.LAKE_COMMITTED}=kill@3"
    ) as process:
        assert process.wait(RUN_SECONDS) == -signal.SIGKILL, log.read_text(errors="replace")
    with pipeline_process(*arguments, log=log) as process:
        wait_for_tables(lake, len(read_log(str(store))), process, log)
        [jvm] = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.name() == "java"
        ]
        jvm.kill()
        asyncio.run(publish(store, tmp_path / "server", 3))
        wait_for_tables(lake, len(read_log(str(store))), process, log, "verdict")
        process.terminate()
        assert process.wait(RUN_SECONDS) == 0, log.read_text(errors="replace")[-4000:]
    for column in ("committed_id", "digest"):  # the store has archived some content since
        expected = [getattr(entry, column) for entry in read_log(str(store))]
        assert [getattr(entry, column) for entry in rows(lake)] == expected
    assert "Spark has ended and is started again" in log.read_text(errors="replace")
