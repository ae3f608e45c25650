"""One Spark session for all tests of the tier: a JVM costs seconds to start."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.pipeline.spark_cluster import UNVERIFIED, SparkCluster, spark_cluster
from support.pipeline.typed_command import command
from support.pipeline.whole_pipeline import (
    SHARED_VARIABLE,
    WholeLake,
    shared_whole_lake,
    whole_lake,
)
from tidelog.pipeline.lake import lake
from tidelog.pipeline.source.spark_source import register_source
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE
from tidelog.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["command"]

os.environ[BUILDING_VARIABLE] = "-Xshare:auto"
"""No archive of classes, here and in the processes that tests start: in a new place it costs more
to build than these few starts would save. `tests/soak/test_class_archive.py` builds one."""


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A local session with the source registered, as a command on a small log gets it."""
    options = f"{UNVERIFIED} -Xms1g"  # all of it at once: there is less to clean up
    session = spark_session(
        conf=[("spark.driver.memory", "1g"), ("spark.driver.extraJavaOptions", options)], rows=1
    )
    register_source(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def whole(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> WholeLake:
    """A store and all that one `tidelog pipeline run` made of it; to be left as it is.

    In a run of several parts the first that wants it makes it for all of them.
    """
    del spark
    shared = os.environ.get(SHARED_VARIABLE)
    if shared is None:
        return whole_lake(tmp_path_factory.mktemp("whole"))
    return shared_whole_lake(Path(shared) / "whole")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone cluster with room for two executors, for the tests that run jobs on it."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a lake that somebody else writes to."""
    monkeypatch.setattr(lake, "WAIT_SECONDS", 0.0)
