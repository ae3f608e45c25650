"""Entries as rows of `audit`, over Arrow tables.

The same is written once more for Spark, in `audit`: a full check compares what both make.
"""

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.tables import BY_NAME
from tidelog.pipeline.transforms.entry_columns import in_hexadecimal, moments

ENTRY = (
    *("committed_id", "committed_at", "surface", "stream", "actor", "kind", "entity", "ref"),
    *("body", "digest"),
)
"""The columns of `log` that a row is made of."""

_META = b',"meta":'
"""What stands before the sender's own JSON, which is last: nobody reads that."""


class _Head(msgspec.Struct, gc=False):
    supersedes: str | None = None


_decode = msgspec.json.Decoder(_Head).decode


def audit_of(entries: pa.Table) -> pa.Table:
    """The rows of `audit` that entries make."""
    schema = arrow_schema(BY_NAME["audit"])
    columns = {
        "committed_id": entries["committed_id"],
        "at": moments(entries["committed_at"]),
        **{name: entries[name] for name in ("surface", "stream", "actor", "entity", "ref")},
        "action": entries["kind"],
        "supersedes": _superseded(entries),
        "digest": in_hexadecimal(entries["digest"]),
    }
    return pa.table({name: columns[name] for name in schema.names}).cast(schema)


def _superseded(entries: pa.Table) -> pa.Array:
    """What each send takes the place of."""
    is_send = pc.equal(entries["surface"], "mesh")
    if not pc.any(is_send).as_py():
        return pa.nulls(len(entries), pa.string())
    bodies = pc.if_else(is_send, entries["body"], pa.scalar(None, pa.binary()))
    return pa.array(map(_named, bodies.to_pylist()), pa.string())


def _named(body: bytes | None) -> str | None:
    if body is None:
        return None
    mark = body.find(_META)
    try:
        return _decode(body if mark < 0 else body[:mark] + b"}").supersedes
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
