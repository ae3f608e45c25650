"""Lines that would be written too often say how many were left out."""

from tidelog.base.spaced_lines import SpacedLines


def test_what_was_left_out_is_counted() -> None:
    """In the next line that is written."""
    lines = SpacedLines()
    assert [lines.written(now, 10.0) for now in (0.0, 1.0, 10.0)] == [
        "",
        None,
        " (1 more time since the last such line)",
    ]
    assert [lines.written(now, 10.0) for now in (11.0, 12.0, 20.0)] == [
        None,
        None,
        " (2 more times since the last such line)",
    ]
