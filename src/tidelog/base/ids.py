"""Names that sort by the time they were given: ULIDs.

They are compared as plain text everywhere (SQL, dictionaries, clients), so each has exactly one
spelling.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from tidelog.base.clock import Clock

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _CROCKFORD for low in _CROCKFORD]
_DIGITS = {digit: value for value, digit in enumerate(_CROCKFORD)}
_ULID_LENGTH = 26
_ENTROPY_BITS = 80
_ULID_BITS = 128


class Ulid(NamedTuple):
    """The two parts of a ULID."""

    unix_ms: int
    """When it was minted, by its minter's clock; 48 bits, enough until the year 10889."""
    entropy: int
    """80 bits that make it unique within its millisecond."""


class UlidFactory:
    """Mints ULIDs, each greater than the one before, whatever the clock does.

    A ULID is one 128-bit number. While the clock has not passed the millisecond of the last ULID
    (it stands still, or stepped back) the next one is that number plus one; when the 80 random bits
    are exhausted the carry moves it into the next millisecond. One factory belongs to one thread.
    """

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._last = -1
        self._upper = -1
        self._beginning = ""
        """The last number without its lowest 20 bits, and how that is spelled: most ULIDs of one
        millisecond begin with the same 22 characters, which take four fifths of the time."""

    def mint(self) -> str:
        """A new ULID: 26 upper-case Crockford base32 characters."""
        now_ms = self._clock.now_ms()
        if now_ms > self._last >> _ENTROPY_BITS:
            entropy = int.from_bytes(self._random_bytes(_ENTROPY_BITS // 8), "big")
            number = now_ms << _ENTROPY_BITS | entropy
        else:
            number = self._last + 1
        if number >> _ULID_BITS:
            raise OverflowError(f"a ULID holds 48 bits of milliseconds; the clock says {now_ms}")
        self._last = number
        upper = number >> 20
        if upper != self._upper:
            self._upper = upper
            self._beginning = "".join([_PAIRS[upper >> n & 1023] for n in range(100, -10, -10)])
        return self._beginning + _PAIRS[number >> 10 & 1023] + _PAIRS[number & 1023]


def parse_ulid(text: str) -> Ulid:
    """Take a ULID apart; `ValueError` if `text` is not one.

    Only the spelling that `UlidFactory` writes is read. Crockford's base32 would allow lower case
    and `I`, `L`, `O` as aliases, but ids are compared as text: a second spelling of the same id
    would be a second id to every dedupe table.
    """
    if len(text) != _ULID_LENGTH or text[0] > "7" or not _DIGITS.keys() >= set(text):
        raise ValueError("not a ULID: expected 26 characters of upper-case Crockford base32")
    number = 0
    for digit in text:
        number = number << 5 | _DIGITS[digit]
    return Ulid(number >> _ENTROPY_BITS, number & (1 << _ENTROPY_BITS) - 1)
