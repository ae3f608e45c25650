"""Files of any table of the lake, with plain rows, made without Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.tables import BY_NAME

_KINDS = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
    "double": pa.float64(),
}
VALUES = {
    "bigint": 7,
    "string": "confidential",
    "binary": b"confidential",
    "boolean": True,
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "array<string>": ["confidential"],
    "double": 0.5,
}
"""What a column of each kind holds in every row."""


def written(lake: Lake, name: str, *numbers: int) -> Path:
    """A file of a table, not yet added, with a row for each number."""
    table = BY_NAME[name]
    schema = pa.schema([(column.name, _KINDS[column.kind]) for column in table.columns])
    row = {column.name: VALUES[column.kind] for column in table.columns}
    position = {column.name for column in table.columns if "committed_id" in column.name}
    rows = [row | dict.fromkeys(position, number) for number in numbers]
    file = lake.new_folder(name) / "rows.parquet"
    write_parquet(file, schema, pa.Table.from_pylist(rows, schema).to_batches())
    return file
