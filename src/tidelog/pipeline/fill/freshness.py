"""Whether a table has everything already: decided from a few rows, without Spark.

A table is current if it is complete through the last entry of `log`, if nothing of the relations it
is made of has changed since, and if what it is made of is still what it was made of.
"""

from typing import TYPE_CHECKING

from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import ALTERATIONS, MODEL
from tidelog.pipeline.search.index import NoIndex, index_root, read_manifest
from tidelog.pipeline.search.index_build import Updated
from tidelog.pipeline.tables import Table

if TYPE_CHECKING:
    from tidelog.pipeline.source.store_address import AlterationNumbers, StoreAddress

_SETTINGS = "sync_setting"
"""The relation of which the model's version is all that counts."""


def is_current(
    lake: Lake,
    store: "StoreAddress",
    table: Table,
    target: int,
    altered: "AlterationNumbers",
    model_version: int,
) -> bool:
    """Whether a build of a table would change nothing.

    Args:
        lake: Where the table is.
        store: What it is made of.
        table: The table.
        target: The last position of `log`.
        altered: What the store can tell of its relations.
        model_version: That of the model in use.
    """
    name = table.name
    if lake.delta(name) is None or lake.through(name) != target:
        return False
    if table.made_by and lake.made_of(name) != lake.seal(table.inputs[0]):
        return False
    for relation in table.relations:
        if relation == _SETTINGS:
            if lake.noted(name, MODEL) != model_version:
                return False
            continue
        noted = lake.noted(name, ALTERATIONS)
        if noted is None or not altered.has_after(noted):
            return False
        if noted < altered.last and relation in store.altered_relations(noted, altered.last):
            return False
    return True


def unchanged_index(lake: Lake) -> Updated | None:
    """What an update of the search index would return that has nothing to do; None if it has."""
    table = lake.delta("message")
    try:
        manifest = read_manifest(index_root(lake.root))
    except NoIndex:
        return None
    if table is None or manifest is None or manifest.table != str(table.metadata().id):
        return None
    through, files = lake.through("message"), lake.relative_files("message")
    if manifest.through != through or list(manifest.files) != files:
        return None
    return Updated(through, manifest.documents, 0, is_rebuilt=False)
