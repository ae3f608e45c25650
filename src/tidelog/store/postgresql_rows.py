"""Rows on their way to PostgreSQL and back."""

from collections.abc import Iterable, Sequence
from typing import Any

from tidelog.base.data.nultext import MARK, escape, unescape
from tidelog.store.rows import Entry, Row

_NO_TEXT = (int, bytes)
"""What a column that begins with it has no texts beside."""

_OFTEN_EQUAL = tuple(map(Entry._fields.index, ("surface", "kind", "ref", "actor", "committed_at")))
"""None of them is ever NULL, so that `write_entries` knows a value that was left out."""

_DATA = Entry._fields.index("data")


def to_columns(rows: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    """Rows as one array per column, which is how they reach the server in one round trip.

    A key may hold U+0000, which PostgreSQL's text cannot: see `tidelog.base.data.nultext`.
    """
    if not rows:
        return [()] * width
    columns: list[Sequence[Any]] = []
    for column in zip(*rows, strict=True):
        values: Sequence[Any] = column
        if not isinstance(column[0], _NO_TEXT):
            joined = "".join([value for value in column if isinstance(value, str)])
            if "\0" in joined or MARK in joined:
                values = [escape(value) if isinstance(value, str) else value for value in column]
        columns.append(values)
    return columns


def to_entry_columns(entries: Sequence[Entry]) -> list[Sequence[Any]]:
    """The same of entries, with one value for a column in which all are equal, as they mostly are.

    The driver spends more on an element of an array than on anything else that is done with it.
    """
    columns = to_columns(entries, len(Entry._fields))
    for at in _OFTEN_EQUAL:
        column = columns[at]
        if column.count(column[0]) == len(column):
            columns[at] = column[:1]
    if columns[_DATA].count(None) == len(entries):
        columns[_DATA] = ()
    return columns


def from_record(record: Iterable[Any]) -> Row:
    """A row as it was given to `to_columns`."""
    return tuple(
        unescape(value) if isinstance(value, str) and MARK in value else value for value in record
    )
