"""A long run at moderate load on every surface, with retention: what grows that must not?

One server on SQLite and two daemons, real processes; clients of all surfaces come, write, read and
go (`soak.load`). Every ten seconds memory, open files and the write-ahead log of each process are
sampled. Prints one JSON document: each quantity after the first sixth of the run and at its end,
and whether that is flat (`soak.samples` says what is). Ends with 1 if something grew or was lost.

Retention is on: versions of channels go after --window seconds, looked for every ten; the events of
sync are archived every minute. A mesh counts its retention in days, so that nothing of it goes
within hours: it is looked for every minute.

Example: scripts/soak --hours 1
"""

import argparse
import asyncio
import json
import os
import platform
import secrets
import signal
import sqlite3
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil

from soak.load import APP_ID, APP_KEY, APP_SECRET, MODEL, SECRET, Load
from soak.samples import FILES, MEMORY, WAL, Sample, trend, verdict
from support.mesh.daemon_process import DaemonProcess
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.testing.process import ServerProcess

SLUG, TOPIC = "soak", "soak"
SAMPLE_SECONDS = 10.0
ADMIN_TOKEN = "an-admin-token-for-the-soak"

CONFIG = """
[[apps]]
id = "{app_id}"
key = "{app_key}"
secret = "{app_secret}"

[sqlite]
page_cache_bytes = {page_cache}

[channels.versioned_messages]
retention_window_seconds = {window}
purge_interval_seconds = 10

[channels.history]
retention_seconds = {window}

[sync]
jwt_secret = "{secret}"
model_file = "{model}"

[mesh]
retention_interval_seconds = 60
"""

PAGE_CACHE_BYTES = 2 * 1024**2
"""Small, so that it is full before anything is compared: by default it grows with a young file for
days, up to its bound, and would hide whatever else grows."""

WATCHED = ("retention", "lag", "loop", "queue_depth")
"""Metrics with one of these in their names are sampled too."""


def call(server: ServerProcess, path: str, body: object, token: str, method: str = "POST") -> Any:
    """One request of somebody who prepares the mesh."""
    request = urllib.request.Request(
        server.url + path,
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def member(server: ServerProcess, name: str) -> MemberKey:
    """The key of a new member that follows the topic."""
    key = new_key()
    invite = call(server, f"/mesh/{SLUG}/invites", {}, ADMIN_TOKEN)["invite"]
    joining = {
        "invite": invite,
        "member_pubkey": key.public_hex,
        "name": name,
        "signature": key.sign_join(SLUG, invite, name),
    }
    call(server, f"/mesh/{SLUG}/members", joining, ADMIN_TOKEN)
    for method, path, body in (
        ("POST", "topics", {"topic": TOPIC}),
        ("PUT", f"topics/{TOPIC}/subscription", {}),
    ):
        token = key.token(SLUG, unix_now=time.time(), jti=secrets.token_hex(8))
        call(server, f"/mesh/{SLUG}/{path}", body, token, method)
    return key


class Sampler:
    """Looks at the processes and files of a run."""

    def __init__(self, server: ServerProcess, daemons: dict[str, DaemonProcess]) -> None:
        self._server = server
        pids = {"server": server.pid, **{name: each.pid for name, each in daemons.items()}}
        pids["load"] = os.getpid()
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._files = {"server": server.data_dir / "tidelog.db"}
        self._daemons = daemons
        self._began = time.monotonic()
        self.series: dict[str, list[Sample]] = defaultdict(list)

    def look(self, health_ms: list[float]) -> dict[str, float]:
        """Sample everything now."""
        at_s = round(time.monotonic() - self._began, 1)
        found: dict[str, float] = {}
        for name, process in self._processes.items():
            with process.oneshot():
                found[f"{name}.rss_bytes"] = process.memory_info().rss
                found[f"{name}.files"] = process.num_fds()
                times = process.cpu_times()
                found[f"{name}.cpu_seconds"] = round(times.user + times.system, 2)
        found["server.database_bytes"] = _size(self._files["server"])
        found["server.wal_bytes"] = _size(Path(f"{self._files['server']}-wal"))
        for name, daemon in self._daemons.items():
            files = sorted(daemon.data_dir.glob("*.db"))
            found[f"{name}.database_bytes"] = sum(_size(file) for file in files)
            found[f"{name}.wal_bytes"] = sum(_size(Path(f"{file}-wal")) for file in files)
        found |= self._metrics()
        if health_ms:
            found["healthz_highest_ms"] = round(max(health_ms), 2)
            health_ms.clear()
        for name, value in found.items():
            self.series[name].append(Sample(at_s, value))
        return {"at_s": at_s, **found}

    def _metrics(self) -> dict[str, float]:
        request = urllib.request.Request(
            f"{self._server.url}/metrics", headers={"authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            if not line.startswith("#") and "_bucket" not in name:
                plain = name.partition("{")[0]
                if any(word in plain for word in WATCHED) and not plain.endswith("_created"):
                    found[name] = float(value)
        return found


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


async def drive(
    load: Load, sampler: Sampler, seconds: float, places: tuple[Path, Path], samples: TextIO | None
) -> None:
    """Load and samples side by side."""

    async def look() -> None:
        while True:
            found = await asyncio.to_thread(sampler.look, load.health_ms)
            if samples is not None:
                print(json.dumps(found | {"failed": load.failed.total()}), file=samples, flush=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    looking = asyncio.create_task(look())
    try:
        await load.run(seconds, *places)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def judged(series: dict[str, list[Sample]]) -> dict[str, dict[str, Any]]:
    """What must be flat; the load's own process is only reported."""
    found = {}
    for name, samples in series.items():
        process, _, quantity = name.partition(".")
        tolerance = {"rss_bytes": MEMORY, "files": FILES, "wal_bytes": WAL}.get(quantity)
        if tolerance is not None and process != "load":
            found[name] = verdict(samples, tolerance)
    return found


def main(options: argparse.Namespace) -> int:
    """Run and print."""
    load_before = [round(load, 2) for load in os.getloadavg()]
    seconds = options.hours * 3600
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-soak-")))
        model = home / "model.json"
        model.write_text(json.dumps(MODEL))
        config = home / "tidelog.toml"
        config.write_text(
            CONFIG.format(
                app_id=APP_ID,
                app_key=APP_KEY,
                app_secret=APP_SECRET,
                secret=SECRET,
                model=model,
                window=options.window,
                page_cache=PAGE_CACHE_BYTES,
            )
        )
        server = stack.enter_context(
            ServerProcess(
                data_dir=home / "data",
                environment={"TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
                arguments=("--config", str(config)),
            )
        )
        server.start()
        days = {"message_retention_days": 1, "dedupe_retention_days": 7}
        call(server, "/mesh", {"slug": SLUG, **days}, ADMIN_TOKEN)
        daemons = {
            name: stack.enter_context(
                DaemonProcess(server.url, slug=SLUG, key=member(server, name))
            )
            for name in ("alice", "bob")
        }
        for daemon in daemons.values():
            daemon.start()
        sampler = Sampler(server, daemons)
        load = Load(server.url, ADMIN_TOKEN, home, options.pace)
        samples = stack.enter_context(options.samples.open("w")) if options.samples else None
        places = (daemons["alice"].data_dir, daemons["bob"].data_dir)
        asyncio.run(drive(load, sampler, seconds, places, samples))
        ends = {name: all_[-1].value for name, all_ in sampler.series.items()}
        logged = server.log_text().splitlines()
        warnings = [line for line in logged if " warning " in line or " error " in line]
    found = judged(sampler.series)
    others = {
        name: trend(all_)
        for name, all_ in sampler.series.items()
        if name not in found and not name.endswith("cpu_seconds") and len(all_) >= 8
    }
    grew = [name for name, one in found.items() if not one["is_flat"]]
    document = {
        "soak": "hours",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "hours": options.hours,
            "pace": options.pace,
            "channels_retention_window_seconds": options.window,
            "sqlite_page_cache_bytes": PAGE_CACHE_BYTES,
            "nice": os.nice(0),
            "load_average_before": load_before,
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
        },
        "done": dict(load.done),
        "failed": dict(load.failed),
        "failures": load.failures,
        "lost": dict(load.lost),
        "cpu_share_of_one_core": {
            name.partition(".")[0]: round(value / seconds, 3)
            for name, value in ends.items()
            if name.endswith("cpu_seconds")
        },
        "server_warnings": {"count": len(warnings), "last": warnings[-5:]},
        "tolerances": {
            name: tolerance._asdict()
            for name, tolerance in (("rss_bytes", MEMORY), ("files", FILES), ("wal_bytes", WAL))
        },
        "flat": found,
        "not_judged": others,
        "grew": grew,
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 1 if grew or load.lost.total() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=1.0, help="how long (0.05 for a look)")
    parser.add_argument("--pace", type=float, default=1.0, help="times the usual rates")
    parser.add_argument(
        "--window", type=int, default=300, help="seconds that versions of channels are kept"
    )
    parser.add_argument("--samples", type=Path, help="a file for every sample, as JSON lines")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and no process stays
    sys.exit(main(parser.parse_args()))
