"""What changed beside the log since a table was made, in slices of a bounded size.

A slice is a range of the numbers of alterations: the names of what changed, and the rows that the
store has of it now. A row may have changed again since, or be gone; that is another alteration,
with a later number, so to apply a slice twice or late does no harm.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.lake.replacing import others
from tidelog.pipeline.source.relations import arrow_of, typed

if TYPE_CHECKING:
    from tidelog.pipeline.source.store_address import StoreAddress

SLICE_ROWS = 100_000
"""Alterations and rows that are applied at once: some ten megabytes."""


class Slice(NamedTuple):
    """Alterations of one relation."""

    number: int
    """The last alteration that was looked at."""
    names: pa.Table
    """`position`, `scope` and `name` of each thing that changed, once."""
    rows: pa.Table
    """What the store has of these now, in the columns of the relation."""


def slices(
    store: "StoreAddress", relation: str, after: int, last: int, through: int | None = None
) -> Iterator[Slice]:
    """The alterations of a relation with `after < number <= last`; the last slice may be empty.

    Args:
        store: The store.
        relation: The relation.
        after: The last alteration that is known.
        last: The last alteration that is wanted.
        through: Rows are read of entries up to this position, if their place is told; of none, if
            it is None.
    """
    names = list[pa.Table]()
    rows, count = arrow_of(relation).empty_table() if through is not None else pa.table({}), 0
    for page in store.alterations(after, last):
        number = page["number"][-1].as_py()
        mine = page.filter(pc.equal(page["relation"], relation))
        if mine.num_rows:
            named = mine.select(_NAME.names).cast(_NAME)
            names.append(named)
            if through is not None:
                begin = mine["number"][0].as_py() - 1
                rows = _not_of(rows, relation, named)
                entries = () if relation == "tombstone" else (through,)
                for found in store.related(f"{relation}_of_alterations", begin, number, *entries):
                    # What changed twice may be in two pages; it is as it was read last.
                    fresh = typed(relation, found)
                    rows = pa.concat_tables(
                        [_not_of(rows, relation, _names(relation, fresh)), fresh]
                    )
            count = sum(each.num_rows for each in names) + rows.num_rows
        if count >= SLICE_ROWS and number < last:
            yield Slice(number, _once(names), rows)
            names, rows, count = [], rows.slice(0, 0), 0
    yield Slice(last, _once(names), rows)


_NAME = pa.schema([("position", pa.int64()), ("scope", pa.string()), ("name", pa.string())])


def _once(names: list[pa.Table]) -> pa.Table:
    every = pa.concat_tables([_NAME.empty_table(), *names])
    return every.group_by(_NAME.names).aggregate([]).select(_NAME.names)


def _names(relation: str, rows: pa.Table) -> pa.Table:
    """What rows are of, as an alteration names it."""
    none = {"position": pa.nulls(rows.num_rows, pa.int64())}
    if relation == "dedupe":
        is_key = pc.is_null(rows["committed_id"])
        columns = {
            "position": pc.fill_null(rows["committed_id"], 0),
            "scope": pc.if_else(is_key, rows["scope"], ""),
            "name": pc.if_else(is_key, rows["key"], ""),
        }
    else:
        columns = none | {"scope": rows["mesh_id"], "name": rows["broker_message_id"]}
    return pa.table(columns).cast(_NAME)


def _not_of(rows: pa.Table, relation: str, names: pa.Table) -> pa.Table:
    """Rows of other things than these."""
    if relation == "dedupe":
        entries = names.filter(pc.greater(names["position"], 0)).select(["position"])
        rows = others(rows, entries.rename_columns(["committed_id"]))
        keys = names.filter(pc.equal(names["position"], 0)).select(["scope", "name"])
        free = pc.is_null(rows["committed_id"])
        kept = others(rows.filter(free), keys.rename_columns(["scope", "key"]))
        return pa.concat_tables([rows.filter(pc.invert(free)), kept])
    return others(rows, names.select(["name"]).rename_columns(["broker_message_id"]))
