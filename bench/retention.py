"""How fast old versions go: retention of channels, beside nothing else and beside publishes.

Alone: messages of one version and of many, over some channels, all of them too old. Prints for each
engine how many versions a second of wall time and of processor time are removed, and the longest
time for which the event loop was held.

Beside publishes: the real process with its SQLite log takes as many as it can, each too old after a
second. Prints how many it took and removed, the most that retention lagged, and what both cost.
Prints one JSON document.

Example: python bench/retention.py --versions 20000 --engines sqlite
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import sqlite3
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from channels import (
    APP_ID,
    KEY,
    SECRET,
    append_bytes,
    cpu_seconds,
    create_messages,
    run_senders,
    signed,
)
from size_parts.store import CONFIG
from tidelog.channels.settings import AiTransport, App, Channels, VersionedMessages
from tidelog.channels.surface import ChannelsSurface
from tidelog.config.settings import Settings
from tidelog.serve.server import Node
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database, throwaway_postgresql
from tidelog.testing.process import CREDENTIALS, ServerProcess
from tidelog.testing.server import running_server

CHANNELS = 64
WINDOW_SECONDS = 3600
TEXT = "x" * 200


def settings() -> Settings:
    """Old after an hour; nothing is looked for before the bench says so."""
    return Settings(
        apps=[App(id=APP_ID, key=KEY, secret=SECRET)],
        channels=Channels(
            versioned_messages=VersionedMessages(
                enabled=True, retention_window_seconds=WINDOW_SECONDS, purge_interval_seconds=86_400
            ),
            ai_transport=AiTransport(max_appends_per_message=1_000_000),
        ),
    )


def creates(versions: int) -> list[list[bytes]]:
    """Requests that publish ten messages each, by connection."""
    path = f"/apps/{APP_ID}/batch_events"

    def requests(channel: int) -> Iterator[bytes]:
        for _ in range(versions // CHANNELS // 10):
            event = {"name": "m", "channel": f"room-{channel}", "data": TEXT}
            yield signed(path, json.dumps({"batch": [event] * 10}).encode())

    return [list(requests(channel)) for channel in range(CHANNELS)]


async def fill(port: int, versions: int, *, each: int) -> None:
    """Messages of `each` versions; returns when they are committed."""
    if each == 1:
        await run_senders(port, creates(versions))
        return
    for _ in range(versions // each // CHANNELS):
        channels = [f"room-{n}" for n in range(CHANNELS)]
        serials = await create_messages(port, channels)
        work = [
            [append_bytes(channel, serial, TEXT) for _ in range(each - 1)]
            for channel, serial in zip(channels, serials, strict=True)
        ]
        await run_senders(port, work)


class Held:
    """The longest time between two turns of the loop."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            self.seconds = max(self.seconds, time.perf_counter() - before)
            await asyncio.sleep(0.001)

    def stop(self) -> float:
        """Milliseconds."""
        self._task.cancel()
        return self.seconds * 1000


async def measured(store: str, home: Path, versions: int, *, each: int) -> dict[str, Any]:
    """What one tick takes that finds nothing but old versions."""
    clock = FakeClock()
    mounted: list[ChannelsSurface] = []

    async def mount(node: Node) -> ChannelsSurface:
        surface = await ChannelsSurface.open(node.committer, node.store, node.settings, node.clock)
        mounted.append(surface)
        return surface

    clock.set(int(time.time() * 1000))
    async with running_server(
        home, store=store, settings=settings(), mounts=(mount,), extensions=(), clock=clock
    ) as server:
        await fill(int(server.url.rsplit(":", 1)[1]), versions, each=each)
        clock.advance(2 * WINDOW_SECONDS * 1000)
        held = Held()
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        purged = await mounted[0].owner.retention.tick()
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {
        "versions_per_message": each,
        "versions": purged,
        "per_second": round(purged / took),
        "per_cpu_second": round(purged / cpu),
        "loop_held_ms": round(held.stop(), 1),
    }


async def scraped(url: str) -> dict[str, float]:
    """Removed versions and the lag, as the server shows them."""

    def ask() -> str:
        token = CREDENTIALS["TIDELOG_ADMIN_TOKEN"]
        request = urllib.request.Request(
            f"{url}/metrics", headers={"authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    samples = (
        sample
        for family in text_string_to_metric_families(await asyncio.to_thread(ask))
        for sample in family.samples
    )
    return {s.name: s.value for s in samples if s.labels.get("surface") == "channels"}


async def beside_publishes(url: str, pid: int, versions: int) -> dict[str, Any]:
    """Publish, and look at the lag until the last version is gone."""
    began, used, most = time.perf_counter(), cpu_seconds(pid), 0.0
    publishing = asyncio.create_task(run_senders(int(url.rsplit(":", 1)[1]), creates(versions)))
    removed = 0.0
    while removed < versions:
        await asyncio.sleep(0.5)
        seen = await scraped(url)
        removed = seen.get("tidelog_retention_removed_total", 0.0)
        most = max(most, seen["tidelog_retention_lag_seconds"])
        if publishing.done():
            await publishing
    seconds, _ = await publishing
    return {
        "published_per_second": round(versions / seconds),
        "removed_per_second": round(versions / (time.perf_counter() - began)),
        "most_lag_seconds": round(most, 1),
        "server_cpu_us_each": round((cpu_seconds(pid) - used) / versions * 1e6),
    }


def live(versions: int) -> dict[str, Any]:
    """A server of its own that publishes and removes at the same time."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-retention-") as directory:
        config = Path(directory, "tidelog.toml")
        config.write_text(CONFIG)
        with ServerProcess(
            data_dir=Path(directory, "data"), arguments=("--config", str(config))
        ) as process:
            process.start()
            figures = asyncio.run(beside_publishes(process.url, process.pid, versions))
            process.terminate()
    return figures


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    document: dict[str, Any] = {
        "bench": "retention",
        "conditions": {
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "load_average_before": [round(load, 2) for load in os.getloadavg()],
        },
        "figures": {},
    }
    for engine in options.engines:
        figures = document["figures"][engine] = []
        with throwaway_postgresql() if engine == "postgresql" else nullcontext("") as server:
            for each in options.each:
                with tempfile.TemporaryDirectory(prefix="tidelog-bench-retention-") as directory:
                    store = asyncio.run(create_database(server)) if server else ""
                    run = measured(store, Path(directory), options.versions, each=each)
                    figures.append(asyncio.run(run))
    versions = options.versions // CHANNELS // 10 * CHANNELS * 10
    document["beside_publishes"] = live(2 * versions)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", type=int, default=20_000)
    parser.add_argument("--each", type=int, nargs="+", default=[1, 20], help="of a message")
    parser.add_argument("--engines", nargs="+", default=["sqlite", "postgresql"])
    main(parser.parse_args())
