"""The pipeline as a service beside a writer: how fresh every table is, and whether that stays so.

A log of --entries is written to a store, `tidelog pipeline run --every` is started on it as a
process, and another process commits --rate entries a second for --minutes. Prints one JSON
document.

  freshness  by table: seconds from the commit of an entry until the table is complete through it,
             over the entries that were committed after the first round
  rounds     how long they took, in the first and in the last quarter of the time
  sizes      memory, threads and open files of the service and all it started, in the first and in
             the last quarter
  files      of each table at the end, and the files of its Delta log

Example: python bench/pipeline_service.py --minutes 5
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import psutil

from pipeline_parts.logs import log_of
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.open_tables import LOG_FOLDER

WRITER = Path(__file__).parent / "pipeline_parts" / "steady_writer.py"
LOOK_SECONDS = 0.25
END_SECONDS = 1800.0
"""The first round makes everything, maybe of millions of entries."""


class Watch:
    """What is seen of the lake and of the process, a few times a second."""

    def __init__(self, lake: Lake, service: "subprocess.Popen[str]") -> None:
        self._lake = lake
        self._service = psutil.Process(service.pid)
        self._stop = threading.Event()
        self.reached: dict[str, list[tuple[float, int]]] = {name: [] for name in tables()}
        """By table: when it was first seen complete through which position."""
        self.sizes: list[tuple[float, dict[str, int]]] = []
        """Megabytes, threads and open files of the service, its JVM and its processes."""
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        turn = 0
        while not self._stop.wait(LOOK_SECONDS):
            now = time.time()
            for name, seen in self.reached.items():
                through = self._lake.through(name)
                if through and (not seen or seen[-1][1] < through):
                    seen.append((now, through))
            if turn % 8 == 0:
                self.sizes.append((now, self._size()))
            turn += 1

    def _size(self) -> dict[str, int]:
        size = {"memory_mb": 0, "threads": 0, "open_files": 0}
        for process in (self._service, *self._service.children(recursive=True)):
            try:
                with process.oneshot():
                    size["memory_mb"] += process.memory_info().rss // 2**20
                    size["threads"] += process.num_threads()
                    size["open_files"] += process.num_fds()
            except psutil.NoSuchProcess:
                continue
        return size

    def is_past(self, position: int) -> bool:
        """Whether every table is complete through a position."""
        return all(seen and seen[-1][1] >= position for seen in self.reached.values())


def tables() -> list[str]:
    """All that the service keeps fresh."""
    return ["log", *buildable()]


def freshness(commits: list[tuple[int, float]], reached: list[tuple[float, int]]) -> dict[str, Any]:
    """How long entries took until a table was complete through them."""
    positions = [through for _, through in reached]
    waits = sorted(
        reached[place][0] - at
        for number, at in commits
        if (place := bisect_left(positions, number)) < len(reached)
    )
    return {
        "commits": len(waits),
        "p50_seconds": round(statistics.median(waits), 1),
        "p95_seconds": round(waits[int(len(waits) * 0.95)], 1),
        "max_seconds": round(waits[-1], 1),
    }


def quarters(values: list[float]) -> dict[str, float]:
    """The median of the first and of the last quarter, and the most."""
    size = max(1, len(values) // 4)
    return {
        "first_quarter": round(statistics.median(values[:size]), 2),
        "last_quarter": round(statistics.median(values[-size:]), 2),
        "most": round(max(values), 2),
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A service and a writer side by side."""
    store, lake = folder / "tidelog.db", Lake(folder / "lake")
    shutil.copyfile(log_of(options.folder, options.entries), store)
    place = ("--store", str(store), "--lake", str(lake.root))
    told = [text for each in options.conf for text in ("--conf", each)]
    command = [sys.executable, "-m", "tidelog", "pipeline", "run", "--every", options.every]
    with (
        (folder / "rounds.json").open("w", encoding="utf-8") as out,
        subprocess.Popen([*command, "--json", *place, *told], stdout=out, text=True) as service,
        Watch(lake, service) as watch,
    ):
        try:
            until(lambda: rounds_of(out.name) != [], service, out.name)
            began = time.time()
            seconds = options.minutes * 60
            writing = subprocess.run(
                [sys.executable, WRITER, str(store), str(options.rate), str(seconds)],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            commits = [(number, at) for number, at in map(json.loads, writing.stdout.splitlines())]
            until(lambda: watch.is_past(commits[-1][0]), service, out.name)
        finally:
            service.terminate()
            code = service.wait(END_SECONDS)
        rounds = rounds_of(out.name)
    assert code == 0, (code, rounds[-1])
    busy = [each["seconds"] for each in rounds[1:] if not each["is_idle"] and not each["error"]]
    sizes = [size for at, size in watch.sizes if at >= began]
    return {
        "every": options.every,
        "rate_per_s": options.rate,
        "minutes": options.minutes,
        "entries_before": options.entries,
        "entries_committed": commits[-1][0] - options.entries,
        "first_round_seconds": rounds[0]["seconds"],
        "freshness": {name: freshness(commits, seen) for name, seen in watch.reached.items()},
        "rounds": {"count": len(rounds), "seconds": quarters(busy)},
        "errors": [each["error"] for each in rounds if each["error"]],
        "is_sound": all(each["is_sound"] for each in rounds),
        "sizes": {what: quarters([float(each[what]) for each in sizes]) for what in sizes[0]},
        "files": {
            name: {
                "data": len(lake.files(name)),
                "delta_log": len(list((lake.path(name) / LOG_FOLDER).iterdir())),
            }
            for name in tables()
        },
        "steps_seconds_of_last_round": steps_of(rounds),
    }


def steps_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What the last round that did something spent its time on."""
    last = [each for each in rounds if "tables" in each][-1]
    return {
        "ingest": last["ingest"]["seconds"],
        "tables": {each["name"]: round(each["seconds"], 2) for each in last["tables"]},
        "round": last["seconds"],
    }


def rounds_of(file: str) -> list[dict[str, Any]]:
    """The rounds that have ended."""
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def until(holds: Any, service: "subprocess.Popen[str]", file: str) -> None:
    """Wait for something that the service does."""
    deadline = time.monotonic() + END_SECONDS
    while not holds():
        if service.poll() is not None:
            last = rounds_of(file)[-1:]
            unsound = [check for each in last for check in each["checks"] if not check["is_sound"]]
            raise SystemExit(f"the service has ended: {unsound or last}")
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(LOOK_SECONDS)


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="service-", dir=options.folder) as directory:
        found = measure(options, Path(directory))
    document = {
        "bench": "pipeline_service",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "versions": {name: version(name) for name in ("pyspark", "deltalake", "pyarrow")},
            "load_average_before": load_before,
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
        },
        **found,
        "aims": {"p95_seconds": "at most 60 in every table, over half an hour at 500 entries/s"},
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
    parser.add_argument("--minutes", type=float, default=30.0, help="how long is written")
    parser.add_argument("--rate", type=int, default=500, help="entries a second")
    parser.add_argument("--entries", type=int, default=200_000, help="in the log before")
    parser.add_argument("--every", default="20s", help="of the service (default: %(default)s)")
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE of Spark")
    main(parser.parse_args())
