"""Frames of many rows and of few."""

from typing import TYPE_CHECKING

import pytest

from tidelog.pipeline.frames import together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize(("partitions", "tasks"), [("1", 2), ("4", 14)])
def test_many_frames_are_read_by_few_tasks_if_they_are_small(
    spark: "SparkSession", partitions: str, tasks: int
) -> None:
    """Every row is there once, however many tasks read them; each frame alone would be two."""
    before = spark.conf.get(PARTITIONS)
    assert before is not None
    frames = [spark.range(3 * n, 3 * n + 3, numPartitions=2) for n in range(7)]
    try:
        spark.conf.set(PARTITIONS, partitions)
        whole = together(frames)
        assert whole.rdd.getNumPartitions() == tasks
        assert sorted(row["id"] for row in whole.collect()) == list(range(21))
    finally:
        spark.conf.set(PARTITIONS, before)
