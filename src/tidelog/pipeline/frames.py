"""Frames of rows that the driver has, and the columns of a table as Arrow has them.

Such rows go to Spark through Arrow: for rows of plain Python, Spark starts a process that converts
them, which on a small job takes longer than the job. And a frame that is known to be empty lets
Spark leave out what it would be joined with.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.pipeline.tables import Table

_ARROW = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "double": pa.float64(),
    "array<string>": pa.list_(pa.string()),
}


def arrow_schema(table: "Table") -> pa.Schema:
    """The columns of a table."""
    return pa.schema([(column.name, _ARROW[column.kind]) for column in table.columns])


def frame_of_rows(
    spark: "SparkSession", rows: "Iterable[tuple[Any, ...]] | pa.Table", ddl: str
) -> "DataFrame":
    """Rows with the columns that `ddl` names, in its order; a table has columns of these names."""
    from pyspark.sql.pandas.types import to_arrow_schema

    kinds = _struct(ddl)
    if not isinstance(rows, pa.Table):
        rows = pa.Table.from_pylist(
            [dict(zip(kinds.names, row, strict=True)) for row in rows],
            to_arrow_schema(kinds, timezone="UTC"),
        )
    if not rows.num_rows:
        return empty_frame(spark, ddl)
    return spark.createDataFrame(rows.select(kinds.names), kinds)


def empty_frame(spark: "SparkSession", ddl: str) -> "DataFrame":
    """No rows, with the columns that `ddl` names."""
    kinds = ((quoted(field.name), field.dataType.simpleString()) for field in _struct(ddl).fields)
    return spark.range(0).selectExpr(*(f"CAST(NULL AS {kind}) AS {name}" for name, kind in kinds))


def quoted(column: str) -> str:
    """The name of a column in text for Spark.

    What is made for each of many columns is told as text: in Python each call of a function of
    Spark's is several messages to the JVM, and what it returns one more.
    """
    return f"`{column}`"


def together(frames: "Sequence[DataFrame]") -> "DataFrame":
    """The rows of many frames, which have the same columns.

    Each task is sent the plans of all of them, so for a small log a few tasks read one frame after
    the other.
    """
    whole = _union(frames)
    if whole.sparkSession.conf.get("spark.sql.shuffle.partitions") != "1":
        return whole
    # Not one task: then nothing would come together, and who reads it twice would make it twice.
    return whole.coalesce(2)


def _union(frames: "Sequence[DataFrame]") -> "DataFrame":
    """By halves: each union is analyzed with all that is below it."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return _union(frames[:middle]).unionByName(_union(frames[middle:]))


@cache
def _struct(ddl: str) -> "StructType":
    """What columns are called and of which kind; Spark is asked for it."""
    from pyspark.sql.types import StructType

    kinds = StructType.fromDDL(ddl)
    assert isinstance(kinds, StructType)  # noqa: S101 - what columns make
    return kinds


def spark_path(path: str | Path) -> str:
    """A path as Spark is told it: a bare one would be in whatever `fs.defaultFS` names."""
    return f"file://{Path(path).absolute()}"
