"""What changed, position by position: what somebody needs who follows all surfaces."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.shape import moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def changes(log: "DataFrame") -> "DataFrame":
    """Rows of `changes` for some rows of `log`."""
    return log.withColumns(
        {
            "at": moment("committed_at"),
            "change": sql.col("body").cast("string"),
            "content": sql.col("data"),
            "digest": sql.lower(sql.hex("digest")),
        }
    ).transform(shaped("changes"))
