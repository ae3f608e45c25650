"""The table `message` follows the log and the store, by what is new and by what is gone.

New versions are folded onto the messages that they belong to, a range of the log at a time; only
files of the table that hold one of these are written again. So it costs as much as there is new,
and runs where it is asked for, without Spark.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.fill.alterations import slices
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import ALTERATIONS
from tidelog.pipeline.lake.replacing import Gone
from tidelog.pipeline.transforms.message_fold import (
    KEY,
    PURGED,
    READ,
    combined,
    messages_of,
    steps_of_messages,
    steps_of_versions,
)

if TYPE_CHECKING:
    from tidelog.pipeline.source.store_address import AlterationNumbers, StoreAddress

NAME = "message"

STEP_ENTRIES = 50_000
"""Entries whose versions are folded at once: some ten megabytes of them."""

_NAMES = ("message_serial", *(column for column in KEY if column != "message_serial"))
"""What names a message, with the column that files lie along first."""


def follow(
    lake: Lake, store: "StoreAddress", altered: "AlterationNumbers", start: int, target: int
) -> int:
    """Bring the table from one position to another, and mark what was purged since.

    Returns:
        How many rows were written.
    """
    rows, noted = 0, lake.noted(NAME, ALTERATIONS) or 0
    for part in slices(store, "channel_message", noted, altered.last):
        if part.names.num_rows:
            gone = Gone(part.names.select(["position"]).rename_columns(["first_committed_id"]))
            known = lake.named(NAME, gone)
            known = known.filter(pc.not_equal(known["state"], PURGED))
            gone = Gone(known.select(["first_committed_id"]))
            notes = {ALTERATIONS: part.number}
            rows += lake.replace(NAME, start, [gone], _purged(known), notes=notes)
    for after, through in _steps(start, target):
        new = lake.between("message_version", READ, after, through)
        notes = {ALTERATIONS: altered.last}
        if not new.num_rows:
            lake.replace(NAME, through, [], notes=notes)
            continue
        names = new.select(_NAMES).group_by(list(_NAMES)).aggregate([])
        known = lake.named(NAME, Gone(names))
        folded = messages_of(
            combined(pa.concat_tables([steps_of_messages(known), steps_of_versions(new)]))
        )
        was_purged = known.filter(pc.equal(known["state"], PURGED))["first_committed_id"]
        folded = with_purged(store, folded, after, was_purged)
        rows += lake.replace(NAME, through, [Gone(names)], folded, notes=notes)
    return rows


def with_purged(
    store: "StoreAddress",
    messages: pa.Table,
    after: int = 0,
    known: pa.ChunkedArray | None = None,
) -> pa.Table:
    """Messages with the state `purged` where the server has the message no more.

    Args:
        store: The store.
        messages: Rows of `message`.
        after: Of messages that began at or before this position, it is not asked.
        known: Those of them that are known to be purged.
    """
    begun = messages["first_committed_id"]
    is_asked = pc.greater(begun, after)
    is_gone = pc.is_in(begun, known) if known is not None else pc.less(begun, 0)
    if pc.any(is_asked).as_py():
        last = pc.max(begun).as_py()
        first = max(after, pc.min(begun).as_py() - 1)
        there = pa.concat_tables(
            [
                _MESSAGE.empty_table(),
                *(
                    page.cast(_MESSAGE)
                    for page in store.related("channel_message_of_entries", first, last)
                ),
            ]
        )
        is_lost = pc.invert(pc.is_in(begun, there["message"]))
        is_gone = pc.or_(is_gone, pc.and_(is_asked, is_lost))
    return _with_state(messages, pc.if_else(is_gone, PURGED, messages["state"]))


_MESSAGE = pa.schema([("message", pa.int64())])


def _purged(messages: pa.Table) -> pa.Table:
    return _with_state(messages, pa.array([PURGED] * messages.num_rows, pa.string()))


def _with_state(messages: pa.Table, state: pa.Array) -> pa.Table:
    number = messages.column_names.index("state")
    return messages.set_column(number, messages.schema.field("state"), state)


def _steps(start: int, target: int) -> Iterator[tuple[int, int]]:
    while start < target:
        end = min(target, start + STEP_ENTRIES)
        yield start, end
        start = end
