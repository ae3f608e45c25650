"""How fast old versions go: retention of channels, on both engines, beside nothing else.

Messages of one version and of many, over some channels, all of them too old. Prints for each how
many versions a second of wall time and of processor time are removed, and the longest time for
which the event loop was held. Prints one JSON document.

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
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from channels import APP_ID, KEY, SECRET, append_bytes, create_messages, run_senders, signed
from tidelog.base.channels_settings import AiTransport, App, Channels, VersionedMessages
from tidelog.base.settings import Settings
from tidelog.channels.surface import ChannelsSurface
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database, throwaway_postgresql
from tidelog.testing.server import running_server
from tidelog.web.server import Node

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
        purged = await mounted[0].service.retention.tick()
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {
        "versions_per_message": each,
        "versions": purged,
        "per_second": round(purged / took),
        "per_cpu_second": round(purged / cpu),
        "loop_held_ms": round(held.stop(), 1),
    }


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
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", type=int, default=20_000)
    parser.add_argument("--each", type=int, nargs="+", default=[1, 20], help="of a message")
    parser.add_argument("--engines", nargs="+", default=["sqlite", "postgresql"])
    main(parser.parse_args())
