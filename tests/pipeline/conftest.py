"""One Spark session for all tests of the tier: a JVM costs seconds to start."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.spark_cluster import SHORT_LIVED, SparkCluster, spark_cluster
from tidelog.pipeline.class_archive import BUILDING_VARIABLE
from tidelog.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


os.environ[BUILDING_VARIABLE] = "-Xshare:auto"
"""No archive of classes, here and in the processes that tests start: in a new place it costs more
to build than these few starts would save. `tests/soak/test_class_archive.py` builds one."""


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A local session with the source registered, as every command of the pipeline gets it."""
    session = spark_session(
        conf=[
            ("spark.sql.shuffle.partitions", "2"),
            ("spark.driver.memory", "1g"),
            ("spark.driver.extraJavaOptions", SHORT_LIVED),
        ]
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone cluster of a master and two workers, for the tests that run jobs on it."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
