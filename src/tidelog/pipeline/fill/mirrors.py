"""Tables that mirror a relation of the store: `delivery`, `mention` and `dedupe`.

The log tells which rows were added: those of its new entries. The store tells which changed or went
since, as far as it has kept that. So a build reads what is new and what has changed, and reads all
of a relation only for a new table, or one that was left alone for too long.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.fill.alterations import Slice, slices
from tidelog.pipeline.fill.relation_files import files_of_pages, relation_files
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import ALTERATIONS
from tidelog.pipeline.lake.replacing import Gone
from tidelog.pipeline.source.relations import typed
from tidelog.pipeline.transforms.stored_rows import mirrored

if TYPE_CHECKING:
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import AlterationNumbers, StoreAddress

Mode = Literal["full", "new", "current"]
"""`full`: all of it was made. `new`: what had changed. `current`: nothing had."""


def mirror(
    name: str,
    spark: "Spark",
    lake: Lake,
    store: "StoreAddress",
    altered: "AlterationNumbers",
    start: int,
    target: int,
) -> tuple[int, Mode]:
    """Bring a table from one position to another, and to what the store has changed since.

    Args:
        name: The table; its relation is called as it is.
        spark: Reads long ranges.
        lake: Where the table is.
        store: Where the relation is.
        altered: What the store can tell, read before anything else.
        start: Position through which the table is complete; 0 if all of it is to be made.
        target: Position through which it shall be complete.

    Returns:
        How many rows were written, and how.
    """
    folder, make = lake.new_folder(name), partial(mirrored, name)
    noted = lake.noted(name, ALTERATIONS)
    if start == 0 or noted is None or not altered.has_after(noted):
        files = relation_files(spark, store, name, 0, target, folder, make)
        if name == "dedupe":
            pages = (make(typed(name, page)) for page in store.keys_of_no_entry())
            files += files_of_pages(pages, folder)
        return lake.overwrite_files(name, files, target, {ALTERATIONS: altered.last}), "full"
    rows = 0
    for part in slices(store, name, noted, altered.last, start):
        files = []
        if part.number == altered.last:
            files = relation_files(spark, store, name, start, target, folder, make)
            if start == target and not part.names.num_rows:
                return rows, "new" if rows else "current"
        through = target if part.number == altered.last else start
        rows += lake.replace(
            name,
            through,
            list(_gone(name, part)),
            mirrored(name, part.rows),
            files,
            notes={ALTERATIONS: part.number},
        )
    return rows, "new"


def _gone(name: str, part: Slice) -> Iterator[Gone]:
    """The rows of a table that a slice replaces."""
    names = part.names
    if name != "dedupe":
        yield Gone(_only(names, ["name"], ["broker_message_id"]))
        return
    is_entry = pc.greater(names["position"], 0)
    yield Gone(_only(names.filter(is_entry), ["position"], ["committed_id"]))
    keys = names.filter(pc.invert(is_entry))
    yield Gone(_only(keys, ["scope", "name"], ["scope", "key"]), without="committed_id")


def _only(names: pa.Table, columns: list[str], called: list[str]) -> pa.Table:
    return names.select(columns).rename_columns(called).group_by(called).aggregate([])
