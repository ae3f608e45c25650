"""What one delivery and one idle connection cost the server, beside others and the bare kernel.

The measured server is the real one: our HTTP, our WebSocket class and the fan-out, in a process of
its own, driven by a conversation that only counts itself in. The generator is this process: raw
sockets and epoll, counting bytes. Both work in lockstep: a round is broadcast when every byte of
the one before was read, so no queue hides any cost. Prints one JSON document.

Compared with: a plain `websockets` server using `broadcast()`, on asyncio's own loop as documented
and on uvloop; and `bare`, which only calls `send` on each socket: what the kernel asks of anyone.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import IO, Any

import psutil
import uvloop

REQUEST = (
    b"GET /bench HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
WARM_CONNECTIONS = 500
"""Connected before memory is measured, so that what is allocated once is not counted."""
MEASURED_CONNECTIONS = 2000
SUBSCRIBERS = (500, 2000)
BATCHES = (1, 16)
IDLE_SECONDS = 0.5
ROUND_TIMEOUT_SECONDS = 20.0

KINDS = ("tidelog", "websockets", "websockets_uvloop", "bare")

Broadcast = Callable[[int, list[bytes]], None]
"""Send the messages to the first so many connections, in one turn of the loop."""


# ---------------------------------------------------------------- the server process


async def obey(broadcast: Broadcast) -> None:
    """Do what the generator's lines ask until it hangs up."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    process = psutil.Process()
    serial = 0
    while line := await reader.readline():
        request = json.loads(line)
        if request["do"] == "broadcast":
            messages = []
            for _ in range(request["messages"]):
                serial += 1
                messages.append(b"%0*d" % (request["size_bytes"], serial))
            broadcast(request["subscribers"], messages)
        else:
            answer = {"cpu_seconds": time.process_time(), "rss_bytes": process.memory_info().rss}
            print(json.dumps(answer), flush=True)


async def serve_tidelog() -> None:
    """Serve with our classes and the fan-out."""
    from tidelog.base.metrics import Metrics
    from tidelog.base.net.frame import text_frame
    from tidelog.base.serving.surface import Endpoint, Outlet, Upgrade
    from tidelog.base.settings.limits import Limits, PerAddress
    from tidelog.web.addresses import Addresses
    from tidelog.web.app import HttpApp
    from tidelog.web.fanout import Fanout
    from tidelog.web.http import http_protocol
    from tidelog.web.server import PortServer
    from tidelog.web.websocket import WebSocketService

    outlets: list[Outlet] = []

    class Member:
        def opened(self, outlet: Outlet) -> None:
            outlets.append(outlet)

        def received(self, payload: bytes, *, is_text: bool) -> None:
            pass

        def closed(self, code: int) -> None:
            pass

    def accept(_upgrade: Upgrade) -> Member:
        return Member()

    def broadcast(subscribers: int, messages: list[bytes]) -> None:
        for message in messages:
            frame = text_frame(message)
            for outlet in outlets[:subscribers]:
                outlet.push(frame)

    metrics = Metrics()
    limits = Limits(send_buffer_bytes=64 << 20, send_buffer_messages=1 << 20)
    fanout = Fanout(asyncio.get_running_loop(), metrics, limits)
    endpoint = Endpoint(path="/bench", accept=accept, max_message_bytes=1 << 20)
    service = WebSocketService([endpoint], fanout, metrics, limits)
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        addresses = Addresses(PerAddress())
        http = http_protocol(
            HttpApp([], metrics, limits, addresses),
            *(limits, metrics, addresses, service.unauthenticated, fanout, service.sockets),
        )
        server = PortServer(http, service.connection, 5, service.close_all)
        listener.setblocking(False)
        serving = asyncio.create_task(server.serve(listener))
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        await obey(broadcast)
        server.end()
        await serving


async def serve_websockets() -> None:
    """Serve with `websockets` as its documentation shows, without compression and pings."""
    from websockets.asyncio.server import ServerConnection, broadcast, serve

    connections: list[ServerConnection] = []

    async def handle(connection: ServerConnection) -> None:
        connections.append(connection)
        await connection.wait_closed()

    def send(subscribers: int, messages: list[bytes]) -> None:
        for message in messages:
            broadcast(connections[:subscribers], message.decode())

    async with serve(
        handle, "127.0.0.1", 0, compression=None, ping_interval=None, backlog=4096
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        print(json.dumps({"port": port}), flush=True)
        await obey(send)


async def serve_bare() -> None:
    """Answer upgrades and send bytes with nothing between Python and the system call."""
    from tidelog.base.net.frame import text_frame

    loop = asyncio.get_running_loop()
    connections: list[socket.socket] = []

    async def greet(listener: socket.socket) -> None:
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_recv(connection, 4096)
            await loop.sock_sendall(connection, b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            connections.append(connection)

    def send(subscribers: int, messages: list[bytes]) -> None:
        joined = b"".join([text_frame(message) for message in messages])
        for connection in connections[:subscribers]:
            if connection.send(joined) != len(joined):
                raise AssertionError("a socket buffer is full")

    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        listener.setblocking(False)
        greeting = asyncio.create_task(greet(listener))
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        await obey(send)
        greeting.cancel()


# ---------------------------------------------------------------- the generator process


class Server:
    """The server process, as the generator sees it."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port: int = self._read()["port"]

    def _pipe(self, end: IO[str] | None) -> IO[str]:
        if end is None:
            raise AssertionError("the server process has no pipe")
        return end

    def _read(self) -> Any:
        return json.loads(self._pipe(self._process.stdout).readline())

    def ask(self, **request: Any) -> None:
        """Send one request."""
        pipe = self._pipe(self._process.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()

    def state(self) -> Any:
        """CPU seconds used so far and resident bytes now."""
        self.ask(do="state")
        return self._read()

    def stop(self, sockets: list[socket.socket]) -> None:
        """Close everything and wait for the process."""
        for sock in sockets:
            sock.close()
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._pipe(self._process.stdout).close()


def connect(port: int) -> socket.socket:
    """A WebSocket connection, opened by hand."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=ROUND_TIMEOUT_SECONDS)
    sock.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        part = sock.recv(4096)
        if not part:
            raise AssertionError(f"the server refused: {answer!r}")
        answer += part
    sock.setblocking(False)
    return sock


def drain(epoll: select.epoll, sockets: dict[int, socket.socket], expected_bytes: int) -> None:
    """Read until that many bytes came, over all sockets."""
    buffer = bytearray(1 << 20)
    deadline = time.monotonic() + ROUND_TIMEOUT_SECONDS
    while expected_bytes > 0:
        if time.monotonic() > deadline:
            raise AssertionError(f"{expected_bytes} bytes did not arrive")
        for fd, _ in epoll.poll(1.0, 512):
            count = sockets[fd].recv_into(buffer)
            if not count:
                raise AssertionError("the server closed a connection")
            expected_bytes -= count
    if expected_bytes:
        raise AssertionError("more bytes than expected")


def deliveries(
    server: Server, sockets: list[socket.socket], batch: int, rounds: int, size_bytes: int
) -> dict[str, float]:
    """CPU per delivery for `rounds` broadcasts of `batch` messages to all of `sockets`."""
    watched = {sock.fileno(): sock for sock in sockets}
    frame_bytes = size_bytes + (2 if size_bytes < 126 else 4)
    with select.epoll() as epoll:
        for fd in watched:
            epoll.register(fd, select.EPOLLIN)
        before = server.state()
        own_before = time.process_time()
        start = time.monotonic()
        for _ in range(rounds):
            server.ask(
                do="broadcast", subscribers=len(sockets), messages=batch, size_bytes=size_bytes
            )
            drain(epoll, watched, len(sockets) * batch * frame_bytes)
        seconds = time.monotonic() - start
        own = time.process_time() - own_before
        used = server.state()["cpu_seconds"] - before["cpu_seconds"]
    count = rounds * batch * len(sockets)
    return {
        "server_cpu_seconds": used,
        "wall_seconds": seconds,
        "server_us_per_delivery": used / count * 1e6,
        "generator_us_per_delivery": own / count * 1e6,
        "generator_cpu_share": own / seconds,
    }


def bench(kind: str, rounds: int, repeats: int, size_bytes: int) -> dict[str, Any]:
    """Every figure of one server."""
    server = Server(kind)
    sockets: list[socket.socket] = []
    try:
        sockets += [connect(server.port) for _ in range(WARM_CONNECTIONS)]
        time.sleep(0.2)
        before = server.state()["rss_bytes"]
        sockets += [connect(server.port) for _ in range(MEASURED_CONNECTIONS)]
        time.sleep(0.2)
        after = server.state()
        time.sleep(IDLE_SECONDS)
        idle = (server.state()["cpu_seconds"] - after["cpu_seconds"]) / IDLE_SECONDS
        figures: dict[str, Any] = {
            "idle_connection_bytes": round((after["rss_bytes"] - before) / MEASURED_CONNECTIONS),
            "idle_cpu_share": round(idle, 4),
        }
        for subscribers in SUBSCRIBERS:
            for batch in BATCHES:
                turns = max(5, rounds * SUBSCRIBERS[0] // subscribers // (1 if batch == 1 else 4))
                runs = [
                    deliveries(server, sockets[:subscribers], batch, turns, size_bytes)
                    for _ in range(repeats)
                ]
                count = turns * batch * subscribers
                net = [run["server_cpu_seconds"] - idle * run["wall_seconds"] for run in runs]
                figures[f"1_to_{subscribers}_batch_{batch}"] = {
                    "deliveries_per_run": count,
                    "server_us_per_delivery": round(statistics.median(net) / count * 1e6, 3),
                    "server_us_per_delivery_runs": [round(cpu / count * 1e6, 3) for cpu in net],
                    "generator_us_per_delivery": round(
                        statistics.median(run["generator_us_per_delivery"] for run in runs), 3
                    ),
                    "generator_cpu_share": round(
                        statistics.median(run["generator_cpu_share"] for run in runs), 3
                    ),
                }
        return figures
    finally:
        server.stop(sockets)


def main() -> None:
    """Bench both servers, or be one of them."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--rounds", type=int, default=50, help="broadcasts per run, to 500 peers")
    flags.add_argument("--repeats", type=int, default=3, help="runs per figure; the median counts")
    flags.add_argument("--size-bytes", type=int, default=200)
    flags.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    chosen = flags.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    match chosen.serve:
        case "tidelog":
            uvloop.run(serve_tidelog())
        case "websockets":
            asyncio.run(serve_websockets())
        case "websockets_uvloop":
            uvloop.run(serve_websockets())
        case "bare":
            uvloop.run(serve_bare())
        case _:
            report(chosen.rounds, chosen.repeats, chosen.size_bytes)


def report(rounds: int, repeats: int, size_bytes: int) -> None:
    """Bench every kind and print the document."""
    figures = {kind: bench(kind, rounds, repeats, size_bytes) for kind in KINDS}
    costs = {
        kind: {
            name: figure["server_us_per_delivery"]
            for name, figure in found.items()
            if isinstance(figure, dict)
        }
        for kind, found in figures.items()
    }
    ours = costs["tidelog"]
    packages = ("uvloop", "httptools", "websockets")
    print(
        json.dumps(
            {
                "bench": "fanout",
                "conditions": {
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "cpus": os.cpu_count(),
                    "load_average": [round(load, 2) for load in os.getloadavg()],
                    "versions": {name: version(name) for name in packages},
                    "message_bytes": size_bytes,
                    "rounds": rounds,
                    "repeats": repeats,
                },
                "figures": figures,
                "cost_over_tidelog": {
                    kind: {name: round(cost / ours[name], 2) for name, cost in found.items()}
                    for kind, found in costs.items()
                    if kind != "tidelog"
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
