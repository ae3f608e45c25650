"""Strict JSON: every text has one meaning or is refused with a short reason."""

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog.base.data import strictjson
from tidelog.base.data.strictjson import has_more_values, read
from tidelog.base.errors import InvalidJson

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from([":", "::", "\\u003a", "[", '"', "\\", "\u2028", "\x00", "😀"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=30,
)


def same(left: object, right: object) -> bool:
    """Equal in value and in type at every place; `==` alone takes 1, 1.0 and true for equal."""
    return repr(left) == repr(right)


def nested(depth: int) -> str:
    """An array inside an array, `depth` levels in all."""
    return "[" * depth + "]" * depth


@given(VALUES, st.booleans())
def test_reads_what_was_written(value: Any, ensure_ascii: bool) -> None:
    """A value written by another encoder is read back equal, from text and from bytes."""
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    assert same(read(text), value)
    assert same(read(text.encode()), value)


@given(VALUES)
def test_both_readers_agree_on_valid_texts(value: Any) -> None:
    """The fast reader and the authority give the same value."""
    data = json.dumps(value, indent=1).encode()
    assert same(strictjson._quick(data), strictjson._strict(data))


CHARACTERS = '{}[]:,"\\u0123456789dDabefn -.+eE \t\n\x00é\ufeff'
WORDS = ["\\ud800", "\\udc00", "\\u003a", '"a":', '"a"', "true", "null", "1e9", "NaN", "-Infinity"]
FRAGMENTS = st.lists(st.sampled_from([*CHARACTERS, *WORDS]), max_size=12).map("".join)


def outcome(reader: Any, data: bytes) -> str:
    """The value as text, or that the reader refused."""
    try:
        return repr(reader(data))
    except InvalidJson:
        return "refused"


@given(FRAGMENTS)
@example('{"a":1,"a":"\\u003a"}')
@example('{"a":1,"b":{"c":[{"a":1,"a":2}]}}')
@example('{"a\\u003a":1,"a:":2}')
@example("-0")
@example("-0.0")
@example("1" * 30 + "e-10")
def test_both_readers_agree_on_any_text(text: str) -> None:
    """Reading answers what the authority answers, also for texts that are nearly JSON."""
    data = text.encode()
    assert outcome(read, data) == outcome(strictjson._strict, data)


@given(st.binary(max_size=20))
@example(b'"\xed\xa0\x80"')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Arbitrary bytes never cause anything but a value or `InvalidJson`."""
    assert outcome(read, data) == outcome(strictjson._strict, data)


@settings(deadline=None)  # draws three nested values; under load one example may be slow
@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4), st.data())
def test_duplicate_keys_are_refused_anywhere(members: dict[str, Any], data: st.DataObject) -> None:
    """An object that repeats one key is refused at any depth, whatever the values hold."""
    key = data.draw(st.sampled_from(sorted(members)))
    again = json.dumps(key, ensure_ascii=data.draw(st.booleans()))
    value = json.dumps(data.draw(VALUES))
    text = f"{json.dumps(members)[:-1]}, {again}: {value}}}"
    for wrapped in (text, f"[1, {text}]", f'{{"outer": {{"inner": {text}}}}}'):
        with pytest.raises(InvalidJson, match="duplicate key"):
            read(wrapped)


def test_escaped_spelling_of_a_key_is_the_same_key() -> None:
    """Keys are compared after their escapes are resolved."""
    with pytest.raises(InvalidJson, match="duplicate key 'a'"):
        read(r'{"a":1,"\u0061":2}')


def test_escaped_colons_cannot_hide_a_duplicate() -> None:
    """Colons spelled as escapes, which raise the count of the written text, make no difference."""
    with pytest.raises(InvalidJson, match="duplicate key"):
        read(r'{"a":1,"a":"\u003a"}')
    with pytest.raises(InvalidJson, match="duplicate key"):
        read(r'{"a":1,"a":"\u003A\u003a"}')
    assert read(r'{"a":"\u003a","b":"\\u003a"}') == {"a": ":", "b": r"\u003a"}


def test_equal_keys_in_different_objects_are_fine() -> None:
    """Only keys of one object must differ."""
    assert read('[{"a":1},{"a":{"a":2}}]') == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity", "[NaN]", '{"a":-Infinity}'])
def test_constants_are_refused(name: str) -> None:
    """The constants that JavaScript has and JSON has not are refused."""
    with pytest.raises(InvalidJson, match="is not JSON"):
        read(name)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "[1E400]", "1" * 400 + ".0"])
def test_overflowing_floats_are_refused(number: str) -> None:
    """A number that would become infinite is refused: it could not be written back."""
    with pytest.raises(InvalidJson, match="beyond the range"):
        read(number)


def test_largest_and_smallest_floats_are_read() -> None:
    """The whole range of doubles is read; what is too small becomes zero."""
    assert read("1.7976931348623157e308") == sys.float_info.max
    assert read("5e-324") == 5e-324
    assert read("1e-999") == 0.0
    assert math.copysign(1, read("-0.0")) == -1


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"',
        r'"\udc00"',
        r'"\uD83D"',
        r'"\ud83dA"',
        r'"\ud83d\u0041"',
        r'"\ude00\ud83d"',
        r'{"\ud800":1}',
        r'[{"a":["\udfff"]}]',
    ],
)
def test_escaped_lone_surrogates_are_refused(text: str) -> None:
    """Half of a surrogate pair is refused as value and as key: it has no UTF-8 form."""
    with pytest.raises(InvalidJson, match="surrogate"):
        read(text)


def test_surrogate_pairs_are_one_character() -> None:
    """A whole pair of escapes is the character it encodes."""
    assert read(r'{"\ud83d\ude00":"\uD83D\uDE00"}') == {"😀": "😀"}


@pytest.mark.parametrize(
    "data",
    [
        b'"\xed\xa0\x80"',
        b'{"\xed\xbf\xbf":1}',
        b'"\xff"',
        b'"\xc0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        b'\xff"a"',
        '"a"'.encode("utf-16"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    """Invalid UTF-8 is refused in values, keys and between them, surrogate code points included."""
    with pytest.raises(InvalidJson, match="not UTF-8"):
        read(data)


@pytest.mark.parametrize("text", ['"\ud800"', '{"\udfff":1}', '"\ud83d\ude00"'])
def test_surrogates_in_a_str_are_refused(text: str) -> None:
    """A Python string with surrogates is no Unicode text, not even with both halves of a pair."""
    with pytest.raises(InvalidJson, match="lone surrogate at character"):
        read(text)


def test_byte_order_mark_is_refused() -> None:
    """A text that starts with a byte order mark is refused, as bytes and as text."""
    for text in ("\ufeff{}", "\ufeff{}".encode()):
        with pytest.raises(InvalidJson, match="byte order mark"):
            read(text)


def test_depth_is_counted_in_containers() -> None:
    """A scalar has depth 0 and each array or object adds one; the limit itself is allowed."""
    assert read("1", max_depth=0) == 1
    assert read("[]", max_depth=1) == []
    assert read('{"a":[1]}', max_depth=2) == {"a": [1]}
    for text, max_depth in (("[]", 0), ("{}", 0), ("[[]]", 1), ('{"a":{}}', 1), ('[{"a":[]}]', 2)):
        with pytest.raises(InvalidJson, match=f"more than {max_depth} levels"):
            read(text, max_depth=max_depth)


def test_default_depth_limit() -> None:
    """64 levels are read and 65 are refused."""
    read(nested(64))
    with pytest.raises(InvalidJson, match="64 levels"):
        read(nested(65))


def test_wide_is_not_deep() -> None:
    """Many containers beside each other, or brackets in strings, are not nesting."""
    assert len(read("[" + ",".join(["[]"] * 1000) + "]")) == 1000
    assert read('["' + "[" * 1000 + '"]') == ["[" * 1000]


@pytest.mark.parametrize(
    "text",
    ["[" * 1_000_000, '{"a":' * 200_000, '[{"a":' * 100_000, nested(500_000), nested(900)],
    ids=["arrays", "objects", "both", "closed", "below the recursion limit"],
)
def test_hostile_nesting_is_refused_cleanly(text: str) -> None:
    """A megabyte of brackets is a refusal, not a recursion error or a crash."""
    with pytest.raises(InvalidJson, match="nested more than 64 levels"):
        read(text)


def test_hostile_nesting_for_the_authority_is_refused_cleanly() -> None:
    """Deep nesting is refused cleanly also where only the slower reader is asked."""
    with pytest.raises(InvalidJson):
        read(r'["\u003a",' + "[" * 990 + "]" * 990 + "]")


@pytest.mark.parametrize("sign", ["", "-"])
def test_large_integers_are_exact_up_to_the_limit(sign: str) -> None:
    """An integer of 4300 digits is read exactly and one more digit is refused."""
    digits = sign + "9" * 4300
    assert read(digits) == int(digits)
    with pytest.raises(InvalidJson, match="4300 digits"):
        read(digits + "9")


def test_integers_beyond_64_bits_stay_integers() -> None:
    """No integer is rounded to a float."""
    for number in (2**63, 2**64, -(2**63) - 1, 10**30):
        assert same(read(str(number)), number)


def test_digit_limit_does_not_depend_on_the_interpreter() -> None:
    """The limit holds also where Python's own was switched off."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(InvalidJson, match="4300 digits"):
            read("1" * 4301)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "[1,]",
            '{"a":1,}',
            "[1 2]",
            "{1:2}",
            "{'a':1}",
            "01",
            "-",
            "1.",
            ".5",
            "+1",
            "1e",
        ],
        *[
            "tru",
            "True",
            '"a',
            '"\t"',
            '"\x00"',
            '"\\x41"',
            '"\\u00g0"',
            "// a\n1",
            "\x0c1",
            "\xa01",
        ],
        *["1 2", "{}{}", "[]]", "null,", '"a" "b"', "{}\x00", "٣", "[", "{", '{"a"', '{"a":'],
    ],
)
def test_syntax_errors_are_refused(text: str) -> None:
    """What is not JSON by RFC 8259 is refused, trailing garbage included."""
    with pytest.raises(InvalidJson):
        read(text)


def test_white_space_around_the_value_is_fine() -> None:
    """The four white space characters of JSON may surround every token."""
    assert read(' \t\r\n{ "a" : [ 1 , 2 ] }\n') == {"a": [1, 2]}


@pytest.mark.parametrize(
    "text",
    [
        f'{{"{"k" * 5000}":1,"{"k" * 5000}":2}}',
        "1" * 5000 + ".0",
        '"' + "x" * 5000,
        "x" * 5000,
        "9" * 5000,
        '"\\' + "x" * 5000 + '"',
        '{"\x1b[31m":1,"\\u001b[31m":2}',
        '{"\\u001b[31m":1,"\\u001b[31m":2}',
    ],
)
def test_messages_quote_little_and_nothing_dangerous(text: str) -> None:
    """A refusal repeats at most a short excerpt of the text, in printable ASCII."""
    with pytest.raises(InvalidJson) as refused:
        read(text)
    message = str(refused.value)
    assert len(message) < 140
    assert message.isascii()
    assert message.isprintable()


def values_in(value: Any) -> int:
    """How many values there are, one by one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(values_in(each) for each in inner)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_values_are_counted_before_they_are_read(
    value: Any, indent: int | None, ensure_ascii: bool
) -> None:
    """Exactly, however the text is spelled; what has one more than may be is refused."""
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii).encode()
    count = values_in(value)
    assert not has_more_values(text, count)
    assert has_more_values(text, count - 1)
    assert read(text, max_values=count) == value
    with pytest.raises(InvalidJson, match=f"more than {count - 1} values"):
        read(text, max_values=count - 1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"[,[,{"', 1),
        (r'["\"[,","\\\\",",\\"]', 4),
        ('{"[,":"{,"}', 2),
        ("[[ ],{ \n}]", 3),
        ('[""]', 2),
    ],
)
def test_what_stands_in_strings_is_no_value(text: str, count: int) -> None:
    """Nor do escaped quotes end a string, or empty brackets hold something."""
    assert values_in(json.loads(text)) == count
    assert has_more_values(text.encode(), count - 1)
    assert not has_more_values(text.encode(), count)


@pytest.mark.parametrize("part", ["[ ]", "1", r'"\\\","', '{"k":[]}', "[[[]]]"])
def test_a_long_text_is_counted_as_exactly(part: str) -> None:
    """Wherever a beginning of it, which is looked at first, is cut off."""
    for before in range(8):
        text = " " * before + "[" + ",".join([part] * 3000) + "]"
        count = values_in(json.loads(text))
        for most in (0, 1, 100, count // 5, count - 2, count - 1):
            assert has_more_values(text.encode(), most), (before, most)
        assert not has_more_values(text.encode(), count)


def test_a_mistake_later_in_the_text_hides_no_values() -> None:
    """What a reader would have read by then is counted, whatever follows."""
    many = b"[" + b"[]," * 1000
    for ending in (b'"', b'""', b"\\", b'\\"', b"]]", b"\xff"):
        assert has_more_values(many + ending, 900), ending
