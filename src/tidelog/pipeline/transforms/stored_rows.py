"""Rows of the store's relations as rows of the tables that mirror them, over Arrow.

The same is written once more for Spark, in `sends`: a check compares what both make.
"""

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.tables import BY_NAME


def mirrored(name: str, stored: pa.Table) -> pa.Table:
    """Rows of the table `name` for rows of the relation that it mirrors."""
    rows = {column: stored[column] for column in stored.column_names}
    if name == "delivery":
        # A lease is not shown: it ends within seconds, and is no part of what became of it.
        is_leased = pc.equal(rows["status"], "claimed")
        rows["status"] = pc.if_else(is_leased, "pending", rows["status"])
        rows["attempts"] = pc.subtract(rows["attempts"], pc.cast(is_leased, pa.int64()))
    if name == "dedupe":
        rows["is_available"] = pc.equal(rows["available"], 1)
    columns = []
    for field in arrow_schema(BY_NAME[name]):
        column = rows[field.name]
        if pa.types.is_timestamp(field.type):
            column = pc.cast(pc.multiply(pc.cast(column, pa.int64()), 1000), field.type)
        columns.append(pc.cast(column, field.type))
    return pa.table(columns, schema=arrow_schema(BY_NAME[name]))
