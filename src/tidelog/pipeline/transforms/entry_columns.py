"""Columns of entries in the words of the tables, over Arrow."""

from binascii import hexlify

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MOMENT = pa.timestamp("us", "UTC")


def moments(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times of the log, milliseconds since 1970, as timestamps."""
    return pc.multiply(pc.cast(milliseconds, pa.int64()), 1000).cast(_MOMENT)


def in_hexadecimal(values: pa.ChunkedArray) -> pa.Array:
    """Bytes of which none is null as text, all at once."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    _, offsets, content = whole.cast(pa.binary()).buffers()
    if not len(whole) or content is None:
        return pa.array([""] * len(whole), pa.string())
    ends = np.frombuffer(offsets, np.int32)[whole.offset : whole.offset + len(whole) + 1]
    text = hexlify(memoryview(content)[ends[0] : ends[-1]])
    places = ((ends - ends[0]) * 2).astype(np.int32)
    return pa.StringArray.from_buffers(len(whole), pa.py_buffer(places), pa.py_buffer(text))


def as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes as the text that they are; nobody looks whether they are one, as Spark does not."""
    options = pc.CastOptions(target_type=pa.string(), allow_invalid_utf8=True)
    return pc.cast(values, options=options)
