"""What one client feels while others flood: p99 of every surface, alone and beside each flood.

One real server on SQLite, two daemons, one well-behaved client for each surface in this process.
Phases without and with a flood take turns, so that a noisy machine hurts both; a figure is over all
phases of its kind, and `ratio` is p99 beside the flood over p99 alone, from the same minute. Prints
one JSON document; `at_most` is what every ratio is meant to keep to. `p99_ms_by_round` and
`ratio_of_medians` beside it tell a flood, which hurts in every round, from a disk that stood still
in one of them; they are judged by nothing.

  channels   a signed publish over HTTP until a subscriber has it on its WebSocket
  sync       a submit until its result
  mesh       a send to a daemon until it is in another daemon's inbox
  healthz    one request

Nothing that was acknowledged may be missing, doubled or out of order (`lost`), and the memory of
the server is compared before and at its highest. The floods (`neighbour_parts.floods`) are
processes of a lower priority, each of which keeps to a quarter of one core; `only_cpu` makes no
request at all and shows what that alone does to the machine.

Example: python bench/neighbour.py --only large_history
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from neighbour_parts.clients import Paced, clients
from neighbour_parts.floods import CPU_SHARE, FLOODS, NICE
from neighbour_parts.place import Place, Reach

AT_MOST = 3.0
MEMORY_AT_MOST_MB = 256
"""Of growth beside a flood: the bounds of what one client may make the server hold, together."""
SAMPLE_SECONDS = 0.1
WARM_UP_SECONDS = 2.0
SETTLE_SECONDS = 1.0
"""Between two phases: what the flood left on its way is answered, and is nobody's figure."""

Latencies = dict[str, list[list[float]]]
"""Of each surface, phase by phase."""


class Flooding:
    """The processes of one flood."""

    def __init__(self, name: str, reach: Reach) -> None:
        _, number = FLOODS[name]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "neighbour_parts.floods", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parent,
                text=True,
            )
            for _ in range(number)
        ]
        self.answers: Counter[str] = Counter()
        self.seconds = self.cpu_s = 0.0
        for process in self._processes:
            self._tell(process, msgspec.json.encode(reach).decode())
            self._hear(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def go(self) -> None:
        """Begin."""
        for process in self._processes:
            self._tell(process, "go")

    def stop(self) -> None:
        """End, and take down what it did."""
        for process in self._processes:
            self._tell(process, "stop")
        for process in self._processes:
            told = json.loads(self._hear(process))
            self.answers.update(told["answers"])
            self.cpu_s += told["cpu_s"]
            self.seconds += told["seconds"] / len(self._processes)

    def _tell(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def _hear(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the flood ended")
        return line


class Watched:
    """The server as the system sees it, sampled beside everything else."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._is_over = threading.Event()
        self.highest_rss = self.rss()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def rss(self) -> int:
        """Bytes now."""
        return int(self._process.memory_info().rss)

    def cpu_s(self) -> float:
        """User and system time so far."""
        times = self._process.cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            self.highest_rss = max(self.highest_rss, self.rss())


@contextmanager
def watched(pid: int) -> Iterator[Watched]:
    """Sampled while the block lasts."""
    looking = Watched(pid)
    try:
        yield looking
    finally:
        looking.stop()


async def phase(paced: dict[str, Paced], seconds: float, into: Latencies) -> None:
    """All clients for so long."""
    taken = await asyncio.gather(*(one.run(seconds) for one in paced.values()))
    for name, latencies in zip(paced, taken, strict=True):
        into[name].append(latencies)


def quantiles(phases: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Over all phases, and p99 of each; in milliseconds."""
    everything = [latency for one in phases for latency in one]
    return {
        "count": len(everything),
        "p50_ms": quantile(everything, 50),
        "p99_ms": quantile(everything, 99),
        "p99_ms_by_round": [quantile(one, 99) for one in phases],
    }


def quantile(seconds: Sequence[float], percent: int) -> float:
    """In milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return round(cuts[percent - 1] * 1000, 2)


async def beside(
    name: str, place: Place, paced: dict[str, Paced], options: argparse.Namespace
) -> dict[str, Any]:
    """One flood."""
    alone: Latencies = defaultdict(list)
    flooded: Latencies = defaultdict(list)
    with (
        await asyncio.to_thread(Flooding, name, place.reach()) as flooding,
        watched(place.server.pid) as server,
    ):
        before, flooded_cpu_s = server.rss(), 0.0
        for _ in range(options.rounds):
            await phase(paced, options.seconds, alone)
            flooding.go()
            cpu_s = server.cpu_s()
            await phase(paced, options.seconds, flooded)
            flooded_cpu_s += server.cpu_s() - cpu_s
            await asyncio.to_thread(flooding.stop)
            await asyncio.sleep(SETTLE_SECONDS)
        highest = server.highest_rss
    without = {surface: quantiles(phases) for surface, phases in alone.items()}
    beside_it = {surface: quantiles(phases) for surface, phases in flooded.items()}
    return {
        "ratio": {
            surface: round(beside_it[surface]["p99_ms"] / without[surface]["p99_ms"], 2)
            for surface in paced
        },
        "ratio_of_medians": {
            surface: round(
                statistics.median(beside_it[surface]["p99_ms_by_round"])
                / statistics.median(without[surface]["p99_ms_by_round"]),
                2,
            )
            for surface in paced
        },
        "alone": without,
        "flooded": beside_it,
        "failed": {surface: told for surface, one in paced.items() if (told := one.failures())},
        "lost": {surface: await one.client.lost() for surface, one in paced.items()},
        "flood": {
            "processes": FLOODS[name][1],
            "cpu_share": round(flooding.cpu_s / flooding.seconds, 3),
            "a_second": {
                answer: round(number / flooding.seconds, 1)
                for answer, number in flooding.answers.items()
            },
        },
        "server": {
            "cpu_share": round(flooded_cpu_s / flooding.seconds, 3),
            "rss_before_mb": round(before / 1e6, 1),
            "rss_highest_mb": round(highest / 1e6, 1),
        },
    }


async def measure(place: Place, home: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every flood that is wanted, one after the other."""
    results = {}
    async with clients(place, home) as found:
        paced = {surface: Paced(client) for surface, client in found.items()}
        await phase(paced, WARM_UP_SECONDS, defaultdict(list))
        for name in FLOODS:
            if options.only in name:
                print(f"neighbour: {name}", file=sys.stderr, flush=True)
                if name == "https_webhooks":
                    await asyncio.to_thread(place.add_webhooks)
                results[name] = await beside(name, place, paced, options)
                print(f"neighbour: {results[name]['ratio']}", file=sys.stderr, flush=True)
    return results


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    began = time.perf_counter()
    with ExitStack() as stack:
        home = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-bench-neighbour-"))
        )
        place = stack.enter_context(Place(home, options.messages))
        floods = asyncio.run(measure(place, home, options))
    worst = {name: max(found["ratio"].values()) for name, found in floods.items()}
    document = {
        "bench": "neighbour",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "synchronous": "FULL",
            "rounds": options.rounds,
            "seconds_of_a_phase": options.seconds,
            "messages_of_the_large_channel": options.messages,
            "nice": os.nice(0),
            "flood_nice": NICE,
            "flood_cpu_share_of_a_process": CPU_SHARE,
            "load_average_before": load_before,
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
            "seconds": round(time.perf_counter() - began, 1),
        },
        "floods": floods,
        "worst_ratio": worst,
        "over": [name for name, ratio in worst.items() if ratio > AT_MOST and name != "only_cpu"],
        "lost": sum(sum(found["lost"].values()) for found in floods.values()),
        "aims": {"ratio_at_most": AT_MOST, "lost": 0, "rss_growth_at_most_mb": MEMORY_AT_MOST_MB},
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="FLOOD",
        help=f"only floods whose name contains this, of {', '.join(FLOODS)}",
    )
    parser.add_argument("--rounds", type=int, default=6, help="phases of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    parser.add_argument("--messages", type=int, default=300_000, help="of the large channel")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a smaller channel")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.messages = 2, 3.0, 20_000
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and no process stays
    main(arguments)
