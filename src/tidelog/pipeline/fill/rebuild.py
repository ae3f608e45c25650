"""Making one table anew while the rest of the lake goes on.

All of it is made of the lake as it is when this begins, in a folder of the table that no reader
sees, and without the right to write: a service ingests and builds meanwhile, this table among the
others. Then the right to write is taken, for as long as it takes to put the new files into the
place of the old ones, in one commit, and to add what the log has got since.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.pipeline.fill.derived_tables import Built, Steps, build, build_whole, told_by_the_log
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.horizon import horizon
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.lake_files import LakeFiles, LocalFiles
from tidelog.pipeline.source.relations import read_relations
from tidelog.pipeline.source.store_address import AlterationNumbers
from tidelog.pipeline.tables import TABLES

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import StoreAddress

LOCK_SECONDS = 3600.0
"""How long it waits for the right to write when all is made: longer than a run of a service."""


class _Then(Lake):
    """A lake as it was at a moment, but for one table, which is empty and in a folder of its own.

    Nobody else knows that folder, so no lock is needed to write there; it is here, wherever the
    lake is.
    """

    def __init__(self, lake: Lake, name: str, folder: Path) -> None:
        super().__init__(lake.root, lake.url)
        self._name, self._folder = name, folder
        self._here = LocalFiles(lake.root)
        self._known = {
            table.name: lake.place.table_now(lake.path(table.name))
            for table in TABLES
            if table.name != name and lake.delta(table.name) is not None
        }

    def path(self, name: str) -> Path:
        """Where a table is."""
        return self._folder if name == self._name else super().path(name)

    def files_of(self, name: str) -> LakeFiles:
        """Where a table is kept."""
        return self._here if name == self._name else super().files_of(name)

    def delta(self, name: str) -> "DeltaTable | None":
        """A table in the version that it had then."""
        return super().delta(name) if name == self._name else self._known.get(name)

    @contextmanager
    def writing(self, *, wait_seconds: float | None = None) -> Iterator[None]:
        """Everybody may write here."""
        del wait_seconds
        yield


def rebuild(
    spark: "Spark",
    lake: Lake,
    store: "StoreAddress",
    name: str,
    *,
    told: Callable[[str], None] = lambda _step: None,
) -> Built:
    """Make all of a table anew; only the end of it needs the right to write.

    Args:
        spark: The session.
        lake: Where the table is.
        store: The store that `log` was ingested from.
        name: A table that is made of the log alone.
        told: Called with `making`, `waiting` and `replacing`.

    Raises:
        LakeError: the table is not of that kind, or something was forgotten or rolled back
            meanwhile; nothing has changed then.
        LakeLocked: another process writes to the lake for more than an hour.
    """
    if name not in told_by_the_log():
        raise LakeError(
            f"{name} is not a table that the log alone makes; those are "
            f"{', '.join(told_by_the_log())}. Rebuild it with `tidelog pipeline build {name} "
            "--full`, which needs the lake for itself."
        )
    begun, folder = time.monotonic(), lake.new_folder(name)
    then = _Then(lake, name, folder)
    target = then.through("log")
    if not target:
        raise LakeError(f"there is no log in {lake.name} yet. Ingest it: `tidelog pipeline run`.")
    try:
        told("making")
        nothing = read_relations(store, ())
        steps = Steps(spark, then, store, AlterationNumbers(0, 0), nothing, None, 0, target)
        rows = build_whole(name, steps)
        told("waiting")
        with lake.writing(wait_seconds=LOCK_SECONDS):
            told("replacing")
            _require_same(lake, then)
            lake.overwrite_files(name, [Path(file) for file in then.files(name)], target)
            [*_, added] = build(spark, lake, store, [name])
    except FileNotFoundError as error:
        raise LakeError(
            f"files of {name} were deleted while it was made ({error}). Nothing has changed; try "
            "again."
        ) from error
    finally:
        shutil.rmtree(folder / "_delta_log", ignore_errors=True)
    seconds = time.monotonic() - begun
    return Built(name, rows + added.rows, seconds, added.through, "full", added.notes)


def _require_same(lake: Lake, then: Lake) -> None:
    """Make sure that the log goes on from what was read, and that nothing of it is forgotten."""
    now, before = (
        (each.seal("forgotten"), horizon(each), _identity(each)) for each in (lake, then)
    )
    if now != before or lake.through("log") < then.through("log"):
        raise LakeError(
            "something was forgotten, rolled back or removed by age while the table was made. "
            "Nothing has changed; try again."
        )


def _identity(lake: Lake) -> dict[str, str]:
    """Which log it is, and in which incarnation."""
    table = lake.delta("log")
    notes = {} if table is None else table.metadata().configuration
    return {key: value for key, value in notes.items() if key.startswith("tidelog.")}
