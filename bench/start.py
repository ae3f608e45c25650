"""How long `tidelog serve` takes until `/healthz` is ready, on the wall and in CPU.

The real command with SQLite, from the start of its process to the first ready answer: on a new data
directory, whose store is migrated then, and on one that is up to date. Bytecode is there already.
Prints one JSON document; every figure is the median of --rounds.

Example: python bench/start.py --rounds 9
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tidelog.testing.process import ServerProcess

AIM_CPU_SECONDS = 0.3


def cpu_seconds(pid: int) -> float:
    """What the threads of a process have used, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def started(data_dir: Path) -> tuple[float, float]:
    """Seconds on the wall and of CPU of one start."""
    with ServerProcess(data_dir=data_dir) as server:
        began = time.perf_counter()
        server.start()
        urllib.request.urlopen(f"{server.url}/healthz", timeout=20).close()  # raises unless ready
        seconds = time.perf_counter() - began, cpu_seconds(server.pid)
        server.terminate()
    return seconds


def figures(rounds: list[tuple[float, float]]) -> dict[str, Any]:
    """What the rounds say together."""
    cpu = [used for _, used in rounds]
    return {
        "wall_seconds": round(statistics.median(wall for wall, _ in rounds), 3),
        "cpu_seconds": round(statistics.median(cpu), 3),
        "server_cpu_us_each": round(statistics.median(cpu) * 1e6),
        "cpu_seconds_rounds": [round(used, 3) for used in cpu],
    }


def main(rounds: int) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    new, known = [], []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-start-") as directory:
        started(Path(directory, "first"))  # writes the bytecode
        for number in range(rounds):
            new.append(started(Path(directory, str(number))))
            known.append(started(Path(directory, "first")))
    document = {
        "bench": "start",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "rounds": rounds,
            "load_average_before": load_before,
        },
        "new_data_directory": figures(new),
        "up_to_date_data_directory": figures(known),
        "aim_cpu_seconds": AIM_CPU_SECONDS,
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    main(parser.parse_args().rounds)
