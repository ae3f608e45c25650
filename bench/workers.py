"""A server of several processes: what its owner and its fronts cost, beside one process.

Every server is real, with its SQLite log at synchronous=FULL, and gets the same loads from the
generators of the other benches, which are in this process. CPU is what the kernel says of each
process (`/proc/PID/stat`); the machine's other work is not in it. Prints one JSON document.

  link        CPU of each side of a link for a question, its answer and the entry it appended;
              nothing is decided or stored. `direct` is the same in one process, without a link.
  surfaces    appends of 64 connections, token streams of 5 subscribers, sync events of 64
              submitters with 50 peers, mesh accepts of 8 connections of 32: on one process, on one
              whose halves only share bytes (`apart`), and on an owner with fronts.
  delivery    an append at one front until its subscriber at another has it; nothing else under way.
  kill        from SIGKILL of the owner until a publish is accepted, and until every one of many
              sockets, all of which come back at once, is subscribed again.

Example: python bench/workers.py --fronts 4
"""

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidelog.link.choice import VARIABLE
from tidelog.testing.scratch import memory_directory
from workers_parts.link import measure_link
from workers_parts.surfaces import Load, measure_surfaces
from workers_parts.times import measure_comeback, measure_delivery, measure_kills

AIMS = {
    "link_us_each_side": 6,
    "owner_us": {"append": 60, "sync_event": 40, "mesh_accept": 60},
    "all_processes_over_one": 1.3,
    "delivery_p50_ms": 3,
    "kill_median_s": 2,
}


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Every part that is wanted."""
    load = Load(options.appends, options.events, options.accepts)
    document: dict[str, Any] = {}

    def said(part: str) -> bool:
        if part in options.only:
            print(f"workers: {part}", file=sys.stderr)
        return part in options.only

    if said("link"):
        document["link"] = measure_link(options.requests)
    if said("surfaces"):
        one = measure_surfaces(home / "one", 0, load)
        apart = measure_surfaces(home / "apart", 0, load, **{VARIABLE: "apart"})
        many = measure_surfaces(home / "many", options.fronts, load)
        document["surfaces"] = {
            "one_process": one,
            "apart": apart,
            f"{options.fronts}_fronts": many,
            "all_processes_over_one": {
                name: round(many[name]["all_cpu_us_each"] / one[name]["all_cpu_us_each"], 3)
                for name in one
            },
        }
    if said("delivery"):
        document["delivery"] = {
            "one_process": measure_delivery(home / "delivery_one", 0, options.deliveries),
            "another_front": measure_delivery(
                home / "delivery_many", options.fronts, options.deliveries
            ),
        }
    if said("kill"):
        document["kill"] = {
            **measure_kills(home / "kill", options.fronts, options.kills),
            "comeback": measure_comeback(home / "comeback", options.fronts, options.sockets),
        }
    return document


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    began = time.perf_counter()
    folder = memory_directory() if options.in_memory else None
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-workers-", dir=folder) as directory:
        found = measure(options, Path(directory))
    document = {
        "bench": "workers",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "synchronous": "FULL",
            "files": "memory" if options.in_memory else "disk",
            "versions": {name: version(name) for name in ("uvloop", "msgspec")},
            "fronts": options.fronts,
            "load_average_before": load_before,
            "seconds": round(time.perf_counter() - began, 1),
        },
        **found,
        "aims": AIMS,
    }
    print(json.dumps(document, indent=2))


PARTS = ("link", "surfaces", "delivery", "kill")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fronts", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--requests", type=int, default=100_000, help="over the link")
    parser.add_argument("--appends", type=int, default=32_000)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--accepts", type=int, default=16_384)
    parser.add_argument("--deliveries", type=int, default=300)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--sockets", type=int, default=2000, help="that come back after a kill")
    parser.add_argument(
        "--in-memory", action="store_true", help="files where no disk is waited for"
    )
    parser.add_argument("--quick", action="store_true", help="small counts")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.appends, arguments.events = 20_000, 6_400, 4_000
        arguments.accepts, arguments.deliveries, arguments.kills = 4096, 100, 2
        arguments.sockets = 200
    main(arguments)
