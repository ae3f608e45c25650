"""Rows into a Parquet file, in groups of a size that a writer can hold and a reader wants."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import numpy as np

GROUP_BYTES = 64 * 1024 * 1024
"""Rows that are written together: what a reader takes at once, and a writer holds in memory."""

SORTED_GROUP_BYTES = 4 * 1024 * 1024
"""The same where rows are sorted: who looks for a few of them skips most groups."""

SORTED_ROWS = 500_000
SORTED_BYTES = 256 * 1024 * 1024
"""Rows that are sorted together, at most: a writer has them in memory, and the next ones follow
sorted by themselves."""

_BATCH_ROWS = 4096


def write_parquet(
    file: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    order: Sequence[str] = (),
    **options: Any,
) -> None:
    """Write rows to a new file, whose folder is made if need be.

    Args:
        file: The file.
        schema: Columns of the rows.
        batches: The rows.
        order: Columns by which they are sorted.
        options: Of `ParquetWriter`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    size = SORTED_GROUP_BYTES if order else GROUP_BYTES
    rows = _sorted(schema, batches, order) if order else batches
    # Pages say what is in them where that is not the same in all of them.
    options = {"write_page_index": bool(order), **options}
    with pq.ParquetWriter(file, schema, compression="zstd", **options) as writer:
        for group in _groups(schema, rows, size):
            writer.write_table(group)


def _groups(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], most_bytes: int, most_rows: int = 0
) -> Iterator[pa.Table]:
    """Rows in groups of about so many bytes, or of so many rows if that is less."""
    held, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if size >= most_bytes or 0 < most_rows <= rows:
            yield pa.Table.from_batches(held, schema)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)


def _sorted(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], order: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows sorted, as many as may be held at once."""
    import numpy as np

    for rows in _groups(schema, batches, SORTED_BYTES, SORTED_ROWS):
        whole = rows.combine_chunks()
        places = np.lexsort([_ranks(whole[name]) for name in reversed(order)])
        yield from whole.take(pa.array(places)).to_batches(max_chunksize=_BATCH_ROWS)


def _ranks(column: pa.ChunkedArray) -> "np.ndarray[Any, Any]":
    """Numbers in the order of the values; of texts there are few, and each is compared once."""
    import numpy as np

    if pa.types.is_integer(column.type):
        places: np.ndarray[Any, Any] = column.to_numpy()
        return places
    encoded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    numbers: np.ndarray[Any, Any] = ranks[encoded.indices.to_numpy()]
    return numbers
