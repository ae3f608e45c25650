"""The body of a channel entry, read column by column.

Application values stay the JSON text they were published as: `"1"` is not `1`, `1.10` is not `1.1`,
and integers of any size keep every digit. That is why it is read in Python, not because it is
cheaper: Spark's own readers cost the same or a little less, but `from_json` cannot tell null from
absent, VARIANT makes doubles of integers beyond 38 digits and loses the sign of `-0.0`, and both
make the text `"Infinity"` of `1e400`.

This is a reading of the stored format of its own, and shares no code with the server's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct

_ABSENT = Raw(b"")
"""No JSON text is empty: a value that is not there, unlike `null`."""


class _Body(Struct, gc=False):
    message_id: str | None = None
    history_serial: int | None = None
    name: str | None = None
    data: Raw = _ABSENT
    data_bytes: int | None = 0
    extras: Raw = _ABSENT
    tags: Raw = _ABSENT
    creator: str | None = None
    client_id: str | None = None
    description: str | None = None
    metadata: Raw = _ABSENT
    kept: tuple[str, ...] | None = ()
    cleared: tuple[str, ...] | None = ()
    op_id: str | None = None
    is_available: bool = True


_GONE = _Body(data_bytes=None, kept=None, cleared=None, is_available=False)
"""In place of a body that was pruned or forgotten, or cannot be read: the digest check tells."""

_decode = msgspec.json.Decoder(_Body).decode


def _read(body: bytes | None) -> _Body:
    if body is None:
        return _GONE
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _GONE


def _texts(values: Iterable[Any]) -> pa.Array:
    return pa.array(values, pa.string())


def _numbers(values: Iterable[Any]) -> pa.Array:
    return pa.array(values, pa.int64())


def _json(values: Iterable[Any]) -> pa.Array:
    texts = [None if value is _ABSENT else bytes(value) for value in values]
    return pa.array(texts, pa.binary()).cast(pa.string())


def _names(values: Iterable[Any]) -> pa.Array:
    return pa.array(values, pa.list_(pa.string()))


def _flags(values: Iterable[Any]) -> pa.Array:
    return pa.array(values, pa.bool_())


_COLUMNS: dict[str, Callable[[Iterable[Any]], pa.Array]] = {
    "message_id": _texts,
    "history_serial": _numbers,
    "name": _texts,
    "data": _json,
    "data_bytes": _numbers,
    "extras": _json,
    "tags": _json,
    "creator": _texts,
    "client_id": _texts,
    "description": _texts,
    "metadata": _json,
    "kept": _names,
    "cleared": _names,
    "op_id": _texts,
    "is_available": _flags,
}


def read_bodies(bodies: "Iterable[bytes | None]") -> dict[str, pa.Array]:
    """What is in each of some bodies, a column for each field."""
    found = [_read(body) for body in bodies]
    return {
        name: column([getattr(each, name) for each in found]) for name, column in _COLUMNS.items()
    }
