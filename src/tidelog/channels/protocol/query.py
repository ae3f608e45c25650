"""What part of a channel's history is asked for, over HTTP or a socket (channels 6.1, 6.2)."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

DEFAULT_LIMIT = 100
MAX_FRAME_LIMIT = 1000
"""Largest page over a socket, whatever the settings say."""

MAX_CURSOR_BYTES = 16_384
MAX_INTEGER = 2**63 - 1
"""Serials and times are kept in 64 bits."""

Direction = Literal["newest_first", "oldest_first"]

DIRECTIONS: dict[str, Direction] = {
    "newest_first": "newest_first",
    "backwards": "newest_first",
    "reverse": "newest_first",
    "oldest_first": "oldest_first",
    "forwards": "oldest_first",
    "forward": "oldest_first",
}
"""Every spelling of a direction, and its meaning."""


class HistoryQuery(Struct, frozen=True, kw_only=True):
    """A page of history; bounds are inclusive, and None where nothing was asked."""

    limit: int = DEFAULT_LIMIT
    """At least 1, already lowered to the largest page."""
    direction: Direction = "newest_first"
    cursor: str | None = None
    """As it came: whose page it continues is for the reader of the history to find out."""
    start_serial: int | None = None
    end_serial: int | None = None
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    until_attach: bool = False
    """Whether to stop at what was the newest when this socket subscribed; sockets only."""

    @classmethod
    def from_parameters(cls, query: Mapping[str, str], max_page_size: int) -> "HistoryQuery":
        """From the query of a GET; `ValueError` says what is wrong with it."""
        return cls._read(query, max_page_size, until_attach=False)

    @classmethod
    def from_frame(cls, data: Mapping[str, Any], max_page_size: int) -> "HistoryQuery":
        """From the data of `channel_history`; `ValueError` says what is wrong with it.

        The parameters may stand under `params`, and null counts as absent.
        """
        nested = data.get("params")
        if nested is not None and not isinstance(nested, dict):
            raise ValueError("params must be an object")
        merged = {**data, **(nested or {})}
        given = {name: value for name, value in merged.items() if value is not None}
        until_attach = given.get("until_attach", given.get("untilAttach", False))
        if not isinstance(until_attach, bool):
            raise ValueError("until_attach must be true or false")
        return cls._read(given, min(MAX_FRAME_LIMIT, max_page_size), until_attach=until_attach)

    @classmethod
    def _read(
        cls, given: Mapping[str, Any], max_page_size: int, *, until_attach: bool
    ) -> "HistoryQuery":
        limit = _integer(given, "limit")
        if limit is not None and limit < 1:
            raise ValueError("history limit must be greater than 0")
        direction = given.get("direction", "newest_first")
        if not isinstance(direction, str) or direction not in DIRECTIONS:
            raise ValueError("direction must be newest_first or oldest_first")
        cursor = given.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise ValueError("cursor is not text")
        if cursor is not None and len(cursor) > MAX_CURSOR_BYTES:
            raise ValueError(f"cursor has more than {MAX_CURSOR_BYTES} bytes")
        query = cls(
            limit=min(DEFAULT_LIMIT if limit is None else limit, max_page_size),
            direction=DIRECTIONS[direction],
            cursor=cursor,
            start_serial=_integer(given, "start_serial"),
            end_serial=_integer(given, "end_serial"),
            start_time_ms=_integer(given, "start_time_ms", "start"),
            end_time_ms=_integer(given, "end_time_ms", "end"),
            until_attach=until_attach,
        )
        if _is_reversed(query.start_serial, query.end_serial):
            raise ValueError("start_serial is greater than end_serial")
        if _is_reversed(query.start_time_ms, query.end_time_ms):
            raise ValueError("start_time_ms is greater than end_time_ms")
        return query


def _is_reversed(start: int | None, end: int | None) -> bool:
    return start is not None and end is not None and start > end


def _integer(given: Mapping[str, Any], *names: str) -> int | None:
    """The first of these that is given; digits as text count, as they come in a query."""
    name = next((name for name in names if name in given), None)
    if name is None:
        return None
    value = given[name]
    if isinstance(value, str):
        # isdecimal is true of digits of other scripts too, so ASCII is asked for as well
        if not (value.isascii() and value.isdecimal() and len(value) <= len(str(MAX_INTEGER))):
            raise ValueError(f"{name} is not an integer of 0 or more")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
        raise ValueError(f"{name} is not an integer of 0 or more")
    return value
