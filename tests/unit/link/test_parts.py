"""What is too much for one message is said in several."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidelog.link.parts import parts


@given(st.lists(st.integers(0, 12), max_size=30))
def test_parts_are_as_long_as_they_may_be(sizes: list[int]) -> None:
    """Nothing is lost or moved, and what is larger than a part is one by itself."""
    found = [list(part) for part in parts(sizes, lambda size: size, 10)]
    assert [size for part in found for size in part] == sizes
    for part in found:
        assert len(part) == 1 or sum(part) <= 10
    for part, after in pairwise(found):
        assert sum(part) + after[0] > 10
