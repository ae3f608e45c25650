"""Rows into a Parquet file, in groups of a size that a writer can hold and a reader wants."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_BYTES = 64 * 1024 * 1024
"""Rows that are written together: what a reader takes at once, and a writer holds in memory."""


def write_parquet(
    file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], **options: Any
) -> None:
    """Write rows to a new file, whose folder is made if need be.

    Args:
        file: The file.
        schema: Columns of the rows.
        batches: The rows.
        options: Of `ParquetWriter`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, schema, compression="zstd", **options) as writer:
        group, size = list[pa.RecordBatch](), 0
        for batch in batches:
            group.append(batch)
            size += batch.nbytes
            if size >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group, schema))
                group, size = [], 0
        if group:
            writer.write_table(pa.Table.from_batches(group, schema))
