"""permessage-deflate (RFC 7692): what both sides agree on, and messages compressed and restored.

Each message stands for itself, in both directions (`server_no_context_takeover`,
`client_no_context_takeover`): one compressed frame serves every receiver, and a connection holds no
window. Ours have 4 KiB, since one is set up for each message: that takes an eighth of the memory of
zlib's default, and a token's frame becomes as small (`bench/deflate.py`).
"""

import re
import zlib
from collections.abc import Iterable
from typing import Final

from tidelog.base.net.frame import frame
from tidelog.web.reader import COMPRESSED, INVALID_TEXT, TOO_BIG, Violation

MIN_BYTES = 128
"""Smaller payloads are sent as they are: there is little to gain."""
MAX_BYTES = 65_536
"""Larger ones too: to compress one takes milliseconds, in which nobody else is served."""

_WINDOW_BITS: Final = 12
_MEMORY_LEVEL: Final = 5
_LEVEL: Final = 6
_LARGEST_WINDOW_BITS: Final = 15
"""What a client may compress with; we need not know what it does."""
_FLUSHED: Final = b"\x00\x00\xff\xff"
"""The end of a flushed block, which is not sent (RFC 7692, 7.2.1)."""

_AGREED: Final = b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"
_BITS: Final = re.compile(rb'("?)([89]|1[0-5])\1')


def agree(offers: Iterable[bytes]) -> bytes | None:
    """What to reply to the extensions that a client offers, as header values; None for nothing."""
    for offer in b",".join(offers).split(b","):
        name, *parameters = (part.strip() for part in offer.split(b";"))
        if name.lower() == b"permessage-deflate":
            agreed = _accepted(parameters)
            if agreed is not None:
                return agreed
    return None


def _accepted(parameters: list[bytes]) -> bytes | None:
    """The reply to one offer; None if it is malformed or asks for what we do not do."""
    seen: set[bytes] = set()
    agreed = _AGREED
    for parameter in parameters:
        name, has_value, value = parameter.partition(b"=")
        name = name.strip().lower()
        bits = _BITS.fullmatch(value.strip())
        if name in seen:
            return None
        seen.add(name)
        if name in (b"server_no_context_takeover", b"client_no_context_takeover"):
            if has_value:
                return None
        elif name == b"client_max_window_bits":
            if has_value and bits is None:
                return None
        elif name == b"server_max_window_bits":
            if bits is None or int(bits[2]) < _WINDOW_BITS:
                return None
            agreed += b"; server_max_window_bits=%d" % _WINDOW_BITS
        else:
            return None
    return agreed


def deflated(frames: bytes) -> bytes:
    """Whole server frames, one after the other, with what is worth it compressed."""
    parts: list[bytes] = []
    at, end = 0, len(frames)
    while at < end:
        first, size = frames[at], frames[at + 1]
        start = at + 2
        if size > 125:
            start += 2 if size == 126 else 8
            size = int.from_bytes(frames[at + 2 : start], "big")
        following = start + size
        # A control frame is smaller, so it is never compressed.
        if MIN_BYTES <= size <= MAX_BYTES:
            compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL)
            payload = compressor.compress(frames[start:following])
            payload = (payload + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_FLUSHED)
            smaller = frame(first & 0x0F | COMPRESSED, payload)
            parts.append(smaller if len(smaller) < following - at else frames[at:following])
        else:
            parts.append(frames[at:following])
        at = following
    return b"".join(parts)


def inflated(payload: bytes, max_bytes: int) -> bytes:
    """A message as it was before the client compressed it.

    Raises:
        Violation: it was not compressed so, or is larger than `max_bytes`; no more than that is
            ever restored of it.
    """
    restorer = zlib.decompressobj(-_LARGEST_WINDOW_BITS)
    try:
        restored = restorer.decompress(payload + _FLUSHED, max_bytes + 1)
    except zlib.error:
        raise Violation(INVALID_TEXT, "message is not compressed as it says") from None
    if len(restored) > max_bytes:
        raise Violation(TOO_BIG, "message too large")
    return restored
