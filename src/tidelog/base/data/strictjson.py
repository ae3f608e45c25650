r"""JSON as the contracts read it: one meaning for every text, or none (sync D4, mesh 2.2).

Refused besides plain syntax errors: duplicate keys, `NaN` and the infinities (also a number such
as `1e999` that overflows to one), lone surrogates (as bytes or as escapes), a byte order mark,
anything after the value, nesting beyond a limit, integers of more than 4300 digits and, where the
caller says how many it takes, more values than that.

Two readers work here. `_strict` (the standard library's scanner) is the authority and knows why a
text is refused; msgspec is faster (bench/strictjson.py) and is only ever asked for a yes. It
overlooks two things, duplicate keys and depth, and both can be seen from outside:

* It drops all but the last of equal keys, and every key it drops takes at least one colon with it.
  A value that is written back as the very text has lost none, and most are. Else it has as many
  colons as the text exactly when no key was lost, unless the text spells colons inside strings as
  `\u003a`; such a text goes to the authority.
* A text cannot nest deeper than the number of its opening brackets; only a text with more of them
  than the limit is measured. Taking away all pairs that hold nothing makes it one level less deep.

How many values a text has is known before it is read, from its commas and brackets: a megabyte can
hold half a million of them, and every one costs whoever reads, compares or keeps it.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from tidelog.base.errors import InvalidJson

MAX_DEPTH = 64
"""Arrays and objects inside each other. No contract needs ten levels; whatever walks a value may
recurse, and a peer must not be able to exhaust the stack with one megabyte of brackets."""

MAX_VALUES = 100_000
"""Values in one message of a peer, unless a setting says otherwise. To read, compare and keep one
takes up to two microseconds of the event loop (bench/longest_turn.py), and everybody else waits."""

MAX_INTEGER_DIGITS = 4300
"""Python's own default. Reading a decimal integer takes time quadratic in its digits."""

_EXCERPT_LENGTH = 40
"""Error messages reach logs and peers, so they quote no more than this of what a peer sent."""

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SPACE = b" \t\r\n"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read(text: bytes | str, *, max_depth: int = MAX_DEPTH, max_values: int | None = None) -> Any:
    """The value of a JSON text; `InvalidJson` says what is wrong with it.

    Integers are exact at any size, floats are the nearest double. A scalar has depth 0, `[]` has
    depth 1; `max_depth` beyond some hundreds is cut short by the interpreter's recursion limit.
    """
    data = text if isinstance(text, bytes) else _utf8(text)
    if max_values is not None and has_more_values(data, max_values):
        raise InvalidJson(f"more than {max_values} values")
    try:
        value = _quick(data)
    except RecursionError:
        _refuse_depth(max_depth)
    if is_deeper(data, max_depth):
        _refuse_depth(max_depth)
    return value


def _quick(data: bytes) -> Any:
    try:
        value = _decode(data)
    except ValueError:  # every refusal of msgspec's: the authority decides and says why
        return _strict(data)
    return value if has_every_key(_encode(value), data) else _strict(data)


def has_every_key(written: bytes, data: bytes) -> bool:
    """Whether what msgspec has read of a text, and has written back, has all keys of the text.

    False too if that cannot be told, because the text may have escapes in place of colons.
    """
    if written == data:
        return True
    if b"\\" in data and b"\\u003" in data:
        return False
    return written.count(b":") == data.count(b":")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidJson(f"a lone surrogate at character {error.start}") from None


def _refuse_depth(max_depth: int) -> NoReturn:
    raise InvalidJson(f"nested more than {max_depth} levels deep") from None


def is_deeper(data: bytes, max_depth: int) -> bool:
    """Whether a text that is JSON nests deeper than that; see `read` for what counts."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return False
    left = _outside_strings(data).translate(_BRACKETS, _OTHERS)
    for _ in range(max_depth):
        left = left.replace(b"[]", b"")
        if not left:
            return False
    return True


def has_more_values(data: bytes, max_values: int) -> bool:
    """Whether a JSON text has more values than that, in all arrays and objects; keys are none.

    Costs little beside reading it. Up to the first mistake of a text that is no JSON it counts what
    a reader would have read by then.
    """
    if len(data) < max_values:  # each takes at least one byte
        return False
    if _most_values(data) <= max_values:
        return False
    # A beginning has no more values than the whole, but for a bracket that is cut from its pair:
    # most texts with far too many are known by a small part of them.
    beginning = 4 * max_values + 1024
    while beginning < len(data):
        if _values(data[:beginning]) > max_values + 1:
            return True
        beginning *= 4
    return _values(data) > max_values


def _values(data: bytes) -> int:
    plain = _outside_strings(data).translate(None, _SPACE)
    return _most_values(plain) - plain.count(b"[]") - plain.count(b"{}")


def _most_values(data: bytes) -> int:
    """One at the top, one after each comma, and the first of each array and object."""
    return 1 + data.count(b",") + data.count(b"[") + data.count(b"{")


def _outside_strings(data: bytes) -> bytes:
    """A JSON text with a digit in place of every string."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"0".join(data.split(b'"')[::2])


def _strict(data: bytes) -> Any:
    if data.startswith(b"\xef\xbb\xbf"):
        raise InvalidJson("a byte order mark before the value")
    try:
        text = data.decode()
        value = _scanner.decode(text)
        if "\\u" in text:
            _encode(value)
    except UnicodeDecodeError as error:
        raise InvalidJson(f"not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise InvalidJson("a lone surrogate in an escape") from None
    except ValueError as error:  # its message tells place and expectation, never the text
        raise InvalidJson(f"not JSON: {error}") from None
    return value


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidJson(f"duplicate key {_excerpt(twice)}")
    return members


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_INTEGER_DIGITS:
        raise InvalidJson(f"an integer of more than {MAX_INTEGER_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise InvalidJson(f"the number {_excerpt(digits)} is beyond the range of a double")
    return number


def _constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is not JSON")


def _excerpt(text: str) -> str:
    """A quoted ASCII beginning of `text`: surrogates and control characters cannot harm a log."""
    return ascii(text if len(text) <= _EXCERPT_LENGTH else text[:_EXCERPT_LENGTH] + "...")


_scanner = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
