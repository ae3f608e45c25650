r"""The one byte sequence of a JSON value (RFC 8785, JCS), and its fingerprint.

Two requests are the same request when these bytes are equal: `1`, `1.0` and `1e0` are, `-0.0` is
`0`, the order of keys does not matter, and nothing is normalised inside strings.

`rfc8785` defines the result. orjson gives the same bytes several times faster
(bench/canonical.py) for most values that occur, and is believed only for a value that

* consists of exactly `dict` with text keys, `list`, `tuple`, `str`, `int`, `float`, `bool` and
  `None`: orjson also writes types that are no JSON (dates, enums);
* has integers within ±(2^53-1) only, which orjson itself checks;
* has floats with a fraction and from 0.0001 on only: JCS writes numbers as ECMAScript does, orjson
  has another form for whole floats and begins to use exponents earlier. Whole floats are given to
  it as the integers that JCS writes them as;
* has keys of characters before U+D800 only: JCS sorts keys by UTF-16 code unit, orjson by UTF-8
  byte, and the two orders differ after that.

Both write the same escapes: the two-letter ones where JSON has them, lower-case `\u00xx` for other
control characters, and everything else (U+007F, U+2028, `/`) as it is.
"""

import hashlib
from collections.abc import Iterable
from types import NoneType
from typing import Any

import msgspec
import orjson
import rfc8785

from tidelog.base.errors import NotCanonicalizable

_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_CONTAINERS = frozenset((dict, list, tuple))
_LEAVES = frozenset((str, int, bool, NoneType))
_LEAST, _MOST = 0.0001, 2.0**53
_INTEGER_REASON = "an integer beyond ±9007199254740991; send it as a string"


class _HasFloat(Exception):  # noqa: N818 - no error, only not for the short way
    pass


def _refuse_float(digits: str) -> float:
    raise _HasFloat(digits)


_decode = msgspec.json.Decoder().decode
_decode_without_floats = msgspec.json.Decoder(float_hook=_refuse_float).decode


def read_canonical(text: bytes) -> tuple[Any, bytes]:
    """The value of a JSON text, and the RFC 8785 form of that.

    What was read has no types but those of JSON. Without floats, and in ASCII, orjson is right, and
    the value need not be walked through.

    Raises:
        ValueError: the text is not JSON, as far as msgspec says.
        NotCanonicalizable: there is no such form.
    """
    try:
        value = _decode_without_floats(text)
        written = orjson.dumps(value, option=_OPTIONS)
        if written.isascii():
            return value, written
    except (_HasFloat, orjson.JSONEncodeError):
        value = _decode(text)
    return value, canonical(value)


def canonical(value: object) -> bytes:
    """The RFC 8785 form of `value`; `NotCanonicalizable` if it has none."""
    try:
        written = orjson.dumps(value, option=_OPTIONS)
    except orjson.JSONEncodeError:
        return _by_definition(value)
    # orjson has come to an end, so the value is finite and without cycles: the walk ends too.
    if _is_plain(value, ascii_only=written.isascii()):
        return written
    try:
        return orjson.dumps(_without_whole_floats(value), option=_OPTIONS)
    except (_NotPlain, orjson.JSONEncodeError):
        return _by_definition(value)


def fingerprint(value: object) -> bytes:
    """SHA-256 of the canonical form: 32 raw bytes."""
    return fingerprint_bytes(canonical(value))


def fingerprint_bytes(data: bytes) -> bytes:
    """SHA-256 of bytes that are already in their only form: 32 raw bytes."""
    return hashlib.sha256(data).digest()


def _is_plain(value: object, *, ascii_only: bool) -> bool:
    """Whether orjson's bytes for `value` can be believed."""
    pending: list[Any] = [(value,)]
    for node in pending:
        if type(node) is dict:
            if not (ascii_only or _are_plain_keys(node)):
                return False
            children = node.values()
        else:
            children = node
        for child in children:
            kind = type(child)
            if kind in _CONTAINERS:
                pending.append(child)
            elif kind not in _LEAVES and not (kind is float and _is_plain_float(child)):
                return False
    return True


def _are_plain_keys(keys: Iterable[str]) -> bool:
    return max("".join(keys), default="") < "\ud800"


def _is_plain_float(number: float) -> bool:
    return _LEAST <= abs(number) < _MOST and not number.is_integer()


class _NotPlain(Exception):  # noqa: N818 - no error, only not for orjson
    pass


def _without_whole_floats(value: Any) -> Any:
    """The same value with integers in place of whole floats; `_NotPlain` if that is not all."""
    kind = type(value)
    if kind is dict:
        if not _are_plain_keys(value):
            raise _NotPlain
        return {key: _without_whole_floats(member) for key, member in value.items()}
    if kind is list or kind is tuple:
        return [_without_whole_floats(member) for member in value]
    if kind is float:
        if _is_plain_float(value):
            return value
        if not value.is_integer():
            raise _NotPlain
        return int(value)
    if kind not in _LEAVES:
        raise _NotPlain
    return value


def _by_definition(value: Any) -> bytes:
    try:
        return bytes(rfc8785.dumps(value))
    except rfc8785.IntegerDomainError:
        reason = _INTEGER_REASON
    except rfc8785.FloatDomainError:
        reason = "a float that is not finite"
    except rfc8785.CanonicalizationError as error:  # one of its fixed texts, or names a type
        reason = str(error)
    except UnicodeError:
        reason = "a key with a lone surrogate"
    except RecursionError:
        reason = "nesting too deep"
    except ValueError:  # rfc8785 cannot print the integer it is about to refuse
        reason = _INTEGER_REASON
    raise NotCanonicalizable(f"no canonical form: {reason}")
