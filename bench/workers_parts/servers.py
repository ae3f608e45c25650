"""A server of one process, or of an owner and fronts, and what each of its processes has cost."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

import channels
from mesh_parts.brokers import MAX_RATE, SLUG, call, new_member
from sync_parts.logs import ADMIN_TOKEN, MODEL
from sync_parts.wire import SECRET
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 60.0


class Server:
    """`tidelog serve` with all surfaces, in one process or with so many fronts."""

    def __init__(self, home: Path, fronts: int = 0, environment: Mapping[str, str] = {}) -> None:
        home.mkdir(parents=True)
        model = home / "model.json"
        model.write_text(json.dumps(MODEL), encoding="utf-8")
        config = home / "tidelog.toml"
        config.write_text(channels.CONFIG + _sync(model), encoding="utf-8")
        workers = ("--workers", str(fronts)) if fronts else ()
        self._server = ServerProcess(
            data_dir=home / "data",
            environment={"TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN, **environment},
            arguments=("--config", str(config), "--log-level", "warning", *workers),
        )
        self.fronts = fronts

    def __enter__(self) -> Self:
        self._server.start()
        call(self.url, "POST", "/mesh", {"slug": SLUG, "rate_limit": MAX_RATE}, ADMIN_TOKEN)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.__exit__(None, None, None)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    @property
    def url(self) -> str:
        """The same, for HTTP."""
        return self._server.url

    @property
    def pid(self) -> int:
        """Of the process that has the log."""
        return self.pids("owner")[0] if self.fronts else self._server.pid

    def pids(self, role: str) -> list[int]:
        """Of the owner, or of the fronts; waits until all are there."""
        wanted = self.fronts if role == "front" else 1
        deadline = time.monotonic() + WAIT_SECONDS
        found: list[int] = []
        while time.monotonic() < deadline:
            children = psutil.Process(self._server.pid).children(recursive=True)
            found = [each.pid for each in children if _is(each, role)]
            if len(found) == wanted:
                return found
            time.sleep(0.02)
        raise RuntimeError(f"there are {len(found)} processes like {role} instead of {wanted}")

    def member(self, name: str, topic: str | None) -> MemberKey:
        """A new member of the mesh; see `mesh_parts`."""
        return new_member(self.url, SLUG, name, topic)


def _is(process: psutil.Process, role: str) -> bool:
    try:
        return f"tidelog.serve.{role}" in process.cmdline()
    except psutil.Error:
        return False


def _sync(model: Path) -> str:
    settings: dict[str, Any] = {
        "jwt_secret": SECRET,
        "model_file": str(model),
        "heartbeat_timeout_ms": 86_400_000,
        "max_messages_per_second": 1_000_000,
    }
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    return "\n[sync]\n" + "".join(lines)


class Meter:
    """CPU of each kind of process of a server over a block; stands for `channels.Meter`."""

    def __init__(self, server: Server) -> None:
        self._own = [server.pid]
        self._fronts = server.pids("front") if server.fronts else []

    def start(self) -> None:
        """Begin."""
        self._at, self._before = time.perf_counter(), self._used()
        self._generator = time.process_time()

    def stop(self, operations: int) -> dict[str, Any]:
        """What `operations` cost."""
        took, used = time.perf_counter() - self._at, self._used()
        owner, fronts = (after - before for after, before in zip(used, self._before, strict=True))
        generator = time.process_time() - self._generator
        return {
            "operations": operations,
            "per_second": round(operations / took, 1),
            "owner_cpu_us_each": round(owner / operations * 1e6, 1),
            "fronts_cpu_us_each": round(fronts / operations * 1e6, 1),
            "all_cpu_us_each": round((owner + fronts) / operations * 1e6, 1),
            "owner_cpu_share": round(owner / took, 3),
            "generator_cpu_us_each": round(generator / operations * 1e6, 1),
        }

    def _used(self) -> tuple[float, float]:
        return sum(map(channels.cpu_seconds, self._own)), sum(
            map(channels.cpu_seconds, self._fronts)
        )


def front_of(server: Server, local_port: int) -> int:
    """The front that has the connection from this port."""
    for front in server.pids("front"):
        for connection in psutil.Process(front).net_connections("tcp"):
            if getattr(connection.raddr, "port", 0) == local_port:
                return front
    raise LookupError(local_port)
