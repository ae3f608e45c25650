"""Times as the wire has them: RFC 3339 in UTC, with milliseconds."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(unix_ms: int) -> str:
    """A time as text."""
    moment = _EPOCH + timedelta(milliseconds=unix_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_timestamp(text: str) -> int:
    """A time in milliseconds; `ValueError` if `text` has no date, no time or no offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or "T" not in text.upper():
        raise ValueError("not an RFC 3339 time with an offset")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
