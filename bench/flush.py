"""What `channels.flush_ms` saves and delays at a moderate rate: publishes to 50 subscribers.

A real server for each value, with its SQLite log, fsync on; they take turns, each --seconds long.
Publishes come when chance has them, the same for all, so many a second in the mean that few fall
into one turn of the loop. CPU is that of the server's process for one publish; a delay is from
writing the request until a subscriber has read the frame (the first, the middle and the last that
subscribed). Every figure is the median of --rounds. Prints one JSON document.

Example: python bench/flush.py --rounds 5
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from channels import CONFIG, Meter, paced
from tidelog.testing.process import ServerProcess


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What the rounds of one value say together."""
    assert all(each["delivered"] == each["expected"] for each in rounds), rounds

    def middle(values: list[float]) -> float:
        return round(statistics.median(values), 2)

    return {
        "server_cpu_us_each": middle([each["server_cpu_us_each"] for each in rounds]),
        "p50_ms": middle([each["request_to_delivery"]["p50_ms"] for each in rounds]),
        "p99_ms": middle([each["request_to_delivery"]["p99_ms"] for each in rounds]),
        "server_cpu_us_each_rounds": [each["server_cpu_us_each"] for each in rounds],
        "p99_ms_rounds": [each["request_to_delivery"]["p99_ms"] for each in rounds],
        "generator_cpu_share": middle([each["generator_cpu_share"] for each in rounds]),
    }


async def measure(options: argparse.Namespace, home: Path) -> dict[int, list[dict[str, Any]]]:
    """The rounds of each value."""
    found: dict[int, list[dict[str, Any]]] = {value: [] for value in options.flush_ms}
    with ExitStack() as stack:
        servers = {}
        for value in options.flush_ms:
            config = home / f"flush_{value}.toml"
            config.write_text(f"channels.flush_ms = {value}\n{CONFIG}")
            servers[value] = stack.enter_context(
                ServerProcess(data_dir=home / str(value), arguments=("--config", str(config)))
            )
            servers[value].start()
            await paced(servers[value].port, Meter(servers[value]), options.rate, 0.5, 5)
        for turn in range(options.rounds):
            for value in sorted(servers, reverse=turn % 2 == 1):  # neither is always the first
                server = servers[value]
                seconds, to = options.seconds, options.subscribers
                one = await paced(server.port, Meter(server), options.rate, seconds, to)
                found[value].append(one)
    return found


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-flush-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measure(options, Path(directory)))
    figures = {value: median(rounds) for value, rounds in found.items()}
    base = figures[options.flush_ms[0]]["server_cpu_us_each"]
    document = {
        "bench": "flush",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "store": "sqlite, synchronous=FULL",
            "publishes_per_second": options.rate,
            "subscribers": options.subscribers,
            "rounds": options.rounds,
            "seconds_of_a_round": options.seconds,
            "load_average_before": load_before,
            "seconds": round(time.perf_counter() - began, 1),
        },
        "flush_ms": {str(value): figure for value, figure in figures.items()},
        "cpu_over_first": {
            str(value): round(figure["server_cpu_us_each"] / base, 3)
            for value, figure in figures.items()
        },
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush-ms", type=int, nargs="+", default=[0, 1], help="the values")
    parser.add_argument("--rate", type=int, default=500, help="publishes a second")
    parser.add_argument("--subscribers", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5, help="of each value; the median counts")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a round")
    main(parser.parse_args())
