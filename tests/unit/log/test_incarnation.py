"""What a log still shares with what a reader has seen."""

import pytest

from tidelog.base.data.incarnation import Incarnation, Incarnations


def known(*began: int) -> Incarnations:
    """Incarnations `i1`, `i2` ... that began at these positions."""
    return Incarnations(Incarnation(f"i{n}", at, 0, n) for n, at in enumerate(began, start=1))


@pytest.mark.parametrize(
    ("began", "asked", "shared"),
    [
        ((0,), "i1", None),
        ((0,), None, None),
        ((0,), "another", 0),
        ((0, 3), "i2", None),
        ((0, 3), "i1", 3),
        ((0, 3), None, None),
        ((0, 3), "", 0),
        ((0, 8, 3), "i1", 3),
        ((0, 8, 3), "i2", 3),
        ((0, 3, 8), "i1", 3),
        ((0, 3, 8), "i2", 8),
        ((0, 5, 0, 9), "i1", 0),
        ((0, 5, 0, 9), "i2", 0),
        ((0, 5, 0, 9), "i3", 9),
    ],
)
def test_what_is_shared_is_what_every_later_incarnation_kept(
    began: tuple[int, ...], asked: str | None, shared: int | None
) -> None:
    """The lowest `began` after the reader's; nothing of an unknown one; no reset without a name."""
    assert known(*began).shared_with(asked) == shared


def test_they_are_in_their_order_whatever_order_they_come_in() -> None:
    """The last is the current one."""
    rows = [Incarnation("b", 4, 0, 2), Incarnation("c", 2, 0, 3), Incarnation("a", 0, 0, 1)]
    incarnations = Incarnations(rows)
    assert incarnations.current.id == "c"
    assert [each.id for each in incarnations.former] == ["a", "b"]


@pytest.mark.parametrize(
    ("began", "first_number", "shared"),
    [((0,), 1, None), ((0, 3), 1, 3), ((0, 8, 3, 5), 1, 3), ((8, 9), 2, 0), ((8,), 2, 0)],
)
def test_what_every_incarnation_shares(
    began: tuple[int, ...], first_number: int, shared: int | None
) -> None:
    """Nothing is certain once the first ones are forgotten."""
    rows = [Incarnation("i", at, 0, n) for n, at in enumerate(began, start=first_number)]
    assert Incarnations(rows).shared_by_all() == shared


SEEN = [(0, b"0"), (3, b"3"), (5, b"5"), (8, b"8")]


@pytest.mark.parametrize(
    ("began", "under", "stored", "expected"),
    [
        # The store lost what came after 6, or has another 5.
        ((0,), "i1", {0: b"0", 3: b"3", 5: b"5"}, 5),
        ((0,), "i1", {0: b"0", 3: b"3", 5: b"x", 8: b"y"}, 3),
        ((0,), "i1", {}, 0),
        # A false alarm.
        ((0,), "i1", {0: b"0", 3: b"3", 5: b"5", 8: b"8"}, None),
        # Another node was faster.
        ((0, 5), "i1", {0: b"0", 3: b"3", 5: b"5"}, None),
        ((0, 6), "i1", {0: b"0", 3: b"3", 5: b"5", 8: b"y"}, None),
        ((0, 2), "i1", {0: b"0", 3: b"x"}, None),
        # It was, but knew less: what this node has seen is another history even before that.
        ((0, 5), "i1", {0: b"0", 3: b"3", 5: b"x"}, 3),
        # This is the log of somebody else.
        ((0,), "another", {}, None),
    ],
)
def test_where_a_node_begins_another_incarnation(
    began: tuple[int, ...], under: str, stored: dict[int, bytes], expected: int | None
) -> None:
    """At the last place in common, unless what is known says already that the rest is lost."""
    assert known(*began).where_to_begin(under, SEEN, stored) == expected
