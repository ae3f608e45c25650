"""From `POST /v1/send` to the answer, and on to another daemon's inbox."""

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from mesh_parts.accepts import payload
from mesh_parts.brokers import SLUG, TOPIC, Tidelog
from tidelog.daemon.key_file import write_key
from tidelog.mesh.protocol.identity import MemberKey

WAIT_SECONDS = 30.0
PAUSE_S = 0.01
"""Between two sends of a caller that does not fill the machine."""

LIFTED = "[ipc]\nrate_per_second = 1000000\nrate_burst = 1000000\n"


class Daemon:
    """`python -m tidelog.daemon` with a connection to its Unix socket."""

    def __init__(self, broker_url: str, key: MemberKey) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="tdl-bench-")
        self.home = Path(self._directory.name)
        write_key(self.home / "key.json", key)
        (self.home / "daemon.toml").write_text(LIFTED)
        command = [sys.executable, "-m", "tidelog.daemon", "--data-dir", str(self.home)]
        self._log = (self.home / "daemon.log").open("wb")
        self._process = subprocess.Popen(
            [*command, "--mesh", SLUG, "--broker", broker_url],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError((self.home / "daemon.log").read_text()[-2000:])
        self._connection = self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        self._directory.cleanup()

    def connect(self) -> socket.socket:
        """Another connection to the IPC."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(WAIT_SECONDS)
        connection.connect(str(self.home / "daemon.sock"))
        return connection

    def ask(self, request: bytes) -> bytes:
        """One request on the kept connection; returns the body."""
        self._connection.sendall(request)
        data = b""
        while True:
            data += self._connection.recv(65536)
            head, mark, body = data.partition(b"\r\n\r\n")
            if mark:
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                if len(body) >= size:
                    break
        if head.split(b" ")[1] not in (b"200", b"202"):
            raise RuntimeError(f"refused: {data[:300]!r}")
        return body

    def wait_connected(self) -> None:
        """Wait until it has a broker."""
        deadline = time.monotonic() + WAIT_SECONDS
        request = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        while not json.loads(self.ask(request))["connected"]:
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon did not connect")
            time.sleep(0.02)

    def wait_sent(self) -> None:
        """Wait until nothing is left to send."""
        deadline = time.monotonic() + WAIT_SECONDS
        request = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        while True:
            health = json.loads(self.ask(request))
            if health["queue_depth"] == health["inflight"] == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon did not send everything")
            time.sleep(0.02)


class Inbox:
    """The live events of a daemon: when each message was in its inbox."""

    def __init__(self, daemon: Daemon) -> None:
        self._connection = daemon.connect()
        self._connection.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._lines = self._connection.makefile("rb")
        if b" 200 " not in self._lines.readline():
            raise RuntimeError("the daemon gave no stream")
        self.at: dict[str, float] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            if line.startswith(b"data: ") and b'"client_message_id"' in line:
                now = time.perf_counter()
                message_id = json.loads(line[6:])["client_message_id"]
                with self._changed:
                    self.at[message_id] = now
                    self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Until so many have come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.at) >= count, WAIT_SECONDS):
                raise RuntimeError(f"{len(self.at)} messages of {count} arrived")


def request_for(client_message_id: str, number: int) -> bytes:
    """A send as a whole request."""
    fields = {
        "to": f"topic:{TOPIC}",
        "message": payload(number),
        "client_message_id": client_message_id,
    }
    body = json.dumps(fields).encode()
    head = f"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "count": len(seconds),
        "p50_ms": round(cuts[49] * 1000, 2),
        "p99_ms": round(cuts[98] * 1000, 2),
    }


def measure_daemons(broker: Tidelog, sends: int) -> dict[str, Any]:
    """Two daemons of one topic: accept latency, and the way into the other's inbox."""
    with (
        Daemon(broker.url, broker.member("sender")) as sender,
        Daemon(broker.url, broker.member("receiver")) as receiver,
    ):
        sender.wait_connected()
        receiver.wait_connected()
        inbox = Inbox(receiver)
        sender.ask(request_for("warm", 0))
        inbox.wait(1)
        return {
            "ipc_accept_100_a_second": _accept_latency(sender, inbox, sends, PAUSE_S),
            "ipc_accept_without_pause": _accept_latency(sender, inbox, sends, 0.0),
            "send_to_inbox_one_at_a_time": _one_at_a_time(sender, inbox, sends),
            "send_to_inbox_one_sender_without_pause": _without_pause(sender, inbox, sends),
        }


def _accept_latency(sender: Daemon, inbox: Inbox, sends: int, pause_s: float) -> dict[str, float]:
    """One caller, one request after the other, while the rows are sent.

    Without a pause it measures a full machine: the caller, both daemons and the broker share two
    cores and one disk, and the next accept waits for the attempt of the last.
    """
    seconds = []
    before = len(inbox.at)
    for number in range(sends):
        request = request_for(f"accept-{pause_s}-{number}", number)
        at = time.perf_counter()
        sender.ask(request)
        seconds.append(time.perf_counter() - at)
        time.sleep(pause_s)
    inbox.wait(before + sends)
    sender.wait_sent()
    return percentiles(seconds)


def _one_at_a_time(sender: Daemon, inbox: Inbox, sends: int) -> dict[str, float]:
    """The next send leaves when the last has arrived."""
    seconds = []
    for number in range(sends):
        message_id = f"single-{number}"
        before = len(inbox.at)
        at = time.perf_counter()
        sender.ask(request_for(message_id, number))
        inbox.wait(before + 1)
        seconds.append(inbox.at[message_id] - at)
    sender.wait_sent()
    return percentiles(seconds)


def _without_pause(sender: Daemon, inbox: Inbox, sends: int) -> dict[str, float]:
    """The next send leaves when the last was accepted."""
    sent: dict[str, float] = {}
    before = len(inbox.at)
    started = time.perf_counter()
    for number in range(sends):
        sent[f"stream-{number}"] = time.perf_counter()
        sender.ask(request_for(f"stream-{number}", number))
    inbox.wait(before + sends)
    took = max(inbox.at[message_id] for message_id in sent) - started
    found = percentiles([inbox.at[message_id] - at for message_id, at in sent.items()])
    return {**found, "per_second": round(sends / took, 1)}
