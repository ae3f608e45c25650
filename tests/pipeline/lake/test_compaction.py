"""Which files are joined: what that costs over many writes, and what stays as it is."""

from tidelog.pipeline.lake.compaction import AT_ONCE, LARGE_BYTES, LARGE_ROWS, joins, weight

KILOBYTE = 1024


def test_a_row_is_rewritten_a_few_times_however_many_writes_follow() -> None:
    """A day of small writes: few files at any time, and no more than five copies of each byte."""
    files: list[tuple[str, int]] = []
    written = rewritten = most = 0
    for number in range(20_000):
        size = (20 + number % 60) * KILOBYTE
        files.append((f"w{number}", size))
        written += size
        for group in joins(files):
            sizes = dict(files)
            joined = sum(sizes[name] for name in group)
            rewritten += joined
            files = [(f"j{number}-{group[0]}", joined)] + [
                (name, size) for name, size in files if name not in group
            ]
        large = sum(size >= LARGE_BYTES for _, size in files)
        most = max(most, len(files) - large)
    assert rewritten <= 5 * written
    assert most <= 5 * AT_ONCE
    assert sum(size for _, size in files) == written


def test_a_large_file_is_never_rewritten() -> None:
    """However many there are of them, and whatever lies between."""
    large = [(f"large-{number}", LARGE_BYTES + number) for number in range(50)]
    small = [(f"small-{number}", 10) for number in range(AT_ONCE)]
    assert joins(large) == []
    assert joins([*large[:25], *small, *large[25:]]) == [[name for name, _ in small]]


def test_few_files_are_left_alone_and_many_become_several_large_ones() -> None:
    """One file less than are joined at once stays; what is joined ends when it is large."""
    assert joins((f"{number}", 10) for number in range(AT_ONCE - 1)) == []
    half = LARGE_BYTES // 2
    groups = joins((f"{number}", half) for number in range(AT_ONCE))
    assert groups == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]


def test_many_rows_are_no_small_file_however_well_they_compress() -> None:
    """What an ingest of a long log writes is not written a second time."""
    files = [(f"{number}", weight(40 * KILOBYTE, LARGE_ROWS)) for number in range(50)]
    assert joins(files) == []
    assert joins((name, weight(40 * KILOBYTE, 100)) for name, _ in files) != []
