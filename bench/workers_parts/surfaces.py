"""What operations of each surface cost an owner and its fronts, by the other benches' loads."""

from pathlib import Path
from typing import Any, NamedTuple

import uvloop

import channels
from mesh_parts.accepts import TidelogSenders
from sync_parts.submit import Crowd, Shape
from sync_parts.wire import Tidelog
from workers_parts.servers import Meter, Server


class Load(NamedTuple):
    """How much of each."""

    appends: int
    events: int
    accepts: int


APPENDERS = 64
SENDERS, EACH = 8, 32
SUBMITS = Shape("window_256", 64, 4, 1)


def _appends(server: Server, count: int) -> dict[str, Any]:
    meter: Any = Meter(server)
    each = count // APPENDERS

    async def both() -> dict[str, Any]:
        await channels.appends(server.port, meter, APPENDERS, each // 10)
        return await channels.appends(server.port, meter, APPENDERS, each)

    return uvloop.run(both())


def _token_streams(server: Server, count: int) -> dict[str, Any]:
    """Appends that five subscribers get, wherever they are connected."""
    meter: Any = Meter(server)
    return uvloop.run(channels.token_streams(server.port, meter, 100, count // 100, 5))


def _events(server: Server, count: int) -> dict[str, Any]:
    crowd = Crowd(Tidelog(), server.port, server.pid)
    try:
        crowd.measure(SUBMITS, count // 10, 10.0)
        meter = Meter(server)
        meter.start()
        found = crowd.measure(SUBMITS, count, 60.0)
        cost = meter.stop(int(found["events"]))
    finally:
        crowd.close()
    kept = ("events_per_s", "result_p50_ms", "broadcast_p50_ms", "generator_cpu_share")
    return cost | {name: round(found[name], 2) for name in kept}


def _accepts(server: Server, count: int) -> dict[str, Any]:
    broker: Any = server  # it has what is used of one
    senders = TidelogSenders(broker)

    async def measured() -> dict[str, Any]:
        await senders.open(SENDERS)
        try:
            await senders.drive(EACH, max(count // 10, SENDERS * EACH))
            meter = Meter(server)
            meter.start()
            done = await senders.drive(EACH, count)
            return meter.stop(len(done.latencies))
        finally:
            await senders.close()

    return uvloop.run(measured())


def measure_surfaces(home: Path, fronts: int, load: Load, **environment: str) -> dict[str, Any]:
    """All of them on a server of its own; 0 fronts are one process."""
    with Server(home, fronts, environment) as server:
        return {
            "append": _appends(server, load.appends),
            "token_stream": _token_streams(server, load.appends // 2),
            "sync_event": _events(server, load.events),
            "mesh_accept": _accepts(server, load.accepts),
        }
