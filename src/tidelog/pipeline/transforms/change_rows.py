"""Entries as rows of `changes`, over Arrow tables.

The same is written once more for Spark, in `changes`: a full check compares what both make.
"""

import pyarrow as pa

from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.tables import BY_NAME
from tidelog.pipeline.transforms.entry_columns import as_text, in_hexadecimal, moments

_SAME = (
    *("committed_id", "surface", "stream", "stream_serial", "kind", "entity", "ref"),
    "actor",
)

ENTRY = (*_SAME, "committed_at", "body", "data", "digest")
"""The columns of `log` that a row is made of."""


def changes_of(entries: pa.Table) -> pa.Table:
    """The rows of `changes` that entries make."""
    schema = arrow_schema(BY_NAME["changes"])
    columns = {
        **{name: entries[name] for name in _SAME},
        "at": moments(entries["committed_at"]),
        "change": as_text(entries["body"]),
        "content": entries["data"],
        "digest": in_hexadecimal(entries["digest"]),
    }
    return pa.table({name: columns[name] for name in schema.names}).cast(schema)
