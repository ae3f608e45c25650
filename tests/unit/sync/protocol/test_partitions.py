"""Partition names and sets: every row of the tables in sync 7."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.partitions import (
    MAX_NAME_BYTES,
    MAX_PARTITIONS,
    name_faults,
    normal_name,
    normal_set,
    partition_faults,
)

COMPOSED = "caf\u00e9"
DECOMPOSED = "cafe\u0301"
NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=8)


def test_names_are_composed() -> None:
    """Two spellings of one text are one name."""
    assert normal_name(DECOMPOSED) == COMPOSED
    assert normal_set([COMPOSED, DECOMPOSED]) == (COMPOSED,)


def test_nothing_else_is_changed() -> None:
    """Case, space and compatibility characters keep names apart."""
    names = ["a", "A", " a", "a ", "\ufb01", "fi"]
    assert {normal_name(name) for name in names} == set(names)


def test_sets_ascend_by_utf8() -> None:
    """The order is that of the bytes, which above U+FFFF is not that of UTF-16."""
    assert normal_set(["b", "a", "\U00010000", "\uffee", "B"]) == (
        "B",
        "a",
        "b",
        "\uffee",
        "\U00010000",
    )


@given(NAMES)
def test_normal_sets_are_stable(names: list[str]) -> None:
    """Normalizing again, or in another order or number, changes nothing."""
    normal = normal_set(names)
    assert normal_set(normal) == normal
    assert normal_set([*reversed(names), *names]) == normal


def test_no_partition() -> None:
    """An event belongs somewhere."""
    assert partition_faults([]) == [Fault("partitions", "must not be empty")]


def test_empty_name() -> None:
    """An empty name is reported with its index in the input."""
    assert partition_faults(["p", ""]) == [Fault("partitions.1", "must not be empty")]


def test_length_is_measured_in_composed_bytes() -> None:
    """128 bytes after normalization pass, 129 do not."""
    fits = "e\u0301" * (MAX_NAME_BYTES // 2)
    assert partition_faults([fits]) == []
    assert partition_faults(["p", fits + "x"]) == [Fault("partitions.1", "longer than 128 bytes")]


def test_count_is_taken_after_normalization() -> None:
    """Seventy entries naming three partitions are three (sync D21)."""
    assert partition_faults([f"p{index % 3}" for index in range(70)]) == []


def test_most_partitions() -> None:
    """64 distinct partitions pass, 65 do not."""
    names = [f"p{index}" for index in range(MAX_PARTITIONS + 1)]
    assert partition_faults(names[:-1]) == []
    assert partition_faults(names) == [Fault("partitions", "more than 64")]


def test_sync_may_name_more() -> None:
    """The limit is one of events: the names of a sync are judged one by one (sync D23)."""
    assert name_faults([f"p{index}" for index in range(1000)]) == []


def test_faults_are_sorted() -> None:
    """All wrong names are reported, sorted by field as text (sync D26)."""
    fields = [fault.field for fault in partition_faults([""] * 11)]
    assert fields == sorted(f"partitions.{index}" for index in range(11))
