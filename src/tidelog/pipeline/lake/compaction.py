"""Which files of a table are to be joined: small ones of about one size, and never a large one.

Each write adds a file, and each file costs every reader an open. If all small files were joined
whenever there are many, a following ingest would rewrite the same hundred megabytes again and
again. So files are joined with those of about their size, eight at a time, and what they become is
joined with its like much later: a row is rewritten a few times in all, however many writes follow,
and a table has at most seven files of each size beside the large ones.
"""

from collections.abc import Iterable

LARGE_BYTES = 100 * 1024 * 1024
LARGE_ROWS = 50_000
"""A file of this size or with so many rows is left as it is."""

AT_ONCE = 8
"""Files of about one size that are joined when there are so many."""

_SMALLEST_BYTES = 256 * 1024
"""Files below this are of one size: what they cost is to be opened."""


def weight(size_bytes: int, rows: int) -> int:
    """What counts as the size of a file: one with many rows that compress well is not small."""
    return max(size_bytes, rows * LARGE_BYTES // LARGE_ROWS)


def joins(files: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Groups of files that become one file each.

    Args:
        files: Name and size in bytes of each, in the order in which they were written.
    """
    groups: dict[int, list[tuple[str, int]]] = {}
    for name, size in files:
        if size < LARGE_BYTES:
            groups.setdefault(_tier(size), []).append((name, size))
    return [
        part
        for group in groups.values()
        if len(group) >= AT_ONCE
        for part in _parts(group)
        if len(part) > 1
    ]


def _parts(group: Iterable[tuple[str, int]]) -> list[list[str]]:
    """One after another, until together they are large."""
    parts, size = [list[str]()], 0
    for name, more in group:
        if size >= LARGE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += more
    return parts


def _tier(size: int) -> int:
    tier = 0
    while size >= _SMALLEST_BYTES:
        size //= AT_ONCE
        tier += 1
    return tier
