"""Seals: what tells a stored row that is not in the log's digest chain from a damaged one.

The statement that writes a row writes its seal too: computed by this function on SQLite, which
knows it as `seal(...)`, and by `tidelog.seal` on PostgreSQL. Both digest the same text, a JSON
array of the values with bytes in hexadecimal, so a row keeps its seal on the way from one engine to
the other.
"""

from hashlib import sha256

import msgspec

from tidelog.base.data.nultext import MARK, escape

SIZE_BYTES = 8
"""A changed row keeps its seal once in 2^64 times; rows are not compared with each other."""

_encode = msgspec.json.Encoder().encode
_MARK = MARK.encode()

Value = str | int | bytes | None


def seal(*values: Value) -> bytes:
    """The seal of a row with these values, in the order of its columns."""
    plain = [value.hex() if type(value) is bytes else value for value in values]
    text = _encode(plain)
    if (b"\\" in text and b"\\u0000" in text) or (not text.isascii() and _MARK in text):
        # PostgreSQL seals a text as it keeps it.
        text = _encode([escape(value) if isinstance(value, str) else value for value in plain])
    return sha256(text).digest()[:SIZE_BYTES]
