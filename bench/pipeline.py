"""The pipeline: ingest, fold, checks and search a second, beside DuckDB and Polars; freshness.

The log is 2,000,000 entries of about 250 bytes (versions of channel messages, five to a message),
and a tenth of that to see whether the cost of a row stays the same. It is made once and kept in
--folder. Prints one JSON document.

  start      a session of Spark until it has answered its first query; told apart from the rest
  cold       ingest and fold of the smaller log by a JVM that has done neither; all that follows
             is warm, which is to say that it has done each of them once
  ingest     the store to the table `log`
  fold       the table `message_version` to the table `message`
  checks     each of them over the whole log
  search     the index of all visible messages, from nothing
  rivals     DuckDB and Polars: the same rows to Parquet, and the same fold of the same files. They
             run after Spark, in this process; their results are compared with Spark's
  freshness  from a commit of another process until the table `log` has the entry, in `--follow`

Example: python bench/pipeline.py --quick
"""

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_parts import rivals
from pipeline_parts.logs import BODY_BYTES, VERSIONS, log_of
from pipeline_parts.memory import peak_memory
from tidelog.pipeline.checks.run import CHECKS, run_checks
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.fill.ingest import FOLLOW_SECONDS, ingest
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES = 2_000_000
SMALL = ENTRIES // 10
WRITER = Path(__file__).parent / "pipeline_parts" / "writer.py"
LOOK_SECONDS = 0.02
"""How often the lake is asked whether it has an entry."""
FRESH_SECONDS = 120.0
"""After that an entry that is not in the lake is a failure."""


class Bench:
    """One run: a session, a folder, and what was measured."""

    def __init__(self, spark: "SparkSession", folder: Path, log: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._log = log
        self._number = 0

    def fresh(self, name: str) -> Path:
        """A place that nobody has used."""
        self._number += 1
        return self._folder / f"{self._number}-{name}"

    def ingest(self, entries: int) -> tuple[Lake, dict[str, Any]]:
        """A store into a lake of its own."""
        lake = Lake(self.fresh("lake"))
        address = StoreAddress(str(log_of(self._log, entries)))
        seconds, megabytes, through = timed(ingest, self._spark, address, lake)
        assert through == entries, through
        return lake, rate(entries, seconds, "rows", megabytes)

    def fold(self, lake: Lake, entries: int) -> dict[str, Any]:
        """Versions and messages of a lake; only the messages are the fold."""
        address = StoreAddress(str(log_of(self._log, entries)))
        found = {}
        for table in ("message_version", "message"):
            seconds, megabytes, _ = timed(build, self._spark, lake, address, [table])
            found[table] = rate(entries, seconds, "versions", megabytes)
        return found

    def checks(self, lake: Lake, entries: int) -> dict[str, Any]:
        """Every check by itself."""
        address = StoreAddress(str(log_of(self._log, entries)))
        found = {}
        for name in CHECKS:
            with lake.writing():
                seconds, megabytes, [verdict] = timed(
                    run_checks, [name], self._spark, address, lake
                )
            measured = rate(entries, seconds, "rows", megabytes)
            found[name] = {**measured, "examined": verdict.examined, "findings": verdict.total}
        return found

    def search(self, lake: Lake) -> dict[str, Any]:
        """The index, from nothing."""
        seconds, megabytes, made = timed(update_index, self._spark, lake)
        return {"documents": made.documents, **rate(made.documents, seconds, "docs", megabytes)}

    def rivals(self, lake: Lake, entries: int) -> dict[str, Any]:
        """The same work by others."""
        store, versions = log_of(self._log, entries), lake.files("message_version")
        ours = rivals.summary(lake.files("message"))
        found: dict[str, Any] = {}
        for name, take, fold in (
            ("duckdb", rivals.duckdb_ingest, rivals.duckdb_fold),
            ("polars", rivals.polars_ingest, rivals.polars_fold),
        ):
            target = self.fresh(f"{name}.parquet")
            seconds, megabytes, rows = timed(take, store, target)
            assert rows == entries, (name, rows)
            folded = self.fresh(f"{name}-fold.parquet")
            fold_seconds, fold_megabytes, _ = timed(fold, versions, folded)
            found[name] = {
                "ingest": rate(entries, seconds, "rows", megabytes),
                "fold": rate(entries, fold_seconds, "versions", fold_megabytes),
                "is_equal_to_ours": rivals.summary([str(folded)]) == ours,
            }
        return found

    def freshness(self, entries: int, commits: int) -> dict[str, Any]:
        """How long entries take from their commit to the lake, while an ingest follows."""
        store = self.fresh("fresh.db")
        shutil.copyfile(log_of(self._log, entries), store)
        lake, address = Lake(self.fresh("lake")), StoreAddress(str(store))
        ingest(self._spark, address, lake)
        with (
            following(self._spark, address, lake),
            subprocess.Popen(
                [sys.executable, WRITER, str(store), str(commits), "1.3"],
                stdout=subprocess.PIPE,
                text=True,
            ) as writer,
        ):
            assert writer.stdout is not None
            waits = [lake_has(lake, number) - at for number, at in map(json.loads, writer.stdout)]
        return {
            "commits": len(waits),
            "looks_every_seconds": FOLLOW_SECONDS,
            "p50_seconds": round(statistics.median(waits), 2),
            "max_seconds": round(max(waits), 2),
        }


@contextmanager
def following(spark: "SparkSession", address: StoreAddress, lake: Lake) -> Any:
    """An ingest that follows, on a thread; for the length of the block."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: ingest(spark, address, lake, follow=True, stop=stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def lake_has(lake: Lake, number: int) -> float:
    """When the lake was seen to be complete through an entry."""
    deadline = time.monotonic() + FRESH_SECONDS
    while lake.through("log") < number:
        assert time.monotonic() < deadline, "the entry did not come"
        time.sleep(LOOK_SECONDS)
    return time.time()


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, int, Any]:
    """Seconds, most megabytes meanwhile, and what it answered."""
    with peak_memory() as peak:
        began = time.perf_counter()
        answer = work(*arguments)
        seconds = time.perf_counter() - began
    return seconds, peak.megabytes, answer


def rate(count: int, seconds: float, what: str, megabytes: int) -> dict[str, Any]:
    """How fast that was."""
    return {
        "seconds": round(seconds, 2),
        f"{what}_per_s": round(count / seconds),
        "peak_mb": megabytes,
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything, in the order of the description."""
    sizes = [SMALL] if options.quick else [SMALL, ENTRIES]
    for size in sizes:
        log_of(options.folder, size)
    began = time.perf_counter()
    spark = spark_session()
    spark.range(1).count()
    found: dict[str, Any] = {"start_seconds": round(time.perf_counter() - began, 2)}
    try:
        bench = Bench(spark, folder, options.folder)
        lake, cold = bench.ingest(SMALL)
        found["cold"] = {"ingest": cold, "fold": bench.fold(lake, SMALL)["message"]}
        for size in sizes:
            lake, warm = bench.ingest(size)
            folds = bench.fold(lake, size)
            part = {
                "ingest": warm,
                "versions": folds["message_version"],
                "fold": folds["message"],
                "checks": bench.checks(lake, size),
                "search": bench.search(lake),
                "rivals": bench.rivals(lake, size),
            }
            found[f"entries_{size}"] = {**part, "times_as_long_as": ratios(part)}
        found["freshness"] = bench.freshness(SMALL, options.commits)
    finally:
        spark.stop()
    if not options.quick:
        found["row_costs_at_full_over_tenth"] = {
            what: round(
                found[f"entries_{ENTRIES}"][what]["seconds"]
                / found[f"entries_{SMALL}"][what]["seconds"]
                / (ENTRIES / SMALL),
                2,
            )
            for what in ("ingest", "versions", "fold")
        }
    return found


def ratios(part: dict[str, Any]) -> dict[str, float]:
    """How many times as long as a rival Spark takes, start-up apart."""
    return {
        f"{name}_{what}": round(part[what]["seconds"] / rival[what]["seconds"], 2)
        for name, rival in part["rivals"].items()
        for what in ("ingest", "fold")
    }


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    began = time.perf_counter()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lakes-", dir=options.folder) as directory:
        found = measure(options, Path(directory))
    libraries = ("pyspark", "deltalake", "pyarrow", "adbc-driver-sqlite", "tantivy")
    document = {
        "bench": "pipeline",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "versions": {name: version(name) for name in (*libraries, "duckdb", "polars")},
            "body_bytes": BODY_BYTES,
            "versions_of_a_message": VERSIONS,
            "is_quick": options.quick,
            "load_average_before": load_before,
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
            "seconds": round(time.perf_counter() - began, 1),
        },
        **found,
        "aims": {
            "times_as_long_as": "at most 1.5 on two cores",
            "row_costs_at_full_over_tenth": "about 1",
            "freshness_max_seconds": 5,
        },
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "tidelog-bench-pipeline",
        help="where logs are kept for the next run, and lakes are made (default: %(default)s)",
    )
    parser.add_argument("--commits", type=int, default=20, help="commits of the freshness test")
    parser.add_argument("--quick", action="store_true", help="only a tenth of the entries")
    main(parser.parse_args())
