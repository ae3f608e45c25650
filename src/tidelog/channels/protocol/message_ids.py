"""Ids of messages and of system frames: UUIDs of version 4, made of random bytes from outside."""

import hmac
from collections.abc import Callable

_ID_BYTES = 16
_HALF_BYTES = 8
_BLOCK_IDS = 256

_VARIANT = {f"{bits:x}": f"{bits & 0b0011 | 0b1000:x}" for bits in range(16)}
"""A digit of an id, by what it would be without its two fixed bits."""

_SYSTEM_KEY = b"tidelog/channels/system frame"
"""No secret: who forges an id of a system frame misleads nobody but itself."""


class MessageIds:
    """Makes ids. Not for other threads than the event loop's."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` returns as many random bytes as it is asked for, like `os.urandom`."""
        self._random_bytes = random_bytes
        self._block = b""
        self._at = 0

    def message(self) -> str:
        """The id of a message, or of one version of it."""
        return _uuid(self._take())

    def system(self) -> str:
        """The `message_id` of a system frame: an id whose second half vouches for the first.

        Some clients send it back as the id of the last message, which it is not.
        """
        return _system_id(self._take()[:_HALF_BYTES])

    def _take(self) -> bytes:
        # In blocks: one call of the system for each id costs more than the id.
        if self._at == len(self._block):
            self._block, self._at = self._random_bytes(_ID_BYTES * _BLOCK_IDS), 0
        taken = self._block[self._at : self._at + _ID_BYTES]
        self._at += _ID_BYTES
        return taken


def is_system_id(message_id: str) -> bool:
    """Whether `MessageIds.system` made it, on any node and at any time."""
    try:
        first = bytes.fromhex(message_id.replace("-", ""))[:_HALF_BYTES]
    except ValueError:
        return False
    return len(first) == _HALF_BYTES and message_id == _system_id(first)


def _system_id(first: bytes) -> str:
    # Signed as it appears: the version's four bits are in the first half.
    first = bytes((*first[:6], first[6] & 0x0F | 0x40, first[7]))
    return _uuid(first + hmac.digest(_SYSTEM_KEY, first, "sha256")[:_HALF_BYTES])


def _uuid(given: bytes) -> str:
    # Version 4 and variant 10 at their places (RFC 9562, section 5.4).
    text = given.hex()
    variant = _VARIANT[text[16]]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
