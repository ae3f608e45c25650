"""Submit, commit, broadcast: all connections of the generator to one server, and what they time."""

import gc
import os
import re
import select
import socket
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

from by_part import PartMeter, SampledServer, medians
from sync_parts.wire import Dialect, client_frame

SUBMITTERS = 64
PEERS = 50
PROBES = range(0, PEERS, 12)
"""Peers whose broadcasts are looked at for their latency, spread over the order in which they
connected; those of the others are counted."""
DRAIN_SECONDS = 20.0
RECEIVE_BYTES = 1 << 16
RESULT = b'"submit_events_result"'
BROADCAST = b'"event_broadcast"'


class Shape(NamedTuple):
    """How many events are in flight, and how they are spread."""

    name: str
    connections: int
    messages: int
    """In flight on each of the connections; 1 on one connection: they take turns."""
    events: int
    """In each message."""


SHAPES = (
    Shape("window_1", 1, 1, 1),
    Shape("window_256", SUBMITTERS, 4, 1),
    Shape("window_256_batched", SUBMITTERS, 1, 4),
)


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def _percentile_ms(seconds: list[float], share: float) -> float:
    seconds.sort()
    return seconds[min(len(seconds) - 1, int(len(seconds) * share))] * 1000


class _Submitter:
    __slots__ = ("sock", "tail", "waiting")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.tail = b""
        self.waiting: deque[int] = deque()
        """Numbers of the messages that were sent and not answered."""

    def answered(self) -> list[int]:
        """Read: the numbers of the messages that were answered."""
        data = self.tail + _receive(self.sock)
        if b'"error"' in data or b'"rejected"' in data:
            raise AssertionError(f"refused: {data[-600:]!r}")
        self.tail = data[1 - len(RESULT) :]
        return [self.waiting.popleft() for _ in range(data.count(RESULT))]


class _Peer:
    __slots__ = ("seen", "sock", "tail")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.seen = 0
        self.tail = b""

    def read(self) -> None:
        """Count broadcasts."""
        data = self.tail + _receive(self.sock)
        self.seen += data.count(BROADCAST)
        self.tail = data[1 - len(BROADCAST) :]


class _Probe(_Peer):
    """A peer that tells which events came when."""

    __slots__ = ("arrivals", "pattern")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.pattern = re.compile(b"")
        self.arrivals: list[tuple[int, float]] = []

    def read(self) -> None:
        """Note broadcasts."""
        data = self.tail + _receive(self.sock)
        now, end = time.perf_counter(), 0
        for found in self.pattern.finditer(data):
            self.arrivals.append((int(found[1]), now))
            self.seen += 1
            end = found.end()
        self.tail = data[max(end, len(data) - 64) :]


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(RECEIVE_BYTES)
    if not data:
        raise AssertionError("the server closed a connection")
    return data


class Crowd:
    """All connections of the generator to one server."""

    def __init__(
        self, dialect: Dialect, port: int, pid: int, server: SampledServer | None = None
    ) -> None:
        """`server`, if it is one whose parts are known."""
        self._parts = PartMeter(server)
        self._dialect = dialect
        self._process = psutil.Process(pid)
        self._round = 0
        self._channels = [dialect.submitter(port, f"s{n}") for n in range(SUBMITTERS)]
        self._submitters = [_Submitter(channel.release()) for channel in self._channels]
        self._peers: list[_Peer] = []
        for number in range(PEERS):
            channel = dialect.peer(port, f"p{number}")
            self._channels.append(channel)
            kind = _Probe if number in PROBES else _Peer
            self._peers.append(kind(channel.release()))

    def close(self) -> None:
        """Cut all connections."""
        for channel in self._channels:
            channel.close()

    def _server_seconds(self) -> float:
        used = self._process.cpu_times()
        return used.user + used.system

    def measure(self, shape: Shape, events: int, seconds: float) -> dict[str, Any]:
        """One round: at most so many events, submitted for at most so long."""
        self._round += 1
        prefix = f"{os.urandom(3).hex()}-{self._round}-"
        frames = []
        for first in range(0, events, shape.events):
            ids = [f"{prefix}{first + offset:07d}" for offset in range(shape.events)]
            frames.append(client_frame(self._dialect.submit(first, ids)))
        pattern = re.compile(b'"id":"%s([0-9]{7})"' % prefix.encode())
        for peer in self._peers:
            peer.seen = 0
            if isinstance(peer, _Probe):
                peer.pattern, peer.arrivals, peer.tail = pattern, [], b""
        gc.collect()
        gc.disable()
        try:
            return self._drive(shape, frames, seconds)
        finally:
            gc.enable()

    def _drive(self, shape: Shape, frames: Sequence[bytes], seconds: float) -> dict[str, Any]:
        now = time.perf_counter
        sent_at = [0.0] * len(frames)
        latencies: list[float] = []
        sent = 0
        submitters = {submitter.sock.fileno(): submitter for submitter in self._submitters}
        peers = {peer.sock.fileno(): peer for peer in self._peers}
        takes_turns = shape.connections == 1

        def send(submitter: _Submitter, count: int) -> None:
            nonlocal sent
            count = min(count, len(frames) - sent)
            if count <= 0 or now() >= deadline:
                return
            data = frames[sent] if count == 1 else b"".join(frames[sent : sent + count])
            at = now()
            for _ in range(count):
                sent_at[sent] = at
                submitter.waiting.append(sent)
                sent += 1
            if submitter.sock.send(data) != len(data):
                raise AssertionError("a socket buffer is full")

        with select.epoll() as epoll:
            for fd in (*submitters, *peers):
                epoll.register(fd, select.EPOLLIN)
            own, server = time.process_time(), self._server_seconds()
            self._parts.start()
            started = last_result = last_delivery = now()
            deadline = started + seconds
            for submitter in self._submitters[: shape.connections]:
                send(submitter, shape.messages)
            while len(latencies) < sent or any(
                peer.seen < sent * shape.events for peer in self._peers
            ):
                ready = epoll.poll(1.0, 256)
                if now() > deadline + DRAIN_SECONDS:
                    raise AssertionError(f"{sent} submits, {len(latencies)} answers, no end")
                for fd, _ in ready:
                    receiver = peers.get(fd)
                    if receiver is not None:
                        receiver.read()
                        last_delivery = now()
                        continue
                    submitter = submitters[fd]
                    answered = submitter.answered()
                    last_result = now()
                    latencies += [last_result - sent_at[number] for number in answered]
                    if takes_turns:
                        submitter = self._submitters[sent % SUBMITTERS]
                    send(submitter, len(answered))
            own = time.process_time() - own
            server = self._server_seconds() - server
        wall = max(last_result, last_delivery) - started
        committed = sent * shape.events
        delays = [
            at - sent_at[number // shape.events]
            for peer in self._peers
            if isinstance(peer, _Probe)
            for number, at in peer.arrivals
        ]
        return {
            "events": committed,
            "events_per_s": committed / (last_result - started),
            "deliveries_per_s": committed * PEERS / wall,
            "result_p50_ms": _percentile_ms(latencies, 0.5),
            "result_p99_ms": _percentile_ms(latencies, 0.99),
            "broadcast_p50_ms": _percentile_ms(delays, 0.5),
            "broadcast_p99_ms": _percentile_ms(delays, 0.99),
            "server_cpu_share": server / wall,
            "server_cpu_us_per_event": server / committed * 1e6,
            "generator_cpu_share": own / wall,
            **self._parts.stop(committed),
        }


def measure_submits(
    crowds: dict[str, Crowd], repeats: int, events: int, seconds: float
) -> dict[str, Any]:
    """Every shape on every server; the servers alternate."""
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for crowd in crowds.values():
        crowd.measure(SHAPES[1], 2000, 1.0)  # warm: imports, caches, the first WAL
    for _ in range(repeats):
        for shape in SHAPES:
            for name, crowd in crowds.items():
                found = crowd.measure(shape, events, seconds)
                rounds.setdefault((name, shape.name), []).append(found)
    return {
        name: {
            shape.name: {
                key: _median([one[key] for one in rounds[name, shape.name]])
                for key in rounds[name, shape.name][0]
                if key != "cpu_us_by_part"
            }
            | medians(rounds[name, shape.name])
            | {
                "events_per_s_runs": [
                    round(one["events_per_s"]) for one in rounds[name, shape.name]
                ]
            }
            for shape in SHAPES
        }
        for name in crowds
    }
