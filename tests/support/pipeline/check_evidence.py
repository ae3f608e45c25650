"""Evidence for checks, of parts of a log."""

from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from tidelog.pipeline.lazy_spark import Spark


def looked_at(
    spark: "Spark", location: str, folder: Path, *ranges: Range, seed: int = 0
) -> Evidence:
    """The evidence of some ranges of a log, or of all of it."""
    address = StoreAddress(location)
    head = address.head()
    wanted = ranges or (Range(0, head.committed_id),)
    return Evidence(spark, address, head, wanted, folder / "_checks", seed=seed)
