"""The same jobs on SQLite, and on a cluster with PostgreSQL, make the same tables.

From PostgreSQL without a cluster: `fill/test_small_builds.py`, `checks/test_checks.py`.
"""

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyspark
from deltalake import DeltaTable

from support.pipeline.pipeline_process import RUN_SECONDS, completed
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
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import search
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.jvm import find_jvm
from tidelog.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@contextmanager
def first_executors_die(cluster: SparkCluster) -> Iterator[None]:
    """In the block, every executor of the cluster is killed as soon as one of them has a task."""
    is_over, killed = threading.Event(), list[int]()

    def kill() -> None:
        while not is_over.wait(0.05):
            if cluster.is_at_work():
                killed.append(cluster.kill_executors())
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert sum(killed) > 0, "there was no executor to kill"


def test_spark_submit_on_a_cluster_makes_the_same_tables(
    spark: "SparkSession",
    cluster: SparkCluster,
    whole: WholeLake,
    postgresql_url: str,
    tmp_path: Path,
) -> None:
    """Two executors read PostgreSQL and write; they die in the ingest, and others take their place.

    Master, memory and a default file system of its own stay as they were given; every row, index,
    verdict and the past are as elsewhere. A follower whose executors die again and again:
    `tests/soak/test_executor_kills.py`.
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
    with first_executors_die(cluster):
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
    assert list((tmp_path / "elsewhere").iterdir()) == []
    [events] = tmp_path.glob("app-*")
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    # Whether a task dies with its executor is a matter of moments; that others do the work is not.
    seen = Counter(line["Event"] for line in lines)
    assert seen["SparkListenerExecutorRemoved"] > 0
    assert seen["SparkListenerExecutorAdded"] > 1, "none took the place of the first"
    told = next(line for line in lines if line["Event"] == "SparkListenerEnvironmentUpdate")
    settings = dict(told["Spark Properties"])
    assert settings["spark.master"] == cluster.master
    assert settings["spark.driver.memory"] == "900m"
    assert settings["spark.app.name"] == SUBMIT.name
    assert settings["spark.sql.session.timeZone"] == "UTC"
