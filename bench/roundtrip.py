"""Publishes of a server whose PostgreSQL is a network away: how many, and their CPU.

The server is the real process, and so is PostgreSQL, fsync on; between them a proxy holds back what
is sent to the database for as long as a round trip is meant to take. Statements that wait for each
other show at once. Prints one JSON document; the time that the proxy really took stands in it.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from channels import CONFIG, Meter, publishes
from tidelog.testing.postgresql import create_database, throwaway_postgresql
from tidelog.testing.process import ServerProcess


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    """Pass on what comes, so much later."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            if seconds:
                loop.call_later(seconds, writer.write, data)
            else:
                writer.write(data)
    loop.call_later(seconds, writer.close)


async def _serve(told: Connection, target: int, round_trip_ms: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(
            _forward(reader, far_writer, round_trip_ms / 1000), _forward(far_reader, writer, 0)
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run(told: Connection, target: int, round_trip_ms: float) -> None:
    asyncio.run(_serve(told, target, round_trip_ms))


@contextmanager
def far_away(url: str, round_trip_ms: float) -> Iterator[str]:
    """The URL of the same database behind a proxy, which is a process of its own."""
    parts = urlsplit(url)
    context = multiprocessing.get_context("spawn")
    port, told = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(told, parts.port, round_trip_ms), daemon=True)
    process.start()
    try:
        near = parts.netloc.replace(f":{parts.port}", f":{port.recv()}")
        yield parts._replace(netloc=near).geturl()
    finally:
        process.terminate()
        process.join()


class DatabaseMeter:
    """CPU of all processes of the PostgreSQL server at a URL of this machine."""

    def __init__(self, url: str) -> None:
        self._postmaster = asyncio.run(_postmaster(url))

    def seconds(self) -> float:
        """Of those that run, and of those that have ended."""
        ticks = sum(_stat(self._postmaster)[11:15])
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with contextlib.suppress(OSError):
                    stat = _stat(int(process.name))
                    if stat[1] == self._postmaster:
                        ticks += sum(stat[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")


async def _postmaster(url: str) -> int:
    """The parent of every process that serves a connection."""
    connection = await asyncpg.connect(url)
    try:
        return _stat(await connection.fetchval("SELECT pg_backend_pid()"))[1]
    finally:
        await connection.close()


def _stat(pid: int) -> list[int]:
    """What the kernel says of a process, from its state on: parent at 1, times at 11 to 14."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [0, *map(int, fields[1:20])]


async def _took_ms(url: str) -> float:
    """What a statement takes that does nothing."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SELECT 1")
        started = time.perf_counter()
        for _ in range(100):
            await connection.execute("SELECT 1")
        return (time.perf_counter() - started) * 10
    finally:
        await connection.close()


def measured(url: str, home: Path, connections: int, each: int) -> dict[str, Any]:
    """Publishes of one server on a database of its own."""
    took = asyncio.run(_took_ms(url))
    database = DatabaseMeter(url)
    config = home / "tidelog.toml"
    config.write_text(CONFIG)
    with ServerProcess(
        data_dir=home / "data", store=url, arguments=("--config", str(config))
    ) as process:
        process.start()
        meter = Meter(process)
        asyncio.run(publishes(process.port, meter, connections, 5))  # channels and plans are there
        before = database.seconds()
        figures = asyncio.run(publishes(process.port, meter, connections, each))
        database_us = (database.seconds() - before) / (connections * each) * 1e6
        process.terminate()
    return {
        "statement_ms": round(took, 2),
        "database_cpu_us_each": round(database_us, 1),
        **figures,
    }


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    document: dict[str, Any] = {
        "bench": "roundtrip",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load_average_before": [round(load, 2) for load in os.getloadavg()],
        },
        "publishes": {},
    }
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-roundtrip-") as directory,
        throwaway_postgresql() as server,
    ):
        for round_trip_ms in options.round_trips_ms:
            home = Path(directory, f"{round_trip_ms:g}")
            home.mkdir()
            database = asyncio.run(create_database(server))
            with far_away(database, round_trip_ms) as url:
                figures = measured(url, home, options.connections, options.each)
            document["publishes"][f"{round_trip_ms:g} ms"] = figures
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--round-trips-ms", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--each", type=int, default=50, help="publishes of a connection")
    main(parser.parse_args())
