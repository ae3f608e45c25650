"""Ranges of the log: every row in one of them, whatever the files are like."""

import random
from itertools import pairwise

import pytest

from tidelog.pipeline.fill.position_ranges import Group, Range, planned


def row_groups(seed: int) -> list[Group]:
    """Row groups of files that follow each other, are sorted by something else, or overlap."""
    chosen, groups, end = random.Random(seed), list[Group](), 0
    for number in range(chosen.randrange(1, 12)):
        first = max(1, end + 1 - chosen.choice([0, 0, 0, 40, 200]))
        end = max(end, first + chosen.randrange(300))
        for _ in range(chosen.choice([1, 1, 3, 8])):
            low = chosen.randrange(first, end + 1)
            high = chosen.randrange(low, end + 1)
            rows = chosen.randrange(1, high - low + 2)
            groups.append(Group(f"file-{number}", low, high, rows, rows * 10))
    chosen.shuffle(groups)
    return groups


@pytest.mark.parametrize("seed", range(50))
def test_every_row_is_in_one_range_that_reads_its_file(seed: int) -> None:
    """Ranges follow each other without a gap, and have every file with a row of theirs."""
    groups = row_groups(seed)
    ranges = planned(groups, 100, 10_000)
    assert ranges[0].after == 0
    assert ranges[-1].through == max(group.last for group in groups)
    assert all(one.through == other.after for one, other in pairwise(ranges))
    assert all(each.after < each.through for each in ranges)
    for each in ranges:
        needed = {g.file for g in groups if g.last > each.after and g.first <= each.through}
        assert set(each.files) == needed


def test_a_range_ends_where_files_do() -> None:
    """Row groups that are sorted by something else span their file, and none is read twice."""
    groups = [
        Group(f"file-{number}", number * 100 + 1 + place, number * 100 + 90 + place, 20, 1)
        for number in range(4)
        for place in range(5)
    ]
    assert planned(groups, 250, 10_000) == [
        Range(0, 194, ("file-0", "file-1")),
        Range(194, 394, ("file-2", "file-3")),
    ]
    assert len(planned(groups, 250, 10)) == 2, "10 bytes are two files as well"
    assert planned([], 1, 1) == []


def test_what_is_too_much_for_one_range_is_cut() -> None:
    """However files overlap, a task reads about as much as it may."""
    groups = [Group("file", 1, 1000, 50, 1) for _ in range(20)]
    ranges = planned(groups, 250, 10_000)
    assert [(each.after, each.through) for each in ranges] == [
        (0, 250),
        (250, 500),
        (500, 750),
        (750, 1000),
    ]
