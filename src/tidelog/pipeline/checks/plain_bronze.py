"""That a little of the table `log` is what the store has, told without Spark.

Whatever is not plainly so is left to Spark, which says what is wrong with it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.base.data.digest import body_digest
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.spool import HIGHEST
from tidelog.pipeline.lake.forgetting import is_unfinished
from tidelog.pipeline.lake.horizon import horizon
from tidelog.pipeline.source.spark_source import id_ranges
from tidelog.pipeline.tables import LOG

if TYPE_CHECKING:
    from tidelog.pipeline.checks.evidence import Evidence
    from tidelog.pipeline.lake.lake import Lake

CHUNK_ROWS = 20_000
"""Entries that are compared at once."""

_COLUMNS = tuple(column.name for column in LOG.columns)
_CONTENT = ("body", "data")


def is_plainly_the_same(
    evidence: "Evidence", lake: "Lake", ranges: Sequence[Range], through: int
) -> bool:
    """Whether the lake has each entry of ranges once, as it is in the store, and none beyond.

    Args:
        evidence: The store; if its entries are not in memory, the answer is no.
        lake: The lake; if something was ever forgotten there, the answer is no.
        ranges: Of the entries that both have.
        through: The last entry that both have.
    """
    if evidence.log_files or lake.files("forgotten") or is_unfinished(lake):
        return False
    too_old = horizon(lake)
    try:
        if ranges[-1].through == through and _has_more(lake):
            return False
        return all(
            _is_same(stored, lake.between("log", _COLUMNS, chunk.after, chunk.through), too_old)
            for each in ranges
            for chunk in id_ranges(each.after, each.through, CHUNK_ROWS)
            for stored in evidence.log_tables([Range(chunk.after, chunk.through)], _COLUMNS)
        )
    except pa.ArrowException:  # files of another program, in types of its own
        return False


def _has_more(lake: "Lake") -> bool:
    """Whether there are entries after what the lake says it has."""
    return bool(lake.between("log", ["committed_id"], lake.through("log"), HIGHEST).num_rows)


def _is_same(stored: pa.Table, kept: pa.Table, too_old: int) -> bool:
    """Whether entries are equal; what the store has lost, only its digest vouches for."""
    kept = kept.sort_by("committed_id")
    is_left = (pc.field("committed_id") <= too_old) & pc.field("body").is_valid()
    if kept.filter(is_left).num_rows:
        return False
    if stored.num_rows != kept.num_rows or any(
        not stored[name].equals(kept[name]) for name in _COLUMNS if name not in _CONTENT
    ):
        return False
    if all(stored[name].equals(kept[name]) for name in _CONTENT):
        return True
    has_content = pc.is_valid(stored["body"])
    there, here = stored.filter(has_content), kept.filter(has_content)
    if any(not there[name].equals(here[name]) for name in _CONTENT):
        return False
    alone = kept.filter(pc.and_(pc.invert(has_content), pc.is_valid(kept["body"])))
    return all(
        body_digest(body, data) == digest
        for body, data, digest in zip(
            *(alone[name].to_pylist() for name in ("body", "data", "body_digest")), strict=True
        )
    )
