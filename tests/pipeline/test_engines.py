"""The same jobs on SQLite, on PostgreSQL, and on a cluster with PostgreSQL make the same tables."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
from deltalake import DeltaTable

from support.pipeline_process import RUN_SECONDS, completed
from support.spark_cluster import SparkCluster
from support.store_copy import copy_to_postgresql
from support.whole_pipeline import (
    Outcome,
    WholeLake,
    contents,
    documents,
    run_everything,
)
from tidelog.pipeline.checks.run import CHECKS
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import search
from tidelog.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMS = {
    table.name: next(column.name for column in table.columns if column.kind == "bigint")
    for table in TABLES
    if table.name == "log" or table.name in buildable()
}
"""By table: a column of whole numbers whose sum every reader must find."""


def agrees(spark: "SparkSession", lake: Lake, outcome: Outcome, expected: WholeLake) -> None:
    """Tables, index, verdicts and the past are what they are on SQLite."""
    assert outcome == expected.outcome(spark)
    assert outcome.unsound == []
    assert outcome.examined.keys() == set(CHECKS)
    assert all(outcome.examined.values())
    assert all(outcome.then.values())
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


def test_postgresql_makes_the_same_tables(
    spark: "SparkSession", whole: WholeLake, postgresql_url: str, tmp_path: Path
) -> None:
    """Ingest, all tables, all checks, the index and time travel, from the same log there."""
    asyncio.run(copy_to_postgresql(str(whole.store), postgresql_url))
    lake = Lake(tmp_path / "lake")
    outcome = run_everything(spark, postgresql_url, lake)
    agrees(spark, lake, outcome, whole)
    assert read_elsewhere(lake) == read_elsewhere(whole.lake)


def test_a_cluster_makes_the_same_tables(
    spark: "SparkSession",
    cluster: SparkCluster,
    whole: WholeLake,
    postgresql_url: str,
    tmp_path: Path,
) -> None:
    """The same jobs on a master and two workers, whose executors read PostgreSQL and write."""
    asyncio.run(copy_to_postgresql(str(whole.store), postgresql_url))
    lake = Lake(tmp_path / "lake")
    told = {
        "store": postgresql_url,
        "lake": str(lake.root),
        "master": cluster.master,
        "conf": cluster.conf,
    }
    ended = completed(
        [sys.executable, "-m", "support.whole_pipeline", json.dumps(told)],
        seconds=RUN_SECONDS,
        cwd=Path(__file__).parents[1],
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + cluster.log_text()
    agrees(spark, lake, Outcome(**json.loads(ended.stdout.splitlines()[-1])), whole)
    assert read_elsewhere(lake) == read_elsewhere(whole.lake)
    assert cluster.executors() == {"work-0", "work-1"}
