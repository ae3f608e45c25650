"""Text that may hold U+0000, in a store whose text may not."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.data.nultext import MARK, escape, unescape

TEXT = st.text(alphabet=st.sampled_from(["\0", MARK, "0", "1", "a"]))


@given(TEXT)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    """What is stored has no U+0000 and gives the text again."""
    assert "\0" not in escape(text)
    assert unescape(escape(text)) == text


@given(TEXT, TEXT)
def test_texts_are_equal_in_the_store_exactly_when_they_are_equal(one: str, other: str) -> None:
    """No two texts are stored alike."""
    assert (escape(one) == escape(other)) == (one == other)
