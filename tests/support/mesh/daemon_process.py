"""The real daemon as a process that a test can start, kill, ask and start again."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from support.mesh.scripted_broker import SLUG
from support.warm import NURSERY
from tidelog.base.clock import TEST_OFFSET_VARIABLE
from tidelog.base.faultpoint import VARIABLE as FAULTS_VARIABLE
from tidelog.daemon.key_file import new_key, write_key
from tidelog.mesh.protocol.identity import MemberKey

if TYPE_CHECKING:
    from tidelog.testing.process import Process

Json = dict[str, Any]
T = TypeVar("T")

PROGRAM = ("-m", "tidelog.daemon")


class DaemonProcess:
    """`python -m tidelog.daemon` in a directory of its own; gone when the block ends."""

    def __init__(
        self,
        broker_url: str,
        *,
        slug: str = SLUG,
        settings: str = "",
        key: MemberKey | None = None,
        data_dir: Path | None = None,
        program: tuple[str, ...] = PROGRAM,
        hello_version: int | None = None,
    ) -> None:
        """Make the directory and the key; nothing runs before `start`.

        Args:
            broker_url: where its broker is.
            slug: its mesh.
            settings: the content of `daemon.toml`.
            key: its key, if it is a member's already.
            data_dir: an empty directory; one is made if none is given.
            program: what Python is given instead of the daemon's module.
            hello_version: what it is told to sign, if it is told.
        """
        # A Unix socket's path may have 107 bytes; pytest's directories are longer.
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="tdl-"))
        self.key = key or new_key()
        write_key(self.data_dir / "key.json", self.key)
        self._program = program
        self._arguments = ["--mesh", slug, "--broker", broker_url]
        if hello_version is not None:
            self._arguments += ["--hello-version", str(hello_version)]
        (self.data_dir / "daemon.toml").write_text(settings)
        self.clock_file = self.data_dir / "clock_offset"
        self.clock_file.write_text("0")
        self.log_path = self.data_dir / "daemon.log"
        self._process: Process | None = None
        self.ready: Json = {}
        self.answers: list[tuple[int, Json]] = []
        """Every 2xx that `send` got, for the check of the invariants."""
        self.fingerprints: dict[str, bytes] = {}
        """Of every id that `rows` ever found."""
        self.may_lose = False
        """Set by a test that makes it lose something, to see that the loss would be found."""
        self.events: list[tuple[int, Json]] = []
        """Live `message` events with the pid of the process that published them."""
        self.told: list[tuple[str, Json]] = []
        """Other live events, each with its kind."""

    @property
    def public_hex(self) -> str:
        """The member's address."""
        return self.key.public_hex

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def launch(self, faults: str = "") -> None:
        """Start the process without waiting for it."""
        environment = {
            **os.environ,
            TEST_OFFSET_VARIABLE: str(self.clock_file),
            FAULTS_VARIABLE: faults,
        }
        command = [sys.executable, *self._program, "--data-dir", str(self.data_dir)]
        with self.log_path.open("ab") as log:
            self._process = NURSERY.start(
                [*command, *self._arguments],
                env=environment,
                stderr=log,
                cwd=tempfile.gettempdir(),
            )

    def start(self, faults: str = "") -> None:
        """Start and wait until the IPC is open."""
        self.launch(faults)
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self.wait()
            log = self.log_text()[-2000:]
            raise RuntimeError(f"the daemon did not start, it ended with {code}:\n{log}")
        self.ready = json.loads(line)

    def wait(self, timeout_seconds: float = 60.0) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_seconds)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """SIGTERM, and wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def log_text(self) -> str:
        """What it logged over all starts."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def shift_clock(self, hours: float) -> None:
        """Set how far its wall clock is from the true one."""
        fresh = self.clock_file.with_suffix(".new")
        fresh.write_text(str(int(hours * 3_600_000)))
        fresh.replace(self.clock_file)

    # Asking it.

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """One request over the Unix socket."""
        connection = _UnixConnection(self.data_dir / "daemon.sock")
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def ask_text(self, path: str) -> str:
        """An answer that is not JSON."""
        connection = _UnixConnection(self.data_dir / "daemon.sock")
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def stream(self, after: str | None, count: int) -> list[str]:
        """The data of so many events of `/v1/events`."""
        connection = _UnixConnection(self.data_dir / "daemon.sock")
        try:
            headers = {} if after is None else {"last-event-id": after}
            connection.request("GET", "/v1/events", headers=headers)
            answer = connection.getresponse()
            found: list[str] = []
            while len(found) < count:
                line = answer.readline().decode()
                if line.startswith("data: "):
                    found.append(line.removeprefix("data: "))
            return found
        finally:
            connection.close()

    def send(self, to: str, message: str, client_message_id: str | None = None) -> tuple[int, Any]:
        """`POST /v1/send`."""
        fields: Json = {"to": to, "message": message}
        if client_message_id is not None:
            fields["client_message_id"] = client_message_id
        status, answer = self.ask("POST", "/v1/send", fields)
        if status in (200, 202):
            self.answers.append((status, answer))
        return status, answer

    def watch(self) -> None:
        """Note the live events of the running process in `events` and `told` until it ends."""
        connection = _UnixConnection(self.data_dir / "daemon.sock")
        connection.request("GET", "/v1/events")
        socket = connection.sock  # the answer has no length, so the connection lets go of it
        answer = connection.getresponse()
        assert answer.status == 200
        socket.settimeout(None)
        arguments = (connection, answer, self.pid)
        threading.Thread(target=self._watch, args=arguments, name="events", daemon=True).start()

    def _watch(self, connection: HTTPConnection, answer: HTTPResponse, pid: int) -> None:
        kind = ""
        with suppress(OSError, HTTPException, ValueError):
            while line := answer.readline():
                field, _, value = line.decode().rstrip().partition(": ")
                if field == "event":
                    kind = value
                elif field == "data" and kind == "message":
                    self.events.append((pid, json.loads(value)))
                elif field == "data":
                    self.told.append((kind, json.loads(value)))
        connection.close()

    def health(self) -> Json:
        """`GET /v1/health`."""
        answer: Json = self.ask("GET", "/v1/health")[1]
        return answer

    def outbox(self, name: str) -> Json:
        """`GET /v1/outbox/{name}`."""
        answer: Json = self.ask("GET", f"/v1/outbox/{quote(name, safe='')}")[1]
        return answer

    def inbox(self) -> list[Json]:
        """`GET /v1/inbox`, all of it."""
        items: list[Json] = self.ask("GET", "/v1/inbox?limit=1000")[1]["items"]
        return items

    def rows(self) -> dict[str, Json]:
        """Every outbox row by client id, straight from the file."""
        path = self.data_dir / "outbox.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT * FROM outbox").fetchall()
        connection.close()
        rows = {row["client_message_id"]: dict(row) for row in found}
        for message_id, row in rows.items():
            self.fingerprints.setdefault(message_id, row["request_fingerprint"])
        return rows

    def received(self) -> list[Json]:
        """Every inbox row, straight from the file."""
        path = self.data_dir / "inbox.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT * FROM inbox").fetchall()
        connection.close()
        return [dict(row) for row in found]

    def statuses(self) -> list[str]:
        """Status of every row."""
        return [row["status"] for row in self.rows().values()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self.is_running:
            self.kill()
        try:
            if error is None and not self.may_lose:
                self.check_files()
        finally:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def check_files(self) -> None:
        """What its own files show of the invariants; every case that has a daemon ends with it."""
        earlier = dict(self.fingerprints)
        rows = self.rows() if (self.data_dir / "outbox.db").exists() else {}
        for status, answer in self.answers:
            row = rows.get(answer["client_message_id"])
            assert row is not None, f"G7: {status} was answered without a row: {answer}"
            if status == 200:
                assert answer["broker_message_id"] == row["broker_message_id"], f"G7: {answer}"
        for message_id, fingerprint in earlier.items():
            assert message_id in rows, f"G4: {message_id} is gone"
            assert rows[message_id]["request_fingerprint"] == fingerprint, f"G4: {message_id}"
        received = self.received() if (self.data_dir / "inbox.db").exists() else []
        ids = Counter(_whose(row) for row in received)
        assert set(ids.values()) <= {1}, "G5: a sender's id twice in the inbox"
        events = Counter((pid, *_whose(event)) for pid, event in self.events)
        assert set(events.values()) <= {1}, f"G5: an event twice: {events.most_common(3)}"


def _whose(message: Json) -> tuple[str, str]:
    """What a message is known by: its sender and its id."""
    return message["sender_pubkey"], message["client_message_id"]


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def eventually(what: Callable[[], T], timeout_seconds: float = 60.0) -> T:
    """Repeat until it is true; returns that value.

    Ever less often: to ask a PostgreSQL means to connect to it, for 10 ms of a processor.
    """
    deadline = time.monotonic() + timeout_seconds
    value: T | None = None
    pause = 0.02
    while time.monotonic() < deadline:
        with suppress(OSError):
            value = what()
            if value:
                return value
        time.sleep(pause)
        pause = min(1.5 * pause, 0.25)
    raise AssertionError(f"it did not happen; last seen: {value!r}")
