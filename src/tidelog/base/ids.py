"""Names that sort by the time they were given: ULIDs and version serials.

Both are compared as plain text everywhere (SQL, dictionaries, clients), so both have exactly one
spelling.
"""

import os
import re
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
        return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -10, -10)])


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


_SERIAL_PART_LIMIT = 10**20
"""A part of 20 digits compares as text like the number only below this."""

_MAX_NODE_LENGTH = 86
"""A serial is at most 128 bytes on the wire: two parts of 20 digits and two colons leave this."""

_NODE = re.compile(rf"[!-9;-~]{{1,{_MAX_NODE_LENGTH}}}")
_VERSION_SERIAL = re.compile(rf"([0-9]{{20}}):({_NODE.pattern}):([0-9]{{20}})")


class VersionSerial(NamedTuple):
    """The three parts of `{unix_ms:020d}:{node}:{counter:020d}` (channels 5.2)."""

    unix_ms: int
    node: str
    """Who gave the serial: printable ASCII without a colon."""
    counter: int
    """Tells serials of one node and millisecond apart."""

    def __str__(self) -> str:
        return f"{self.unix_ms:020d}:{self.node}:{self.counter:020d}"


def parse_version_serial(text: str) -> VersionSerial:
    """Take a version serial apart; `ValueError` if `text` is not one."""
    found = _VERSION_SERIAL.fullmatch(text)
    if found is None:
        raise ValueError("not a version serial: expected {unix_ms:020d}:{node}:{counter:020d}")
    return VersionSerial(int(found[1]), found[2], int(found[3]))


class VersionSerials:
    """Gives the version serials of one node. Holds no state: equal arguments, equal serials."""

    def __init__(self, node: str) -> None:
        if not _NODE.fullmatch(node):
            raise ValueError(
                f"node name {node[:40]!r}: expected 1 to {_MAX_NODE_LENGTH} printable ASCII "
                "characters without space or colon"
            )
        self._node = node

    def after(self, now_ms: int, predecessor: str | None) -> str:
        """A serial that compares strictly greater, as text, than `predecessor`.

        It carries `now_ms` when that suffices. The node's own predecessor of the same or a later
        millisecond is followed by counting on, which clamps a clock that stepped back; another
        node's that still compares greater or equal is followed in its next millisecond.

        Uniqueness comes from the predecessor alone: two calls with the same time and `None` answer
        the same serial, so a caller that creates passes the greatest serial of its channel.
        """
        following = VersionSerial(now_ms, self._node, 0)
        if predecessor is not None:
            last = parse_version_serial(predecessor)
            if str(following) <= predecessor:
                following = self._raised(last)
        if not 0 <= following.unix_ms < _SERIAL_PART_LIMIT:
            raise OverflowError(f"a version serial cannot hold the time {following.unix_ms}")
        return str(following)

    def _raised(self, last: VersionSerial) -> VersionSerial:
        if last.node == self._node and last.counter + 1 < _SERIAL_PART_LIMIT:
            return last._replace(counter=last.counter + 1)
        return VersionSerial(last.unix_ms + 1, self._node, 0)
