"""Sync from submit to broadcast, catching up, cold starts and tree moves, beside npm's insieme.

The servers are real processes: `tidelog serve` on SQLite at synchronous=FULL (and on PostgreSQL
with --postgresql) and, when Node is there, insieme 2.1.0 with its SQLite store at the same setting.
The generator is this process: raw sockets, frames encoded and masked beforehand, answers counted
and not decoded. Prints one JSON document; every figure is the median of --repeats rounds.

  submit      64 submitters, 50 peers of the same partition, events of 200 bytes. `window_1` has one
              event in flight over all connections; `window_256` four submits of one event on each;
              `window_256_batched` one submit of four events on each. Submitters get no broadcasts:
              ours do not subscribe, insieme's are held in an unfinished sync. What our server's
              CPU was for is in `cpu_us_by_part` (`by_part.py`).
  catch_up    pages of 1000 over one partition, to a client that only counts.
  cold_start  first submit to a tree partition after a start, without and with a snapshot.
  tree_move   check and apply of one treeMove, in this process.

insieme is installed once with npm into --insieme-dir (its SQLite driver may compile for minutes).

Example: python bench/sync.py --repeats 3 --postgresql
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sync_parts.insieme import insieme_server, install_insieme
from sync_parts.logs import Place, measure_log
from sync_parts.moves import measure_moves
from sync_parts.submit import PEERS, SUBMITTERS, Crowd, measure_submits
from sync_parts.wire import EVENT_BYTES, Insieme, Tidelog
from tidelog.sync.protocol.profiles import CANONICAL
from tidelog.testing.postgresql import create_database, throwaway_postgresql


def measure_engine(
    options: argparse.Namespace, home: Path, store: str | None, insieme_dir: Path | None
) -> dict[str, Any]:
    """All that depends on the engine; insieme beside it if a directory is given."""
    document: dict[str, Any] = {}
    with ExitStack() as stack:
        place = Place(home / "submit", store)
        crowds = {}
        process = stack.enter_context(place.server())
        crowds["tidelog"] = Crowd(Tidelog(), process.port, process.pid, process)
        stack.callback(crowds["tidelog"].close)
        if insieme_dir is not None:
            started = stack.enter_context(insieme_server(insieme_dir, home / "insieme.db"))
            port = started[0].pop("port")
            document["insieme_conditions"] = started[0]
            crowds["insieme"] = Crowd(Insieme(), port, started[1])
            stack.callback(crowds["insieme"].close)
        measured = measure_submits(crowds, options.repeats, options.events, options.seconds)
    document["submit"] = measured
    return document


def insieme_or_reason(options: argparse.Namespace) -> Path | str:
    """Where insieme is installed, or why it is not."""
    if options.no_insieme:
        return "switched off with --no-insieme"
    if shutil.which("node") is None:
        return "Node is not installed"
    try:
        install_insieme(options.insieme_dir)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    found: Path = options.insieme_dir
    return found


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    document: dict[str, Any] = {
        "bench": "sync",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "synchronous": "FULL",
            "versions": {name: version(name) for name in ("uvloop", "msgspec")},
            "submitters": SUBMITTERS,
            "peers": PEERS,
            "event_bytes": EVENT_BYTES,
            "profile": CANONICAL,
            "repeats": options.repeats,
            "round_at_most": {"events": options.events, "seconds": options.seconds},
            "lifted_limits": ["max_messages_per_second", "send_buffer_messages"],
            "load_average_before": load_before,
        },
    }
    began = time.perf_counter()
    insieme = insieme_or_reason(options)
    installing = time.perf_counter() - began
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-sync-") as directory:
        home = Path(directory)
        beside = insieme if isinstance(insieme, Path) else None
        found = measure_engine(options, home / "sqlite", None, beside)
        ours, theirs = found["submit"]["tidelog"], found["submit"].get("insieme")
        document["sqlite"] = {"submit": ours}
        if not options.submits_only:
            caught_up, cold = measure_log(Place(home / "log", None), options.log, options.repeats)
            document["sqlite"] |= {"catch_up": caught_up, "cold_start": cold}
            document["tree_move"] = measure_moves(options.repeats)
        if theirs is None:
            document["insieme"] = {"unavailable": str(insieme)}
        else:
            document["insieme"] = {
                "conditions": {"insieme": "2.1.0", **found["insieme_conditions"]},
                "submit": theirs,
                "tidelog_over_insieme_events_per_s": {
                    name: round(ours[name]["events_per_s"] / theirs[name]["events_per_s"], 2)
                    for name in ours
                },
                "aims": {"window_1": 1.5, "window_256": 14},
            }
        if options.postgresql:
            with throwaway_postgresql() as url:
                store = asyncio.run(create_database(url))
                found = measure_engine(options, home / "postgresql", store, None)
                document["postgresql"] = {"submit": found["submit"]["tidelog"]}
                if not options.submits_only:
                    place = Place(home / "pglog", asyncio.run(create_database(url)))
                    caught_up, cold = measure_log(place, options.log, options.repeats)
                    document["postgresql"] |= {"catch_up": caught_up, "cold_start": cold}
    document["conditions"]["seconds"] = round(time.perf_counter() - began - installing, 1)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--events", type=int, default=16_000, help="most events of one round")
    parser.add_argument("--seconds", type=float, default=2.0, help="longest submitting of a round")
    parser.add_argument("--log", type=int, default=100_000, help="events to catch up with")
    parser.add_argument("--quick", action="store_true", help="small counts, one round: < 40 s")
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL too")
    parser.add_argument("--submits-only", action="store_true", help="nothing but `submit`")
    parser.add_argument("--no-insieme", action="store_true", help="tidelog alone")
    parser.add_argument("--insieme-dir", type=Path, default=cache / "tidelog-bench" / "insieme")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.seconds, arguments.log = 1, 1.0, 20_000
    main(arguments)
    sys.exit(0)
