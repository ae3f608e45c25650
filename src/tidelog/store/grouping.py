"""The row changes of a batch in groups: one statement for each kind of row.

On PostgreSQL a statement is a round trip, and the head lock is held until the last one returns, so
a batch must not cost a statement for every request in it; on SQLite each costs a call. Requests
name their changes in the order in which they were decided; a change may join an earlier statement
of its kind if it commutes with everything in between, and it does if none of that touches the same
row.

The surface that brings a statement says what it touches (`Extension.touches`). One of which nothing
is said may touch anything: it stays where it is, nothing moves across it, and only those that
follow each other directly go together. That is right for whatever is rare; what every publish,
append, send, lease or acknowledgement writes should be listed. A listed statement touches neither
entries nor keys, and takes nothing but arrays.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.store.rows import RowChange


class Touch(NamedTuple):
    """The one row that a change reads and writes: in which table, and which values name it."""

    table: str
    key: slice
    """Of the values, those that name the row; the same row always has the same ones, whichever
    statement touches it."""
    may_repeat: bool = False
    """Whether one statement may be given the same row several times, and then leaves what as many
    statements would have left. Without this the second change is a statement of its own."""


class Group(NamedTuple):
    """A statement and the values of all rows it is executed for, in their order."""

    statement: str
    rows: list[Any]


class Groups(NamedTuple):
    """Statements that leave the same rows as the changes of a batch, in their order."""

    groups: list[Group]
    together: int
    """So many of the first are listed and touch no row of each other: they may be executed as parts
    of one statement, which do not see what the others write."""


def group(changes: Iterable[RowChange], touches: Mapping[str, Touch]) -> Groups:
    """The same changes in as few statements as leave the same rows."""
    groups: list[Group] = []
    apart = sys.maxsize
    """The first statement that must see what one before it has written."""
    last: dict[str, int] = {}
    """Where the last statement of each kind is, as far as a change may still join it."""
    touched: dict[tuple[Any, ...], int] = {}
    """Where each row was touched last, since the last statement that may touch anything."""
    for change in changes:
        statement, values = change.statement, change.values
        touch = touches.get(statement)
        at = last.get(statement, -1)
        if touch is None:
            if at != len(groups) - 1 or at < 0:
                touched.clear()
                last.clear()
                apart = min(apart, len(groups))
                at = last[statement] = len(groups)
                groups.append(Group(statement, []))
        else:
            row = (touch.table, *values[touch.key])
            before = touched.get(row, -1)
            if at < before or at < 0 or (at == before and not touch.may_repeat):
                at = last[statement] = len(groups)
                groups.append(Group(statement, []))
            if at > before >= 0:
                apart = min(apart, at)
            touched[row] = at
        groups[at].rows.append(values)
    return Groups(groups, min(apart, len(groups)))
