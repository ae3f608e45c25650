"""The mesh: accepts a second beside NATS JetStream, IPC latency, and the way into an inbox.

The brokers are real processes: `tidelog serve` on SQLite at synchronous=FULL, and `nats-server`
with one file stream, `sync_interval: always` and `Nats-Msg-Id`. Both get the same payload from the
same number of senders, each of which waits for its acknowledgement; they take turns, and every
figure is the median of --repeats rounds. This process is the generator: raw sockets for ours,
`nats-py` for NATS. Prints one JSON document.

  accepts   256 senders on 8 connections, as eight daemons with 32 rows under way, and on 256.
            Nobody receives: no subscriber but the sender here, no consumer there. What our
            broker's CPU was for is in `cpu_us_by_part` (`by_part.py`).
  daemons   two daemons and the broker: one caller's `POST /v1/send` until it is answered, which is
            when the row is on the disk; and until the message is in the other daemon's inbox.

Example: python bench/mesh.py --repeats 5
"""

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from mesh_parts.accepts import (
    PAYLOAD_BYTES,
    NatsSenders,
    Senders,
    Shape,
    TidelogSenders,
    measure_accepts,
)
from mesh_parts.brokers import Nats, Tidelog
from mesh_parts.daemons import measure_daemons
from tidelog.testing.postgresql import create_database, throwaway_postgresql

SHAPES = (Shape(8, 32), Shape(256, 1))
AIM_IPC_P50_MS = 2.0
AIMS_OVER_NATS = {"8_connections_of_32": 3.2, "256_connections_of_1": 1.8}


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Everything, on SQLite and beside NATS; on PostgreSQL too if wanted."""
    with ExitStack() as stack:
        ours = stack.enter_context(Tidelog(home / "sqlite"))
        brokers: dict[str, Senders] = {"tidelog": TidelogSenders(ours)}
        theirs = None if options.alone else stack.enter_context(Nats(home / "nats"))
        if theirs is not None:
            brokers["nats"] = NatsSenders(theirs)
        if options.postgresql:
            url = stack.enter_context(throwaway_postgresql())
            store = asyncio.run(create_database(url))
            server = stack.enter_context(Tidelog(home / "postgresql", store))
            brokers["tidelog_postgresql"] = TidelogSenders(server)
        accepts = uvloop.run(measure_accepts(brokers, SHAPES, options.repeats, options.messages))
        if theirs is None:
            return {"accepts": accepts}
        for found in accepts.values():
            ratio = found["tidelog"]["accepts_per_s"] / found["nats"]["accepts_per_s"]
            found["tidelog_over_nats"] = round(ratio, 2)
        conditions = theirs.conditions()
        daemons = measure_daemons(ours, options.sends)
    return {"nats_conditions": conditions, "accepts": accepts, "daemons": daemons}


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-mesh-") as directory:
        found = measure(options, Path(directory))
    document = {
        "bench": "mesh",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "synchronous": "FULL",
            "versions": {name: version(name) for name in ("nats-py", "uvloop", "msgspec")},
            **found.pop("nats_conditions", {}),
            "payload_bytes": PAYLOAD_BYTES,
            "repeats": options.repeats,
            "accepts_each_round": options.messages,
            "lifted_limits": ["rate_limit of the mesh", "ipc.rate_per_second", "ipc.rate_burst"],
            "load_average_before": load_before,
            "seconds": round(time.perf_counter() - began, 1),
        },
        **found,
        "aims": {"tidelog_over_nats": AIMS_OVER_NATS, "ipc_accept_p50_ms": AIM_IPC_P50_MS},
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--messages", type=int, default=8192, help="accepts of one round")
    parser.add_argument("--sends", type=int, default=1000, help="sends of each daemon measurement")
    parser.add_argument("--quick", action="store_true", help="small counts, one round")
    parser.add_argument("--postgresql", action="store_true", help="accepts on PostgreSQL too")
    parser.add_argument("--alone", action="store_true", help="accepts only, and without NATS")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.messages, arguments.sends = 1, 2048, 200
    main(arguments)
