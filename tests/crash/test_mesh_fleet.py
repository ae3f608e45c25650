"""A fleet of real daemons that send to topics while daemons and the broker are killed.

The size comes from the environment, so that `scripts/soak --fleet` runs the same test with a
hundred daemons. It prints what it saw.
"""

import json
import os
import random
import shutil
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import pytest

from support.mesh.broker_process import RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import SLUG

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BROKER_BYTES = 300 * 10**6
LIFTED = "[ipc]\nrate_per_second = 1000000\nrate_burst = 1000000\n"
LOOK_SECONDS = 0.25
"""Between two looks at all inboxes: a hundred of them take a while."""
START_AT_ONCE = 4
MAX_AHEAD = 20
"""Sends of each daemon that may be under way, on average. All daemons share the machine with their
broker: if they took sends as fast as they can, nothing else would run on it."""
KILLS_BETWEEN = (0.03, 0.9)
"""Share of all inbox rows at which the first and the last kill may fall."""


class Size(NamedTuple):
    """How large the fleet is."""

    daemons: int
    sends: int
    """Of each daemon, all to a topic of its own."""
    subscribers: int
    """That receive what is sent to a topic; its sender is one more and does not."""
    daemon_kills: int
    broker_kills: int
    seed: int
    lease_ms: int
    """Of a delivery: what a killed broker had leased comes again after so long."""
    seconds: int
    """After which the fleet must be at rest."""

    @classmethod
    def from_environment(cls) -> Self:
        """CI's size, where nothing else is said."""
        ci = cls(5, 100, 3, daemon_kills=2, broker_kills=1, seed=5, lease_ms=2000, seconds=600)
        return cls(
            *(
                int(os.environ.get(f"TIDELOG_TEST_FLEET_{name.upper()}") or value)
                for name, value in ci._asdict().items()
            )
        )

    @property
    def deliveries(self) -> int:
        """Inbox rows in the end."""
        return self.daemons * self.sends * self.subscribers


class Fleet:
    """The daemons, the topics, and what kills them."""

    def __init__(self, mesh: RealMesh, size: Size) -> None:
        self.mesh = mesh
        self.size = size
        self.daemons: list[DaemonProcess] = []
        self.accepted = 0
        self.received = 0
        """Inbox rows of all daemons, when they were last looked at."""
        self.broker_bytes = 0
        """Largest resident size of any broker process."""
        self._counting = threading.Lock()
        self._victim: DaemonProcess | None = None
        """The daemon that is being killed and started again."""

    @contextmanager
    def started(self) -> "Iterator[Self]":
        """Every daemon is a member and runs; all are gone in the end."""
        with ExitStack() as stack:
            for number in range(self.size.daemons):
                daemon = self.mesh.daemon(f"d{number}", settings=LIFTED)
                self.daemons.append(stack.enter_context(daemon))
            for number in range(self.size.daemons):
                for receiver in (self.daemons[number], *self.receivers(number)):
                    self._subscribe(receiver, f"t{number}")
            with ThreadPoolExecutor(START_AT_ONCE) as starters:
                list(starters.map(DaemonProcess.start, self.daemons))
            yield self

    def receivers(self, number: int) -> list[DaemonProcess]:
        """Who receives what is sent to a topic: the next ones in the round."""
        count = len(self.daemons)
        return [
            self.daemons[(number + step) % count] for step in range(1, self.size.subscribers + 1)
        ]

    def _subscribe(self, daemon: DaemonProcess, topic: str) -> None:
        for method, path, body in (
            ("POST", f"/mesh/{SLUG}/topics", {"topic": topic}),
            ("PUT", f"/mesh/{SLUG}/topics/{topic}/subscription", {}),
        ):
            self.mesh.as_member(daemon.key, method, path, body)

    def ids(self, number: int) -> list[str]:
        """What a daemon sends."""
        return [f"d{number}-{place}" for place in range(self.size.sends)]

    # Sending.

    def send_all(self, number: int) -> None:
        """Send everything of a daemon; what has no answer is repeated under its id."""
        deadline = time.monotonic() + self.size.seconds
        for message_id in self.ids(number):
            while self._is_ahead():
                assert time.monotonic() < deadline, f"{self.received} inbox rows, and no more come"
                time.sleep(LOOK_SECONDS)
            while True:
                with suppress(OSError, HTTPException):
                    if self.daemons[number].send(f"topic:t{number}", message_id, message_id)[0] in (
                        200,
                        202,
                    ):
                        break
                self._check_is_alive(self.daemons[number])
                assert time.monotonic() < deadline, "a daemon does not come back"
                time.sleep(0.1)
            with self._counting:
                self.accepted += 1

    def _is_ahead(self) -> bool:
        under_way = self.accepted - self.received / self.size.subscribers
        return under_way > MAX_AHEAD * self.size.daemons

    def _check_is_alive(self, daemon: DaemonProcess) -> None:
        is_away = daemon is self._victim
        assert daemon.is_running or is_away, f"a daemon has ended: {daemon.log_text()[-1000:]}"

    # Killing.

    def watch(self) -> None:
        """Count inbox rows until all are there; they are only ever added."""
        deadline = time.monotonic() + self.size.seconds
        while self.received < self.size.deliveries and time.monotonic() < deadline:
            self.received = sum(self._last_row(daemon) for daemon in self.daemons)
            time.sleep(LOOK_SECONDS)

    def _last_row(self, daemon: DaemonProcess) -> int:
        path = daemon.data_dir / "inbox.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            [(last,)] = connection.execute("SELECT coalesce(max(rowid), 0) FROM inbox")
        finally:
            connection.close()
        return int(last)

    def kill_now_and_then(self) -> None:
        """Kill daemons and the broker, at random places of the way to the last inbox row."""
        size, dice = self.size, random.Random(self.size.seed)
        kills = ["daemon"] * size.daemon_kills + ["broker"] * size.broker_kills
        dice.shuffle(kills)
        places = sorted(dice.uniform(*KILLS_BETWEEN) for _ in kills)
        for kind, place in zip(kills, places, strict=True):
            self._wait_for(int(place * size.deliveries))
            if kind == "broker":
                self.note_broker_memory()
                self.mesh.server.kill()
                time.sleep(dice.random())
                self.mesh.server.start()
            else:
                self._victim = dice.choice(self.daemons)
                try:
                    self._victim.kill()
                    time.sleep(dice.random())
                    self._victim.start()
                finally:  # if it does not come back, who sends through it must not wait for it
                    self._victim = None

    def _wait_for(self, rows: int) -> None:
        deadline = time.monotonic() + self.size.seconds
        while self.received < rows:
            assert time.monotonic() < deadline, f"{self.received} inbox rows, and no more come"
            time.sleep(LOOK_SECONDS)

    def note_broker_memory(self) -> None:
        """Read the high-water mark of the broker that runs now."""
        status = Path(f"/proc/{self.mesh.server.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        self.broker_bytes = max(self.broker_bytes, int(line.split()[1]) * 1024)

    # In the end.

    def is_at_rest(self) -> bool:
        """Whether every row is sent and every delivery acknowledged."""
        return (
            self.received >= self.size.deliveries
            and self.mesh.undelivered() == 0
            and all(set(daemon.statuses()) == {"done"} for daemon in self.daemons)
        )

    def inboxes(self) -> list[Counter[str]]:
        """Ids in every inbox, with how often each is there."""
        found = []
        for daemon in self.daemons:
            path = daemon.data_dir / "inbox.db"
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            rows = connection.execute("SELECT client_message_id, body FROM inbox").fetchall()
            connection.close()
            assert all(message_id == body for message_id, body in rows)
            found.append(Counter(message_id for message_id, _ in rows))
        return found


@pytest.fixture
def size() -> Size:
    """Of the fleet in this run."""
    return Size.from_environment()


def test_a_fleet_with_kills(size: Size, tmp_path: Path) -> None:
    """Whatever dies, every receiver has every message once, and the broker stays small."""
    began = time.monotonic()
    environment = {"TIDELOG_MESH_LEASE_MS": str(size.lease_ms)}
    with (
        RealMesh(tmp_path / "broker", environment=environment, rate_limit=1_000_000) as mesh,
        Fleet(mesh, size).started() as fleet,
        ThreadPoolExecutor(size.daemons + 2) as threads,
    ):
        ready = time.monotonic()
        killing = threads.submit(fleet.kill_now_and_then)
        sending = [threads.submit(fleet.send_all, number) for number in range(size.daemons)]
        watching = threads.submit(fleet.watch)
        wait((*sending, killing, watching), size.seconds, FIRST_EXCEPTION)
        for done in (killing, *sending, watching):  # a killer that failed is why senders did
            done.result(size.seconds)
        sent = time.monotonic()
        with suppress(AssertionError):  # what is missing is reported below, with numbers
            eventually(fleet.is_at_rest, size.seconds)
        rested = time.monotonic()
        fleet.note_broker_memory()
        inboxes = fleet.inboxes()
        expected = [Counter[str]() for _ in fleet.daemons]
        for number in range(size.daemons):
            for receiver in fleet.receivers(number):
                expected[fleet.daemons.index(receiver)].update(fleet.ids(number))
        lost = sum((want - have).total() for want, have in zip(expected, inboxes, strict=True))
        doubled = sum((have - want).total() for want, have in zip(expected, inboxes, strict=True))
        [(redelivered,)] = mesh.rows("SELECT count(*) FROM {delivery_queue} WHERE attempts > 1")
        seen = {
            **size._asdict(),
            "accepted": fleet.accepted,
            "expected": size.deliveries,
            "delivered": sum(inbox.total() for inbox in inboxes),
            "lost": lost,
            "doubled": doubled,
            "delivered_again": redelivered,
            "broker_peak_mb": round(fleet.broker_bytes / 1e6, 1),
            "seconds_to": {
                "start": round(ready - began, 1),
                "send": round(sent - ready, 1),
                "rest": round(rested - ready, 1),
            },
        }
        print(f"fleet: {json.dumps(seen)}")  # noqa: T201
        assert (lost, doubled) == (0, 0)
        assert fleet.is_at_rest()
        ids = [message_id for number in range(size.daemons) for message_id in fleet.ids(number)]
        assert mesh.messages() == dict.fromkeys(ids, 1)
        assert mesh.findings() == []
        assert fleet.broker_bytes < MAX_BROKER_BYTES
    shutil.rmtree(tmp_path / "broker")
