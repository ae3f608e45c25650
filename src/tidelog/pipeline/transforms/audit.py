"""Who did what, and when."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.sends import head_of
from tidelog.pipeline.transforms.shape import moment, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def audit(log: "DataFrame") -> "DataFrame":
    """Rows of `audit` for some rows of `log`."""
    is_send = sql.col("surface") == "mesh"
    return (
        log.select(
            "committed_id",
            moment("committed_at").alias("at"),
            "surface",
            "stream",
            "actor",
            sql.col("kind").alias("action"),
            "entity",
            "ref",
            sql.when(is_send, head_of(sql.col("body"))["supersedes"]).alias("supersedes"),
            sql.lower(sql.hex("digest")).alias("digest"),
        )
    ).transform(shaped("audit"))
