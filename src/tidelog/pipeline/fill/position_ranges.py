"""Ranges of the log to read from files of rows that each have a place in it.

Files of one build follow each other in the log. Inside a file rows may be in another order, and
files of many small builds overlap, since builds are joined as they come. So a range is planned by
what the feet of the files say, and reads of each file what belongs to it: every row is in one
range, wherever it lies.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """Rows with `after < committed_id <= through`, and the files that may have some."""

    after: int
    through: int
    files: tuple[str, ...]


class Group(NamedTuple):
    """What the foot of a file says of one of its row groups."""

    file: str
    first: int
    last: int
    rows: int
    size_bytes: int
    """Before compression."""
    last_serial: str = ""
    """Serial of the newest message that has a version here."""


def groups_of(files: Iterable[str], serial: str | None = None) -> Iterator[Group]:
    """The row groups of some files; with the largest value of the column `serial` if it is told."""
    import pyarrow.parquet as pq

    for file in files:
        foot = pq.read_metadata(file)
        names = foot.schema.names
        for number in range(foot.num_row_groups):
            group = foot.row_group(number)
            place = group.column(names.index("committed_id")).statistics
            newest = group.column(names.index(serial)).statistics if serial else None
            yield Group(
                file,
                place.min,
                place.max,
                group.num_rows,
                group.total_byte_size,
                newest.max if newest is not None and newest.has_min_max else "",
            )


def planned(groups: Sequence[Group], rows: int, size_bytes: int) -> list[Range]:
    """Ranges of about so many rows and bytes at most.

    A range ends where row groups end if it can. Where so many overlap that it would become twice as
    large, it is cut through them, and some are read for more than one range.
    """
    ranges, held, has_rows, has_bytes, end = list[Range](), list[Group](), 0, 0, 0
    for island in _islands(groups):
        more_rows = sum(each.rows for each in island)
        more_bytes = sum(each.size_bytes for each in island)
        if held and (has_rows + more_rows > rows or has_bytes + more_bytes > size_bytes):
            ranges += _ranges(held, end, max(1, has_rows // rows, has_bytes // size_bytes))
            held, has_rows, has_bytes, end = [], 0, 0, ranges[-1].through
        held += island
        has_rows, has_bytes = has_rows + more_rows, has_bytes + more_bytes
    if held:
        ranges += _ranges(held, end, max(1, has_rows // rows, has_bytes // size_bytes))
    return ranges


def _islands(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Row groups that overlap, together; in the order of the log."""
    island, last = list[Group](), 0
    for group in sorted(groups, key=lambda group: (group.first, group.last)):
        if island and group.first > last:
            yield island
            island = []
        island.append(group)
        last = max(last, group.last)
    if island:
        yield island


def _ranges(groups: Sequence[Group], after: int, count: int) -> list[Range]:
    """So many ranges of equal length over some row groups, after the range before them."""
    first, last = min(each.first for each in groups), max(each.last for each in groups)
    length = last - first + 1
    ends = sorted({first - 1 + length * number // count for number in range(1, count + 1)})
    return [
        Range(
            low,
            high,
            tuple(sorted({g.file for g in groups if g.last > low and g.first <= high})),
        )
        for low, high in pairwise([after, *(end for end in ends if end >= first)])
    ]
