"""Ingest and fold by Spark, DuckDB and Polars, one after the other in a process of its own.

The first fold is cold: the JVM has done nothing else. What follows is repeated, and the best of
the rounds counts, of each engine alike.

Example: python bench/pipeline_parts/engines.py STORE LAKE FOLDER ROUNDS
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline_parts import rivals
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.fill.ingest import ingest
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.session import spark_session


def measure(store: Path, root: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds of each engine; `root` is a lake with all versions of the store."""
    lake, address = Lake(root), StoreAddress(str(store))
    entries = address.head().committed_id
    began = time.perf_counter()
    spark = spark_session(rows=entries)
    spark.range(1).count()
    start = time.perf_counter() - began
    fresh = (folder / f"ingest-{number}" for number in range(rounds + 1))

    def fold() -> None:
        build(spark, lake, address, ["message"], full=True)

    def take() -> None:
        assert ingest(spark, address, Lake(next(fresh))) == entries

    ours = {"cold_fold": timed(fold), "fold": best(fold, rounds), "ingest": best(take, rounds + 1)}
    spark.stop()
    versions, expected = lake.files("message_version"), rivals.summary(lake.files("message"))
    found: dict[str, Any] = {"spark": {what: took._asdict() for what, took in ours.items()}}
    for name, rival_take, rival_fold in (
        ("duckdb", rivals.duckdb_ingest, rivals.duckdb_fold),
        ("polars", rivals.polars_ingest, rivals.polars_fold),
    ):
        target, folded = folder / f"{name}.parquet", folder / f"{name}-fold.parquet"
        fold_took = best(partial(rival_fold, versions, folded), rounds)
        theirs = {
            "cold_fold": fold_took,
            "fold": fold_took,
            "ingest": best(partial(rival_take, store, target), rounds),
        }
        found[name] = {
            **{what: theirs[what]._asdict() for what in ("fold", "ingest")},
            "is_fold_equal": rivals.summary([str(folded)]) == expected,
            "ours_over_theirs": {what: over(ours[what], theirs[what]) for what in ours},
        }
    return {"entries": entries, "start_seconds": round(start, 2), **found}


class Took(NamedTuple):
    """How long it took, and of how many processors together."""

    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], Any]) -> Took:
    """What it takes."""
    began, used = time.perf_counter(), cpu_seconds()
    work()
    return Took(round(time.perf_counter() - began, 2), round(cpu_seconds() - used, 2))


def best(work: Callable[[], Any], rounds: int) -> Took:
    """The fastest of some rounds."""
    return min(timed(work) for _ in range(rounds))


def over(ours: Took, theirs: Took) -> dict[str, float]:
    """How many times as much; of a loaded machine the second tells more."""
    return {
        "seconds": round(ours.seconds / theirs.seconds, 2),
        "cpu_seconds": round(ours.cpu_seconds / theirs.cpu_seconds, 2),
    }


def cpu_seconds() -> float:
    """What this process and all it started have used so far."""
    own, total = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    store, root, folder = map(Path, sys.argv[1:4])
    folder.mkdir(parents=True)
    try:
        print(json.dumps(measure(store, root, folder, int(sys.argv[4]))))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
