"""How long until another front has delivered, and until all goes on after an owner was killed."""

import asyncio
import contextlib
import os
import signal
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import uvloop

import channels
from tidelog.base.supervisor import SETTLED_SECONDS
from workers_parts.servers import Server, front_of

PAUSE_SECONDS = 0.01
"""Between two appends: nothing else is under way, as in a stream of tokens."""
PROBE_SECONDS = 0.02
WAIT_SECONDS = 60.0


async def _connected(server: Server, protocol: Any, others: set[int]) -> tuple[Any, int]:
    """A connection to a front that is none of these, or to the one process there is."""
    loop = asyncio.get_running_loop()
    while True:
        transport, made = await loop.create_connection(protocol, "127.0.0.1", server.port)
        if not server.fronts:
            return made, 0
        port = transport.get_extra_info("sockname")[1]
        if hasattr(made, "ready"):
            await made.ready
        with contextlib.suppress(LookupError):
            front = front_of(server, port)
            if front not in others:
                return made, front
        transport.close()


async def _deliveries(server: Server, count: int) -> dict[str, Any]:
    [serial] = await channels.create_messages(server.port, ["other-front"])
    arrived: dict[tuple[int, int], float] = {}
    watcher, front = await _connected(
        server, lambda: channels.Watcher(["other-front"], arrived), set()
    )
    await watcher.ready
    sent: list[float] = []
    answered: list[float] = []
    requests = [
        channels.append_bytes("other-front", serial, channels.TOKEN.format(stream=0, number=n))
        for n in range(count)
    ]
    request, other = await _connected(server, _Request, {front})
    for each in requests:
        sent.append(time.perf_counter())
        await request.answered(each)
        answered.append(time.perf_counter())
        await asyncio.sleep(PAUSE_SECONDS)
    deadline = time.perf_counter() + WAIT_SECONDS
    while len(arrived) < count and time.perf_counter() < deadline:  # noqa: ASYNC110 - it counts
        await asyncio.sleep(PAUSE_SECONDS)
    request.close()
    watcher.close()
    return {
        "fronts": [front, other] if server.fronts else [],
        "delivered": len(arrived),
        "request_to_answer": channels.quantiles(
            [after - before for before, after in zip(sent, answered, strict=True)]
        ),
        "request_to_delivery": channels.quantiles([arrived[0, n] - sent[n] for n in range(count)]),
    }


class _Request(asyncio.Protocol):
    """A keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._done: asyncio.Future[None] | None = None
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        """Keep it."""
        self._transport = transport

    def answered(self, request: bytes) -> "asyncio.Future[None]":
        """Send; resolved with the answer."""
        self._done = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        """All answers are alike: a head and a body that ends with a brace."""
        self._buffer += data
        if self._done is not None and b"\r\n\r\n" in self._buffer and self._buffer[-1:] == b"}":
            assert self._buffer.startswith(b"HTTP/1.1 200"), self._buffer
            self._done.set_result(None)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


def measure_delivery(home: Path, fronts: int, count: int) -> dict[str, Any]:
    """From a request at one front to its delivery by another, nothing else under way."""
    with Server(home, fronts) as server:
        return uvloop.run(_deliveries(server, count))


def _is_accepted(port: int, number: int) -> bool:
    """Whether a publish on a new connection is accepted."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as connection:
            connection.sendall(channels.publish_bytes("after-a-kill", f"{number}"))
            return connection.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def measure_kills(home: Path, fronts: int, kills: int) -> dict[str, Any]:
    """From SIGKILL of the owner until a publish is accepted, on a new connection each time."""
    with Server(home, fronts) as server:
        seconds = []
        for number in range(kills):
            while not _is_accepted(server.port, number):
                time.sleep(PROBE_SECONDS)
            owner = server.pid
            time.sleep(SETTLED_SECONDS + 1)  # one that dies sooner is started again later
            started = time.perf_counter()
            os.kill(owner, signal.SIGKILL)
            while not _is_accepted(server.port, number):
                time.sleep(PROBE_SECONDS)
            seconds.append(time.perf_counter() - started)
            assert server.pid != owner
    return {
        "fronts": fronts,
        "kills": kills,
        "seconds": [round(each, 2) for each in seconds],
        "median_s": round(statistics.median(seconds), 2),
    }


class _Returning(channels.Watcher):
    """A subscriber that tells when its connection is lost."""

    def __init__(self) -> None:
        super().__init__(["after-a-kill"], None)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, _: Exception | None) -> None:
        """Tell."""
        if not self.ready.done():
            self.ready.cancel()
        self.lost.set_result(None)


async def _subscribed(port: int) -> _Returning:
    """A subscriber, however often it must connect."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            _, made = await loop.create_connection(_Returning, "127.0.0.1", port)
            await made.ready
            return made


async def _comeback(server: Server, sockets: int) -> dict[str, Any]:
    at_once = asyncio.Semaphore(64)

    async def connected() -> _Returning:
        async with at_once:
            return await _subscribed(server.port)

    async def returned(watcher: _Returning) -> float:
        await watcher.lost
        (await _subscribed(server.port)).close()
        return time.perf_counter()

    watchers = await asyncio.gather(*[connected() for _ in range(sockets)])
    owner, fronts = server.pid, server.pids("front")
    await asyncio.sleep(SETTLED_SECONDS + 1)
    before = sum(map(channels.cpu_seconds, fronts))
    started = time.perf_counter()
    os.kill(owner, signal.SIGKILL)
    back = await asyncio.gather(*[returned(each) for each in watchers])
    used = sum(map(channels.cpu_seconds, fronts)) - before
    return {
        "sockets": sockets,
        "median_s": round(statistics.median(back) - started, 2),
        "last_s": round(max(back) - started, 2),
        "fronts_cpu_ms_each": round(used / sockets * 1e3, 2),
    }


def measure_comeback(home: Path, fronts: int, sockets: int) -> dict[str, Any]:
    """From SIGKILL of the owner until every socket is subscribed again.

    Clients come back at once and together, which is the worst they can do.
    """
    with Server(home, fronts) as server:
        return uvloop.run(_comeback(server, sockets))
