"""The pipeline by what is new: a first run, one with nothing new, one with a little; and rivals.

The log is versions of channel messages of about 250 bytes, five to a message. Logs of each size are
made once and kept in --folder. Prints one JSON document, and progress on standard error.

  first      `tidelog pipeline run` on a log and no lake: ingest, tables, index, checks, report;
             in a process of its own, with the start of the JVM, and how much memory it takes
  nothing    the same again, with nothing new
  new        the same after 1,000 new entries: an append to the newest message of each channel, then
             new messages; and how much of `message` lay in files that were replaced by it
  engines    ingest and fold (`message_version` to `message`) in one session of Spark, cold and
             warm, and by DuckDB and Polars: the same rows, the same files
  freshness  from a commit of another process until the table `log` has the entry, in `--follow`

Example: python bench/pipeline.py --entries 200000
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
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_parts.commands import files_of, rewritten_share, run_pipeline, told
from pipeline_parts.logs import BODY_BYTES, RATE, VERSIONS, add_entries, log_of
from tidelog.pipeline.fill.ingest import FOLLOW_SECONDS, ingest
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = [200_000, 2_000_000, 10_000_000]
NEW = 1000
PARTS = Path(__file__).parent / "pipeline_parts"
LOOK_SECONDS = 0.02
"""How often the lake is asked whether it has an entry."""
FRESH_SECONDS = 120.0
"""After that an entry that is not in the lake is a failure."""
AIMS = {
    "nothing_over_first": 0.05,
    "new_seconds_at_2000000": 20,
    "new_share_of_message_rewritten": 0.02,
    "over_duckdb_at_2000000": {"fold": 1.7, "cold_fold": 3.0, "ingest": 1.1},
    "over_duckdb_at_200000": {"fold": 3},
    "driver_memory": "the same at 2,000,000 and 10,000,000",
    "freshness_max_seconds": 5,
}


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure_size(kept: Path, folder: Path, entries: int, rounds: int) -> dict[str, Any]:
    """Everything about a log of one size; in a folder that nobody else uses."""
    say(f"{entries:,} entries: making the log, unless it was kept")
    log = log_of(kept, entries)
    store, lake = folder / "tidelog.db", folder / "lake"
    shutil.copyfile(log, store)
    runs = {}
    for name in ("first", "nothing"):
        say(f"{entries:,} entries: {name}")
        runs[name] = run_pipeline(store, lake)
    say(f"{entries:,} entries: new")
    before = files_of(lake, "message")
    through = add_entries(store, NEW)
    runs["new"] = run_pipeline(store, lake)
    tables = runs["new"].printed["tables"]
    share = rewritten_share(before, files_of(lake, "message"))
    say(f"{entries:,} entries: engines")
    arguments = (PARTS / "engines.py", store, lake, folder / "engines", rounds)
    printed = subprocess.check_output([sys.executable, *map(str, arguments)], text=True)
    engines = json.loads(printed)
    seconds = {name: ran.seconds for name, ran in runs.items()}
    return {
        **{name: told(ran) for name, ran in runs.items()},
        "nothing_over_first": round(seconds["nothing"] / seconds["first"], 3),
        "new_over_first": round(seconds["new"] / seconds["first"], 3),
        "cpu_over_first": {
            name: round(runs[name].cpu_seconds / runs["first"].cpu_seconds, 3)
            for name in ("nothing", "new")
        },
        "new_share_of_message_rewritten": round(share, 4),
        "not_complete_after_new": [each["name"] for each in tables if each["through"] < through],
        "engines": engines,
    }


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """Each aim with what was measured for it, as far as it was."""
    figures: dict[str, Any] = {}
    for size, part in ((int(name[8:]), found[name]) for name in found if name[:8] == "entries_"):
        ratios = part["engines"]["duckdb"]["ours_over_theirs"]
        figures[f"at_{size}"] = {
            "nothing_over_first": part["nothing_over_first"],
            "new_seconds": part["new"]["seconds"],
            "new_share_of_message_rewritten": part["new_share_of_message_rewritten"],
            "over_duckdb": {what: each["seconds"] for what, each in ratios.items()},
            "over_duckdb_cpu": {what: each["cpu_seconds"] for what, each in ratios.items()},
            "driver_mb": part["first"]["peak_mb"]["driver"],
        }
    return figures


def freshness(kept: Path, folder: Path, entries: int, commits: int) -> dict[str, Any]:
    """How long entries take from their commit to the lake, while an ingest follows."""
    say(f"{entries:,} entries: freshness")
    store = folder / "tidelog.db"
    shutil.copyfile(log_of(kept, entries), store)
    lake, address = Lake(folder / "lake"), StoreAddress(str(store))
    spark = spark_session()
    try:
        ingest(spark, address, lake)
        with (
            following(spark, address, lake),
            subprocess.Popen(
                [sys.executable, PARTS / "writer.py", str(store), str(commits), "1.3"],
                stdout=subprocess.PIPE,
                text=True,
            ) as writer,
        ):
            assert writer.stdout is not None
            waits = [lake_has(lake, number) - at for number, at in map(json.loads, writer.stdout)]
    finally:
        spark.stop()
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


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    began = time.perf_counter()
    sizes = sorted(set(options.entries or (SIZES[:1] if options.quick else SIZES)))
    options.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for size in sizes:
        loads = [round(os.getloadavg()[0], 2)]
        with tempfile.TemporaryDirectory(prefix="lakes-", dir=options.folder) as folder:
            part = measure_size(options.folder, Path(folder), size, options.rounds)
        loads.append(round(os.getloadavg()[0], 2))
        found[f"entries_{size}"] = {**part, "load_average_before_and_after": loads}
    if options.commits:
        with tempfile.TemporaryDirectory(prefix="lakes-", dir=options.folder) as folder:
            found["freshness"] = freshness(options.folder, Path(folder), sizes[0], options.commits)
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
            "entries_of_a_second": RATE,
            "new_entries": NEW,
            "rounds": options.rounds,
            "load_average_before": load_before,
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
            "seconds": round(time.perf_counter() - began, 1),
        },
        **found,
        "aims": AIMS,
        "figures": judged(found),
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
    parser.add_argument(
        "--entries",
        type=int,
        nargs="+",
        metavar="N",
        help=f"sizes of the log (default: {' '.join(map(str, SIZES))})",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each engine when warm")
    parser.add_argument(
        "--commits", type=int, default=20, help="commits of the freshness test; 0: without it"
    )
    parser.add_argument("--quick", action="store_true", help="only the smallest log")
    main(parser.parse_args())
