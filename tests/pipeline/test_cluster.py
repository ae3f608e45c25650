"""The same ingest on a real standalone Spark cluster with PostgreSQL."""

from pathlib import Path

from support.log_writer import draft, read_log, write_log
from support.pipeline_process import run_pipeline
from support.spark_cluster import SparkCluster
from tidelog.pipeline.lake import Lake
from tidelog.store.rows import Entry


def test_executors_of_a_cluster_fill_the_table(
    cluster: SparkCluster, postgresql_url: str, tmp_path: Path
) -> None:
    """Executors read the store and write the files, the driver commits, table and log are equal."""
    lake, log = Lake(tmp_path / "lake"), tmp_path / "ingest.log"
    write_log(postgresql_url, [draft(n, data=b"\xff\0") for n in range(50)])
    store = ("--store", postgresql_url, "--lake", str(lake.root))
    run_pipeline("ingest", *store, *cluster.arguments, log=log)
    found = lake.arrow("log").sort_by("committed_id").to_pylist()
    assert [Entry(**row) for row in found] == read_log(postgresql_url), cluster.log_text()
    assert cluster.executors() == {"work-0", "work-1"}
