"""The canonical form is RFC 8785's, on the fast path and off it."""

import datetime as dt
import enum
import hashlib
import json
import math
import struct
import uuid
from typing import Any, NamedTuple

import orjson
import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.base.data.canonical import canonical, fingerprint, fingerprint_bytes
from tidelog.base.data.strictjson import read
from tidelog.base.errors import NotCanonicalizable

ANY_TEXT = st.text(st.characters(exclude_categories=[]))
"""Lone surrogates included."""
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = TEXT | st.text(
    st.sampled_from(
        ["a", "\x00", "\x1f", '"', "\\", "\x7f", "é", "\u2028", "\ud7ff", "\ue000", "\ufb33"]
    )
    | st.sampled_from(["\uffff", "\U00010000", "😂", "\U0010ffff"]),
    max_size=3,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)


def nested(scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Arrays and objects of them."""
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.dictionaries(keys, inner, max_size=5)
            | st.tuples(inner, inner)
        ),
        max_leaves=25,
    )


def defined(value: Any) -> bytes | None:
    """What the `rfc8785` package answers; `None` where it refuses."""
    try:
        return bytes(rfc8785.dumps(value))
    except ValueError:
        return None


def ours(value: Any) -> bytes | None:
    """What we answer; `None` where we refuse."""
    try:
        return canonical(value)
    except NotCanonicalizable:
        return None


@given(nested(SCALARS, KEYS))
@example({"\ue000": 1, "\U00010000": 2})
@example([0.0001, 0.00009999, 1.5, -2.0, -0.0, 2.0**53 - 1, 2.0**53, 4503599627370497.5, 1e21])
@example({"\ud7ff": 1.0, "é": 2, "a": 0.5})
@example({"\ue000": 1.0, "\U00010000": 2.0})
@example(['\x00\x01\x08\t\n\x0b\x0c\r\x1f"\\/\x7f\x80\u2028\u2029\ufeff😀'])
def test_equals_rfc8785(value: Any) -> None:
    """Every JSON value has the bytes that the `rfc8785` package gives it."""
    assert canonical(value) == rfc8785.dumps(value)


@given(
    nested(
        SCALARS | st.integers() | st.integers(-(10**30), 10**30) | st.floats() | ANY_TEXT,
        KEYS | ANY_TEXT,
    )
)
@example(2**53)
@example(-(2**53))
@example(2**53 - 1)
@example(-(2**53) + 1)
@example({"\ud800": 1})
@example({"a": ["\udfff"]})
def test_refuses_what_rfc8785_refuses(value: Any) -> None:
    """Also with numbers and text that have no canonical form we answer as the package does."""
    assert ours(value) == defined(value)


@given(nested(SCALARS.filter(lambda value: not isinstance(value, float)), st.text('abc:"\\\n\x7f')))
def test_fast_path_equals_rfc8785(value: Any) -> None:
    """Values that orjson may write, the common case, have the same bytes."""
    assert canonical(value) == rfc8785.dumps(value)


@given(st.integers(0, 2**64 - 1))
@example(0x4340000000000001)
@example(0x8000000000000001)
@example(0x444B1AE4D6E2EF4F)
@example(0x3EB0C6F7A0B5ED8D)
def test_floats_of_any_bit_pattern(bits: int) -> None:
    """Every double, drawn evenly over its bit patterns, is written as ECMAScript does."""
    [number] = struct.unpack("<d", bits.to_bytes(8, "little"))
    if math.isfinite(number):
        written = canonical(number)
        assert written == rfc8785.dumps(number)
        assert float(written) == number
    else:
        with pytest.raises(NotCanonicalizable, match="not finite"):
            canonical(number)


@pytest.mark.parametrize(
    ("bits", "written"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_rfc8785_appendix_b(bits: str, written: str) -> None:
    """The number samples of RFC 8785, appendix B."""
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == written.encode()


def test_rfc8785_section_3_2_3() -> None:
    """The sorting example of RFC 8785: by UTF-16 code unit, not by code point or UTF-8 byte."""
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(value))) == expected


def test_rfc8785_section_3_2_2() -> None:
    """The serialisation example of RFC 8785, read from its source text."""
    source = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],'
        '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(read(source)) == expected.encode()


@pytest.mark.parametrize(
    "code", [*range(0x20), 0x22, 0x2F, 0x5C, 0x7F, 0x80, 0x2028, 0x2029, 0xFEFF]
)
def test_escapes_on_the_fast_path(code: int) -> None:
    """Control characters, quotes and line separators are escaped alike in keys and values."""
    value = {chr(code): chr(code)}
    assert canonical(value) == rfc8785.dumps(value)
    assert canonical(chr(code)) == rfc8785.dumps(chr(code))


@pytest.mark.parametrize("text", ["1", "1.0", "1e0", "10e-1", "1.000"])
def test_spellings_of_one_are_equal(text: str) -> None:
    """A number has one form however it was spelled."""
    assert canonical(read(text)) == b"1"


def test_zero_has_no_sign() -> None:
    """Minus zero is zero."""
    assert canonical(-0.0) == canonical(read("-0")) == canonical(0) == b"0"


def test_booleans_are_not_numbers() -> None:
    """True is not 1 and false is not 0, though Python takes them for equal."""
    assert canonical([True, False, 1, 0, None]) == b"[true,false,1,0,null]"
    assert canonical({"a": True}) != canonical({"a": 1})


def test_strings_are_not_normalised() -> None:
    """The composed and the decomposed form of a letter stay different."""
    assert canonical("\u00e9") != canonical("e\u0301")


@given(st.dictionaries(KEYS, st.integers(0, 9)), st.randoms())
def test_order_of_keys_does_not_matter(value: dict[str, int], random: Any) -> None:
    """Objects with the same members have the same form."""
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


class Text(str):
    """A subclass of text."""

    __slots__ = ()


class Whole(enum.IntEnum):
    """An enumeration of integers."""

    ONE = 1


class Plain(enum.Enum):
    """An enumeration of anything."""

    A = "a"


class Pair(NamedTuple):
    """A named tuple."""

    left: int


@pytest.mark.parametrize(
    "value",
    [
        Plain.A,
        uuid.UUID(int=1),
        dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
        orjson.Fragment(b"{}"),
        b"bytes",
        {1, 2},
        Text("a"),
        Whole.ONE,
        Pair(1),
    ],
    ids=repr,
)
def test_types_beyond_json_are_treated_as_rfc8785_treats_them(value: Any) -> None:
    """What orjson would gladly write is refused, or written, exactly as the package does."""
    for wrapped in (value, [value], {"a": value}, {"a": [1, value]}):
        assert ours(wrapped) == defined(wrapped)


@pytest.mark.parametrize("key", [1, None, b"a", (1,), Plain.A])
def test_keys_must_be_text(key: Any) -> None:
    """A dictionary with another key than text is no JSON object."""
    with pytest.raises(NotCanonicalizable, match="keys must be strings"):
        canonical({key: 1})


def test_subclass_of_text_as_key() -> None:
    """A key of a subclass of text counts as its text."""
    assert canonical({Text("b"): 1, "a": 2}) == b'{"a":2,"b":1}'


@pytest.mark.parametrize(
    "number", [2**53, -(2**53), 2**64, 10**5000], ids=["2^53", "-2^53", "2^64", "10^5000"]
)
def test_integers_out_of_range_are_refused_with_advice(number: int) -> None:
    """An integer that a double cannot hold is refused, at any length, without repeating it."""
    with pytest.raises(NotCanonicalizable, match="send it as a string") as refused:
        canonical({"a": [number]})
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_floats_that_are_not_finite_are_refused(value: float) -> None:
    """Only finite floats have a form; orjson alone would write null."""
    with pytest.raises(NotCanonicalizable, match="not finite"):
        canonical([value])


def test_lone_surrogates_are_refused() -> None:
    """Text without a UTF-8 form is refused as value and as key."""
    for value in ("\ud800", {"\ud800": 1}, {"é": "\udfff"}):
        with pytest.raises(NotCanonicalizable):
            canonical(value)


def test_endless_values_are_refused() -> None:
    """A value that contains itself, or is nested too deeply, is refused rather than followed."""
    endless: list[Any] = []
    endless += [endless, endless]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(NotCanonicalizable, match="too deep"):
            canonical(value)


def test_nesting_beyond_orjson_has_a_form() -> None:
    """Values deeper than orjson writes are written by the package."""
    value: Any = 1
    for _ in range(300):
        value = [value]
    assert canonical(value) == b"[" * 300 + b"1" + b"]" * 300


def test_fingerprint_is_sha256_of_the_form() -> None:
    """A fingerprint is 32 raw bytes over the canonical form."""
    expected = hashlib.sha256(b'{"a":1,"b":[]}').digest()
    assert fingerprint({"b": [], "a": 1.0}) == fingerprint_bytes(b'{"a":1,"b":[]}') == expected
    assert len(expected) == 32
