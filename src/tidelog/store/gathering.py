"""The row changes of a batch, gathered: one statement for each kind of row.

On PostgreSQL a statement is a round trip, and the head lock is held until the last one returns, so
a batch must not cost a statement for every request in it. Requests name their changes in the order
in which they were decided; a change may join an earlier statement of its kind if it commutes with
everything in between, and it does if none of that touches the same row.

What a statement touches stands in `TOUCHES`. One that is not there may touch anything: it keeps its
place, nothing moves across it, and only those that follow each other directly go together. That is
right for whatever is rare; what every publish, append, send, lease or acknowledgement writes should
stand there.
"""

from collections.abc import Iterable
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


_DELIVERY = Touch("mesh_delivery_queue", slice(0, 4))

TOUCHES = {
    "channels_note_history": Touch("channels_channel", slice(0, 1), may_repeat=True),
    "channels_add_message": Touch("channels_message", slice(0, 1)),
    "channels_add_version": Touch("channels_version", slice(0, 2)),
    "channels_fold": Touch("channels_message", slice(0, 1), may_repeat=True),
    "mesh_add_delivery": _DELIVERY,
    "mesh_claim_delivery": _DELIVERY,
    "mesh_finish_delivery": _DELIVERY,
    "mesh_add_mention": Touch("mesh_mention_index", slice(0, 2)),
    "sync_add_partition": Touch("sync_event_partitions", slice(0, 2)),
}
"""Statements that commute with each other unless they touch the same row."""


class Gathered(NamedTuple):
    """A statement and the values of all rows it is executed for, in their order."""

    statement: str
    rows: list[tuple[Any, ...]]


def gather(changes: Iterable[RowChange]) -> list[Gathered]:
    """The same changes in as few statements as leave the same rows."""
    gathered: list[Gathered] = []
    last: dict[str, int] = {}
    """Where the last statement of each kind is, as far as a change may still join it."""
    touched: dict[tuple[Any, ...], int] = {}
    """Where each row was touched last, since the last statement that may touch anything."""
    for change in changes:
        statement, values = change.statement, change.values
        touch = TOUCHES.get(statement)
        at = last.get(statement, -1)
        if touch is None:
            if at != len(gathered) - 1 or at < 0:
                touched.clear()
                last.clear()
                at = last[statement] = len(gathered)
                gathered.append(Gathered(statement, []))
        else:
            row = (touch.table, *values[touch.key])
            before = touched.get(row, -1)
            if at < before or at < 0 or (at == before and not touch.may_repeat):
                at = last[statement] = len(gathered)
                gathered.append(Gathered(statement, []))
            touched[row] = at
        gathered[at].rows.append(values)
    return gathered
