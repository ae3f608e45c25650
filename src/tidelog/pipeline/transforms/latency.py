"""How long deliveries took."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.shape import minute_of, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latencies(deliveries: "DataFrame") -> "DataFrame":
    """Rows of `latency` for rows of `delivery`; the percentiles are exact."""
    took = sql.unix_micros("delivered_at") - sql.unix_micros("created_at")
    quantiles = sql.percentile("_ms", [0.5, 0.95, 0.99])
    return (
        deliveries.filter(sql.col("delivered_at").isNotNull())
        .select(
            "mesh_id",
            "channel",
            minute_of("created_at").alias("minute"),
            (took / 1000.0).alias("_ms"),
        )
        .groupBy("mesh_id", "channel", "minute")
        .agg(
            sql.count("*").alias("deliveries"),
            quantiles.alias("_quantiles"),
            sql.max("_ms").alias("max_ms"),
        )
        .withColumns(
            {
                "p50_ms": sql.col("_quantiles")[0],
                "p95_ms": sql.col("_quantiles")[1],
                "p99_ms": sql.col("_quantiles")[2],
            }
        )
        .transform(shaped("latency"))
    )
