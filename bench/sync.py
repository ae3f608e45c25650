"""Sync from submit to broadcast, catching up, cold starts and tree moves, beside npm's insieme.

The servers are real processes: `tidelog serve` on SQLite at synchronous=FULL (and on PostgreSQL
with --postgresql) and, when Node is there, insieme 2.1.0 with its SQLite store at the same setting.
The generator is this process: raw sockets, frames encoded and masked beforehand, answers counted
and not decoded. Prints one JSON document; every figure is the median of --repeats rounds.

  submit      64 submitters, 50 peers of the same partition, events of 200 bytes. `window_1` has one
              event in flight over all connections; `window_256` four submits of one event on each;
              `window_256_batched` one submit of four events on each. Submitters get no broadcasts:
              ours do not subscribe, insieme's are held in an unfinished sync.
  catch_up    pages of 1000 over one partition, to a client that only counts.
  cold_start  first submit to a tree partition after a start, without and with a snapshot.
  tree_move   check and apply of one treeMove, in this process.

insieme is installed once with npm into --insieme-dir (its SQLite driver may compile for minutes).

Example: python bench/sync.py --repeats 3 --postgresql
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import re
import select
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import msgspec
import psutil
import uvloop

# As in tidelog.web.reader: the C function of `websockets`.
from websockets.frames import apply_mask  # type: ignore[attr-defined]

from tidelog.base.clock import SystemClock
from tidelog.base.metrics import Metrics
from tidelog.base.settings import Limits
from tidelog.base.settings import Sync as SyncSettings
from tidelog.log.committer import Committer
from tidelog.store import open_store
from tidelog.sync.profiles import CANONICAL, COMPATIBILITY, Model
from tidelog.sync.rules import SubmitItem, prepare
from tidelog.sync.service import SyncService
from tidelog.sync.session import Submit
from tidelog.sync.tree import TreeState
from tidelog.testing.postgresql import create_database, throwaway_postgresql
from tidelog.testing.process import ServerProcess

SUBMITTERS = 64
PEERS = 50
PROBES = range(0, PEERS, 12)
"""Peers whose broadcasts are looked at for their latency, spread over the order in which they
connected; those of the others are counted."""
EVENT_BYTES = 200
PAGE = 1000
MOVES = 3000
TREE_SIZES = (100, 100_000)
FAN_OUT = 10
"""Children of each node of a balanced tree."""

SECRET = "bench-secret-of-at-least-32-bytes!"
ADMIN_TOKEN = "bench-admin"
PARTITION = "bench"
TREE_PARTITION = "tree"
SCHEMA = "bench.note"
TARGET = "tasks"
MODEL: dict[str, Any] = {
    "model_version": 1,
    "schemas": {
        SCHEMA: {
            "type": "object",
            "required": ["number", "text"],
            "properties": {"number": {"type": "integer"}, "text": {"type": "string"}},
            "additionalProperties": False,
        }
    },
    "tree_targets": {
        TARGET: {"kind": "tree", "actions": ["treePush", "treeMove", "treeUpdate", "treeDelete"]}
    },
}

TIMEOUT_SECONDS = 60.0
DRAIN_SECONDS = 20.0
INSTALL_SECONDS = 400.0
RECEIVE_BYTES = 1 << 16
RESULT = b'"submit_events_result"'
BROADCAST = b'"event_broadcast"'
HERE = Path(__file__).parent


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


def event(number: int) -> dict[str, Any]:
    """The event that both servers are sent, `EVENT_BYTES` long as JSON."""
    made: dict[str, Any] = {
        "type": "event",
        "payload": {"schema": SCHEMA, "data": {"number": number, "text": ""}},
    }
    made["payload"]["data"]["text"] = "x" * (EVENT_BYTES - len(_encode(made)))
    return made


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def _median(values: Sequence[float], digits: int = 2) -> float:
    return round(statistics.median(values), digits)


def _percentile_ms(seconds: list[float], share: float) -> float:
    seconds.sort()
    return seconds[min(len(seconds) - 1, int(len(seconds) * share))] * 1000


# ---------------------------------------------------------------- connections


def client_frame(payload: bytes) -> bytes:
    """A masked text frame."""
    size = len(payload)
    if size < 126:
        head = bytes((0x81, 0x80 | size))
    elif size < 65536:
        head = b"\x81\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x81\xff" + size.to_bytes(8, "big")
    key = os.urandom(4)
    masked: bytes = apply_mask(payload, key)
    return head + key + masked


class Channel:
    """A WebSocket connection by hand, one message after another."""

    def __init__(self, port: int, path: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        self._input = self.sock.makefile("rb", buffering=1 << 20)
        line = self._input.readline()
        if b" 101 " not in line:
            raise AssertionError(f"the server refused: {line!r}")
        while line not in (b"\r\n", b""):
            line = self._input.readline()

    def ask(self, message: dict[str, Any], answer: str) -> bytes:
        """Send a message and answer the next one, which must be of that type."""
        self.sock.sendall(client_frame(_encode(message)))
        received = self.read()
        if b'"type":"%s"' % answer.encode() not in received[:200]:
            raise AssertionError(f"not {answer}: {received[:300]!r}")
        return received

    def read(self) -> bytes:
        """The next message."""
        head = self._input.read(2)
        if len(head) < 2 or head[0] != 0x81:
            raise AssertionError(f"the server closed the connection or sent no text: {head!r}")
        size = head[1]
        if size > 125:
            size = int.from_bytes(self._input.read(2 if size == 126 else 8), "big")
        payload: bytes = self._input.read(size)
        return payload

    def release(self) -> socket.socket:
        """The socket, for whoever polls; nothing may be on its way."""
        self.sock.setblocking(False)
        return self.sock

    def close(self) -> None:
        """Cut it."""
        self._input.close()
        self.sock.close()


class Dialect:
    """What the generator says to one kind of server."""

    path = "/"

    def submitter(self, port: int, client: str) -> Channel:
        """A connection that may submit and gets no broadcasts."""
        raise NotImplementedError

    def peer(self, port: int, client: str) -> Channel:
        """A connection that gets all broadcasts."""
        raise NotImplementedError

    def submit(self, first: int, ids: Sequence[str]) -> bytes:
        """The text of a submit of events numbered from `first`."""
        raise NotImplementedError


class Tidelog(Dialect):
    """Our protocol."""

    path = "/sync"

    def message(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        """An envelope."""
        return {
            "type": kind,
            "msg_id": "m",
            "timestamp": 0,
            "protocol_version": "1.0",
            "payload": payload,
        }

    def connect(self, port: int, client: str, profile: str = CANONICAL) -> Channel:
        """A connection after the handshake."""
        claims = {
            "client_id": client,
            "exp": int(time.time()) + 86_400,
            "allowed_partitions": [PARTITION, TREE_PARTITION],
        }
        payload = {
            "token": jwt.encode(claims, SECRET, algorithm="HS256"),
            "client_id": client,
            "supported_profiles": [profile],
        }
        channel = Channel(port, self.path)
        channel.ask(self.message("connect", payload), "connected")
        return channel

    def submitter(self, port: int, client: str) -> Channel:
        """See `Dialect.submitter`."""
        return self.connect(port, client)

    def peer(self, port: int, client: str) -> Channel:
        """See `Dialect.peer`; behind the head there is nothing to be sent."""
        channel = self.connect(port, client)
        payload = {
            "partitions": [PARTITION],
            "subscription_partitions": [PARTITION],
            "since_committed_id": 2**53 - 1,
        }
        channel.ask(self.message("sync", payload), "sync_response")
        return channel

    def submit(self, first: int, ids: Sequence[str]) -> bytes:
        """See `Dialect.submit`."""
        events = [
            {"id": name, "partitions": [PARTITION], "event": event(first + offset)}
            for offset, name in enumerate(ids)
        ]
        return _encode(self.message("submit_events", {"events": events}))


class Insieme(Dialect):
    """The protocol of insieme 2.1.0."""

    def __init__(self) -> None:
        self._has_events = False

    def _message(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "msgId": "m", "protocolVersion": "1.0", "payload": payload}

    def peer(self, port: int, client: str) -> Channel:
        """See `Dialect.peer`: whoever is connected gets all events of its project."""
        channel = Channel(port, self.path)
        payload = {"token": client, "clientId": client, "projectId": PARTITION}
        channel.ask(self._message("connect", payload), "connected")
        return channel

    def submitter(self, port: int, client: str) -> Channel:
        """See `Dialect.submitter`: no broadcasts while a sync has more pages to come."""
        channel = self.peer(port, client)
        if not self._has_events:
            self._has_events = True
            text = self.submit(0, ["first", "second"])
            channel.ask(msgspec.json.decode(text), "submit_events_result")
        payload = {"projectId": PARTITION, "sinceCommittedId": 0, "limit": 1}
        answer = channel.ask(self._message("sync", payload), "sync_response")
        if b'"hasMore":true' not in answer:
            raise AssertionError(f"the sync is finished: {answer!r}")
        return channel

    def submit(self, first: int, ids: Sequence[str]) -> bytes:
        """See `Dialect.submit`."""
        events = []
        for offset, name in enumerate(ids):
            content = event(first + offset)
            events.append(
                {
                    "id": name,
                    "partition": PARTITION,
                    "projectId": PARTITION,
                    "type": content["type"],
                    "schemaVersion": 1,
                    "payload": content["payload"],
                    "meta": {"clientTs": first},
                }
            )
        return _encode(self._message("submit_events", {"events": events}))


# ---------------------------------------------------------------- submit, commit, broadcast


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

    def __init__(self, dialect: Dialect, port: int, pid: int) -> None:
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

    def measure(self, shape: Shape, events: int, seconds: float) -> dict[str, float]:
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

    def _drive(self, shape: Shape, frames: Sequence[bytes], seconds: float) -> dict[str, float]:
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
        }


def measure_submits(
    crowds: dict[str, Crowd], repeats: int, events: int, seconds: float
) -> dict[str, Any]:
    """Every shape on every server; the servers alternate."""
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
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
            }
            | {
                "events_per_s_runs": [
                    round(one["events_per_s"]) for one in rounds[name, shape.name]
                ]
            }
            for shape in SHAPES
        }
        for name in crowds
    }


# ---------------------------------------------------------------- tidelog's side


class Place:
    """Where one tidelog server keeps its things."""

    def __init__(self, home: Path, store: str | None) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.store = store
        model_file = home / "model.json"
        model_file.write_text(json.dumps(MODEL), encoding="utf-8")
        self.sync = SyncSettings(
            jwt_secret=SECRET,
            model_file=str(model_file),
            heartbeat_timeout_ms=86_400_000,
            max_messages_per_second=1_000_000,
        )
        self.config = home / "tidelog.toml"
        self.config.write_text(
            "[limits]\nsend_buffer_messages = 100000\n[sync]\n"
            + "".join(
                f"{name} = {json.dumps(getattr(self.sync, name))}\n"
                for name in (
                    *("jwt_secret", "model_file", "heartbeat_timeout_ms"),
                    "max_messages_per_second",
                )
            ),
            encoding="utf-8",
        )

    @property
    def location(self) -> str:
        """What `open_store` opens."""
        return self.store or str(self.home / "data" / "tidelog.db")

    @contextmanager
    def server(self) -> Iterator[ServerProcess]:
        """A running server."""
        process = ServerProcess(
            data_dir=self.home / "data",
            store=self.store,
            environment={"TIDELOG_TEST_PROBE": "0", "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
            arguments=("--config", str(self.config), "--log-level", "warning"),
        )
        with process:
            process.start()
            yield process
            process.terminate()


def _push(number: int) -> dict[str, Any]:
    """A tree event, as long as the other events; the tree is balanced."""
    options: dict[str, Any] = {"position": "last"}
    if number:
        options["parent"] = f"n{(number - 1) // FAN_OUT}"
    value = {"id": f"n{number}", "title": ""}
    made = {
        "type": "treePush",
        "payload": {"target": TARGET, "value": value, "options": options},
    }
    value["title"] = "x" * max(0, EVENT_BYTES - len(_encode(made)))
    return made


def _tree_items(first: int, count: int, model: Model) -> tuple[SubmitItem, ...]:
    items = []
    for number in range(first, first + count):
        made = _push(number)
        items.append(
            prepare(
                {"id": f"tree-{number}", "partitions": [TREE_PARTITION], "event": made},
                _encode(made),
                client_id="writer",
                profile=COMPATIBILITY,
                model=model,
                allows=lambda _: True,
            )
        )
    return tuple(items)


async def write_tree(place: Place, count: int) -> float:
    """Write `count` tree events through the committer and the rules of sync; events per second."""
    (place.home / "data").mkdir(exist_ok=True)
    store = await open_store(place.location, log_id="bench", node="bench")
    try:
        committer = await Committer.start(store, SystemClock(), Metrics(), Limits())
        try:
            service = await SyncService.open(committer, store, place.sync, SystemClock())
            started = time.perf_counter()
            for begin in range(0, count, PAGE):
                done = asyncio.get_running_loop().create_future()
                missing = 0

                def answered(answers: Sequence[Any] | None) -> None:
                    nonlocal missing
                    assert answers is not None, "the store failed"
                    assert all(answer.status == "committed" for answer in answers), answers
                    missing -= len(answers)
                    if missing == 0:
                        done.set_result(None)  # noqa: B023 - awaited in the same turn

                missing = min(PAGE, count - begin)
                end = begin + missing
                for first in range(begin, end, 100):
                    items = _tree_items(first, min(100, end - first), service.model)
                    await service.warm_and_submit(Submit(items, 30_000), answered, None)
                await done
            return count / (time.perf_counter() - started)
        finally:
            await committer.stop()
    finally:
        await store.close()


class _PagePayload(msgspec.Struct):
    events: list[msgspec.Raw]
    next_since_committed_id: int
    has_more: bool


class _PageMessage(msgspec.Struct):
    payload: _PagePayload


_decode_page = msgspec.json.Decoder(_PageMessage).decode


def catch_up(process: ServerProcess, count: int) -> dict[str, float]:
    """Page through the tree partition."""
    dialect = Tidelog()
    channel = dialect.connect(process.port, "reader")
    server = psutil.Process(process.pid)
    before = server.cpu_times()
    own, started = time.process_time(), time.perf_counter()
    since, seen, has_more = 0, 0, True
    while has_more:
        payload = {"partitions": [TREE_PARTITION], "since_committed_id": since, "limit": PAGE}
        page = _decode_page(channel.ask(dialect.message("sync", payload), "sync_response")).payload
        since, has_more = page.next_since_committed_id, page.has_more
        seen += len(page.events)
    took = time.perf_counter() - started
    own = time.process_time() - own
    after = server.cpu_times()
    channel.close()
    if seen < count:
        raise AssertionError(f"{seen} events instead of {count}")
    return {
        "seconds": took,
        "events_per_s": seen / took,
        "server_cpu_share": (after.user + after.system - before.user - before.system) / took,
        "client_cpu_share": own / took,
    }


def first_submit(process: ServerProcess, number: int) -> float:
    """Seconds from submit to result of a tree event, on a connection that is already there."""
    dialect = Tidelog()
    channel = dialect.connect(process.port, "writer", COMPATIBILITY)
    made = _push(number)
    item = {"id": f"tree-{number}", "partitions": [TREE_PARTITION], "event": made}
    started = time.perf_counter()
    answer = channel.ask(
        dialect.message("submit_events", {"events": [item]}), "submit_events_result"
    )
    took = time.perf_counter() - started
    channel.close()
    if b'"committed"' not in answer:
        raise AssertionError(answer)
    return took


def put_snapshot(process: ServerProcess) -> float:
    """Let the server store a snapshot of the tree; seconds."""
    request = urllib.request.Request(
        f"{process.url}/sync/admin/snapshot",
        data=json.dumps({"partition": TREE_PARTITION}).encode(),
        headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
        method="PUT",
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        answer.read()
    return time.perf_counter() - started


def measure_log(place: Place, count: int, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Catching up with a log of `count` tree events, and cold starts on it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        written = runner.run(write_tree(place, count))
    gc.collect()
    number, pages, starts = count, [], []
    without, snapshots, loaded = [], [], []
    for repeat in range(repeats):
        started = time.perf_counter()
        with place.server() as process:
            starts.append(time.perf_counter() - started)
            without.append(first_submit(process, number))
            number += 1
            pages.append(catch_up(process, count))
            if repeat == repeats - 1:
                snapshots.append(put_snapshot(process))
    for _ in range(repeats):
        with place.server() as process:
            loaded.append(first_submit(process, number))
            number += 1
    caught_up = {
        "events": count,
        **{name: _median([page[name] for page in pages]) for name in pages[0]},
        "seconds_runs": [round(page["seconds"], 2) for page in pages],
        "aim_seconds": 3,
    }
    cold = {
        "events": count,
        "first_submit_without_snapshot_s": _median(without, 3),
        "first_submit_with_snapshot_s": _median(loaded, 3),
        "with_snapshot_runs": [round(one, 3) for one in loaded],
        "put_snapshot_s": _median(snapshots, 3),
        "server_start_s": _median(starts),
        "written_in_process_per_s": round(written),
        "aim_with_snapshot_s": 1,
    }
    return caught_up, cold


# ---------------------------------------------------------------- tree moves


def _tree(size: int, parent_of: Callable[[int], int | None]) -> TreeState:
    state = TreeState(Model.parse(MODEL["tree_targets"], {}, 1))
    for number in range(size):
        options: dict[str, Any] = {"position": "last"}
        parent = parent_of(number)
        if parent is not None:
            options["parent"] = f"n{parent}"
        payload = {"target": TARGET, "value": {"id": f"n{number}"}, "options": options}
        state.apply({"type": "treePush", "payload": payload})
    return state


def _move(moved: int, **options: Any) -> dict[str, Any]:
    return {
        "type": "treeMove",
        "payload": {"target": TARGET, "options": {"id": f"n{moved}", **options}},
    }


def _flat_moves(size: int, chance: random.Random) -> list[dict[str, Any]]:
    """Any node behind any other."""
    pairs = [chance.sample(range(size), 2) for _ in range(MOVES)]
    return [_move(moved, position={"after": f"n{other}"}) for moved, other in pairs]


def _balanced_moves(size: int, chance: random.Random) -> list[dict[str, Any]]:
    """Any node, with all below it, under any node that has children; some are refused."""
    inner = (size - 1) // FAN_OUT
    return [
        _move(chance.randrange(1, size), parent=f"n{chance.randrange(inner)}", position="last")
        for _ in range(MOVES)
    ]


def _time_moves(state: TreeState, moves: Sequence[dict[str, Any]]) -> float:
    """Microseconds of check and apply, over the moves that may happen."""
    now, took, count = time.perf_counter, 0.0, 0
    for move in moves:
        started = now()
        if not state.check(move):
            state.apply(move)
            took += now() - started
            count += 1
    return took / count * 1e6


def measure_moves(repeats: int) -> dict[str, Any]:
    """Flat and balanced trees, small and large."""
    result: dict[str, Any] = {}
    for kind, parent_of, moves_of in (
        ("flat", lambda _: None, _flat_moves),
        ("balanced", lambda number: (number - 1) // FAN_OUT if number else None, _balanced_moves),
    ):
        figures = {}
        for size in TREE_SIZES:
            state, chance = _tree(size, parent_of), random.Random(size)
            gc.collect()
            gc.freeze()
            _time_moves(state, moves_of(size, chance))  # warm
            runs = [_time_moves(state, moves_of(size, chance)) for _ in range(repeats)]
            gc.unfreeze()
            figures[size] = statistics.median(runs)
        small, large = figures.values()
        result[kind] = {
            **{f"us_per_move_at_{size}": round(us, 2) for size, us in figures.items()},
            "ratio": round(large / small, 2),
        }
    return {**result, "aim_ratio": 3}


# ---------------------------------------------------------------- insieme


def install_insieme(directory: Path) -> None:
    """Put insieme, a WebSocket server and an SQLite driver into `directory`, once."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "server.mjs"):
        shutil.copyfile(HERE / "insieme" / name, directory / name)
    if (directory / "node_modules" / "insieme").exists() and _loads(directory) is None:
        return
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise RuntimeError(f"{name} is not installed")
    try:
        npm = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"npm install took over {INSTALL_SECONDS:.0f} s") from None
    if npm.returncode:
        raise RuntimeError(f"npm install failed: {npm.stderr[-600:]}")
    if problem := _loads(directory):
        raise RuntimeError(f"its SQLite driver does not load: {problem}")


def _loads(directory: Path) -> str | None:
    """Why the SQLite driver cannot be used, or None."""
    script = "import D from 'better-sqlite3'; new D(':memory:').close()"
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return node.stderr[-600:] if node.returncode else None


@contextmanager
def insieme_server(directory: Path, database: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """A running server: what it says of itself, and its process id."""
    with subprocess.Popen(
        ["node", "server.mjs", str(database)],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("its server did not start; see standard error")
            yield json.loads(line), process.pid
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()


# ---------------------------------------------------------------- the document


def measure_engine(
    options: argparse.Namespace, home: Path, store: str | None, insieme_dir: Path | None
) -> dict[str, Any]:
    """All that depends on the engine; insieme beside it if a directory is given."""
    document: dict[str, Any] = {}
    with ExitStack() as stack:
        place = Place(home / "submit", store)
        crowds = {}
        process = stack.enter_context(place.server())
        crowds["tidelog"] = Crowd(Tidelog(), process.port, process.pid)
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
            "versions": {name: version(name) for name in ("uvicorn", "uvloop", "msgspec")},
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
        caught_up, cold = measure_log(Place(home / "log", None), options.log, options.repeats)
        document["sqlite"] = {"submit": ours, "catch_up": caught_up, "cold_start": cold}
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
                "aims": {"window_1": 1, "window_256": 10},
            }
        if options.postgresql:
            with throwaway_postgresql() as url:
                store = asyncio.run(create_database(url))
                found = measure_engine(options, home / "postgresql", store, None)
                place = Place(home / "pglog", asyncio.run(create_database(url)))
                caught_up, cold = measure_log(place, options.log, options.repeats)
                document["postgresql"] = {
                    "submit": found["submit"]["tidelog"],
                    "catch_up": caught_up,
                    "cold_start": cold,
                }
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
    parser.add_argument("--no-insieme", action="store_true", help="tidelog alone")
    parser.add_argument("--insieme-dir", type=Path, default=cache / "tidelog-bench" / "insieme")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.seconds, arguments.log = 1, 1.0, 20_000
    main(arguments)
    sys.exit(0)
