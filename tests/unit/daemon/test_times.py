"""Times on the wire are RFC 3339 in UTC."""

import pytest

from tidelog.daemon.times import read_timestamp, timestamp


@pytest.mark.parametrize(
    ("unix_ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_760_000_000_123, "2025-10-09T08:53:20.123Z")],
)
def test_a_time_is_written_and_read(unix_ms: int, text: str) -> None:
    """Down to the millisecond."""
    assert timestamp(unix_ms) == text
    assert read_timestamp(text) == unix_ms


def test_any_offset_is_read() -> None:
    """It is the same moment."""
    assert read_timestamp("1970-01-01T01:00:00+01:00") == 0


@pytest.mark.parametrize("text", ["", "1970-01-01", "1970-01-01T00:00:00", "1970-01-01 00:00:00Z"])
def test_anything_else_is_refused(text: str) -> None:
    """A time without an offset could be anybody's."""
    with pytest.raises(ValueError):
        read_timestamp(text)
