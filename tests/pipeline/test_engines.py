"""The same jobs on SQLite, and on a cluster with PostgreSQL, make the same tables.

From PostgreSQL without a cluster: `fill/test_small_builds.py`, `checks/test_checks.py`.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyspark
from deltalake import DeltaTable

from support.log.log_writer import draft, live_writer, read_log, write_log
from support.pipeline.pipeline_process import RUN_SECONDS, completed, pipeline_process
from support.pipeline.spark_cluster import SparkCluster
from support.pipeline.whole_pipeline import (
    Outcome,
    WholeLake,
    contents,
    documents,
    outcome,
)
from support.store.store_copy import copy_to_postgresql
from tidelog.pipeline.checks.run import CHECKS
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import search
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.jvm import find_jvm
from tidelog.pipeline.tables import TABLES
from tidelog.store.rows import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = max(1, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "0")))
"""Of all executors; `scripts/soak --kills` raises it."""

SUBMIT = Path(__file__).parents[2] / "deploy" / "submit.py"

SUMS = {
    table.name: next(column.name for column in table.columns if column.kind == "bigint")
    for table in TABLES
    if table.name == "log" or table.name in buildable()
}
"""By table: a column of whole numbers whose sum every reader must find."""


def agrees(spark: "SparkSession", lake: Lake, came: Outcome, expected: WholeLake) -> None:
    """Tables, index, verdicts and the past are what they are on SQLite."""
    store = StoreAddress(str(expected.store))
    assert came == outcome(spark, expected.lake, store, expected.result)
    assert came.unsound == []
    assert came.examined.keys() == set(CHECKS)
    assert all(came.examined.values())
    assert all(came.then.values())
    found = contents(lake)
    assert found == contents(expected.lake)
    assert all(found.values()), "every table has rows, or the comparison shows nothing"
    assert documents(lake) == documents(expected.lake) > 0
    assert search(lake.root, "hello").total == search(expected.lake.root, "hello").total > 0


def read_elsewhere(lake: Lake) -> dict[str, list[tuple[int, int]]]:
    """By table: number of rows and sum of a column, as DuckDB and as Polars find them."""
    found = {}
    for name, column in SUMS.items():
        path = str(lake.path(name))
        files = DeltaTable(path).file_uris()
        query = f"SELECT count(*), sum({column})::bigint FROM read_parquet({files!r})"
        [by_duckdb] = duckdb.execute(query).fetchall()
        frame = pl.scan_delta(path).select(pl.len(), pl.col(column).sum().alias("sum")).collect()
        found[name] = [by_duckdb, frame.row(0)]
    return found


def test_other_engines_read_the_tables(whole: WholeLake) -> None:
    """DuckDB and Polars count the rows and sum the columns of every table as Arrow does."""
    lake = whole.lake
    for name, both in read_elsewhere(lake).items():
        numbers = lake.arrow(name, [SUMS[name]])[SUMS[name]].to_pylist()
        here = (len(numbers), sum(number or 0 for number in numbers))
        assert both == [here, here], name


def test_spark_submit_on_a_cluster_makes_the_same_tables(
    spark: "SparkSession",
    cluster: SparkCluster,
    whole: WholeLake,
    postgresql_url: str,
    tmp_path: Path,
) -> None:
    """A master and two workers, whose executors read PostgreSQL and write.

    Master, memory and a default file system of its own stay as they were given; every row, index,
    verdict and the past are as elsewhere.
    """
    asyncio.run(copy_to_postgresql(str(whole.store), postgresql_url))
    lake = Lake(tmp_path / "lake")
    (tmp_path / "elsewhere").mkdir()
    conf = {
        **cluster.conf,
        "spark.hadoop.fs.defaultFS": "viewfs://tidelog/",
        "spark.hadoop.fs.viewfs.mounttable.tidelog.link./elsewhere": f"file://{tmp_path}/elsewhere",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{tmp_path}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    del conf["spark.driver.memory"]
    with find_jvm().chosen():
        java = os.environ["JAVA_HOME"]
    ended = completed(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", cluster.master, "--driver-memory", "900m"),
            *(text for pair in conf.items() for text in ("--conf", "=".join(pair))),
            *(str(SUBMIT), "pipeline", "run", "--json", *whole.arguments()),
            *("--store", postgresql_url, "--lake", str(lake.root)),
        ],
        seconds=RUN_SECONDS,
        cwd=tmp_path,
        environment={
            "JAVA_HOME": java,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + cluster.log_text()
    result = json.loads(ended.stdout)
    assert [table["name"] for table in result["tables"]] == list(buildable())
    agrees(spark, lake, outcome(spark, lake, StoreAddress(postgresql_url), result), whole)
    assert read_elsewhere(lake) == read_elsewhere(whole.lake)
    assert cluster.executors() == {"work-0", "work-1"}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    [events] = tmp_path.glob("app-*")
    lines = map(json.loads, events.read_text(encoding="utf-8").splitlines())
    told = next(line for line in lines if line["Event"] == "SparkListenerEnvironmentUpdate")
    settings = dict(told["Spark Properties"])
    assert settings["spark.master"] == cluster.master
    assert settings["spark.driver.memory"] == "900m"
    assert settings["spark.app.name"] == SUBMIT.name
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_executors_that_die_leave_every_entry_once(cluster: SparkCluster, tmp_path: Path) -> None:
    """They are killed, in a soak again and again, while a follower brings what a writer commits."""
    location, log = str(tmp_path / "tidelog.db"), tmp_path / "follow.log"
    lake = Lake(tmp_path / "lake")
    write_log(location, [draft(n) for n in range(50)])
    arguments = ["ingest", "--follow", "--store", location, "--lake", str(lake.root)]
    arguments += ["--master", cluster.master]
    conf = {**cluster.conf, "spark.cores.max": "1"}  # one executor: all of them die all the same
    arguments += [text for pair in conf.items() for text in ("--conf", "=".join(pair))]

    def has_grown(than: int) -> bool:
        """Wait until the table has more than that."""
        deadline = time.monotonic() + RUN_SECONDS
        while lake.through("log") <= than and time.monotonic() < deadline:
            time.sleep(0.1)
        return lake.through("log") > than

    with (
        live_writer(location, tmp_path / "enough"),
        pipeline_process(*arguments, log=log) as process,
    ):
        for _ in range(KILLS):
            grown = has_grown(lake.through("log"))
            assert grown, log.read_text(errors="replace")[-4000:] + cluster.log_text()
            assert cluster.kill_executors(), "there was no executor to kill"
        assert has_grown(lake.through("log")), log.read_text(errors="replace")[-4000:]
        process.terminate()
        assert process.wait(RUN_SECONDS) == 0, log.read_text(errors="replace")[-4000:]
    assert catch_up(StoreAddress(location), lake)
    entries = [Entry(**row) for row in lake.arrow("log").sort_by("committed_id").to_pylist()]
    assert entries == read_log(location)
