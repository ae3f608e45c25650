"""Tables that were built in small steps, while the server's own services wrote and pruned."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

from support.pipeline.mixed_log import write_in_steps
from support.sync.peer import MODEL
from tidelog.pipeline.fill.derived_tables import build, buildable, unchanged
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.sync.protocol.profiles import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = int(os.environ.get("TIDELOG_TEST_SOAK_PIPELINE_JOBS", "1"))
ENGINES = ("postgresql",) if JOBS == 1 else ("sqlite", "postgresql")
"""On SQLite a log of the tests' own is built in steps too, see `test_derived_tables`."""

HEADS = (300, 500) if JOBS == 1 else (500, 900, 1000)
"""How long the log is at each build; a soak has a round more."""


def rows_of(lake: Lake) -> dict[str, list[str]]:
    """All rows of all tables, in an order of their own."""
    return {
        name: sorted(json.dumps(row, default=repr) for row in lake.arrow(name).to_pylist())
        for name in buildable()
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(JOBS))
def test_small_builds_make_what_one_build_makes(
    spark: "SparkSession", store_location: str, tmp_path: Path, seed: int
) -> None:
    """Messages, events and sends, acknowledgements, purges and archives between the builds."""
    store, lake = StoreAddress(store_location), Lake(tmp_path / "steps")
    model = Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])
    modes: list[set[str]] = []

    def build_a_step() -> None:
        assert catch_up(store, lake)
        modes.append({built.mode for built in build(spark, lake, store, model=model)})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_in_steps(store_location, HEADS, seed, build_a_step))
    assert modes == [{"full"}, *[{"new"}] * (len(HEADS) - 1)]
    assert unchanged(lake, store, model=model) is not None
    shutil.copytree(lake.path("log"), tmp_path / "once" / "bronze" / "log")
    once = Lake(tmp_path / "once")
    build(spark, once, store, model=model)
    found = rows_of(once)
    assert rows_of(lake) == found
    assert all(found.values()), "every table has rows, or the comparison shows nothing"
