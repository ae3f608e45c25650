"""Real daemons and the real broker on each engine, from a send to an inbox (mesh 16.4).

Every case ends with the invariants G1 to G8, read from the databases.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.invariants import at_rest, check
from support.mesh.proxy import MeshProxy, proxied
from tidelog.client.mesh.client import BEGINNING

TIMEOUT_MS = 400
FAST = f"[uplink]\nrequest_timeout_ms = {TIMEOUT_MS}\n"
LATE_SECONDS = 0.25
"""How much later than it was sent a frame may be seen by a proxy that shares two cores."""
DESTINATION = f"topic:{TOPIC}"
SENDS = 200
SENDS_ON_POSTGRESQL = min(SENDS, int(os.environ.get("TIDELOG_TEST_SOAK_ROUNDS", "50")))
"""As many in `scripts/soak`; what the number of them can show, one engine shows."""


@pytest.fixture
def mesh(tmp_path: Path, store_location: str) -> Iterator[RealMesh]:
    """A running broker on each engine."""
    with RealMesh(tmp_path / "broker", store_location) as mesh:
        yield mesh


def settled(mesh: RealMesh, ids: set[str], *daemons: DaemonProcess) -> None:
    """The invariants hold, and what the first daemon sent is there once."""
    check(mesh, *daemons)
    rows = daemons[0].rows()
    assert {key: row["broker_message_id"] for key, row in rows.items()} == mesh.ids()
    assert mesh.messages() == dict.fromkeys(ids, 1)


def test_ft_01_to_05_a_sender_killed_anywhere_sends_once(mesh: RealMesh) -> None:
    """Whichever step the daemon dies at, a repeat ends in one message and one inbox row."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        bob.start()
        bob.watch()
        points = ("D1", "D2", "D3", "D4", "D5")
        for point in points:
            alice.start(f"{point}=kill")
            eventually(lambda: alice.health()["connected"])
            with suppress(OSError, HTTPException):
                alice.send(DESTINATION, point, point)
            assert alice.wait() == -9
            is_sent = point in ("D4", "D5")
            first = eventually(partial(stored_as, mesh, point)) if is_sent else None
            alice.start()
            assert (point == "D1") == (point not in alice.rows())
            assert alice.send(DESTINATION, point, point)[0] in (200, 202)
            eventually(lambda: set(alice.statuses()) == {"done"})
            if is_sent:
                assert alice.rows()[point]["broker_message_id"] == first
                assert f"{point}: the broker had it already" in alice.log_text()
            alice.kill()
        settled(mesh, set(points), alice, bob)
        assert [row["client_message_id"] for row in bob.received()] == list(points)
        assert mesh.used_units() in (None, len(points))


def test_ft_07_repeated_death_during_recovery(mesh: RealMesh) -> None:
    """A hundred attempts that were under way are repeated, each into its one message."""
    with mesh.daemon("alice") as alice:
        mesh.server.kill()
        alice.start()
        ids = {f"m{number}" for number in range(100)}
        for message_id in sorted(ids):
            assert alice.send(DESTINATION, message_id, message_id)[0] == 202
        alice.terminate()
        with sqlite3.connect(alice.data_dir / "outbox.db") as connection:
            connection.execute("UPDATE outbox SET status = 'inflight', attempts = 1")
        connection.close()
        mesh.server.start()
        for _ in range(5):
            alice.launch("D7=kill")
            assert alice.wait() == -9
        alice.start()
        settled(mesh, ids, alice)


def test_ft_12_a_receiver_killed_around_its_commit(mesh: RealMesh) -> None:
    """One row, one acknowledgement, one event at most, whatever died in between."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        alice.start()
        points = ("R1", "R2", "R3")
        for number, point in enumerate(points):
            bob.start(f"{point}=kill")
            bob.watch()
            eventually(lambda: bob.health()["connected"])
            alice.send("dm:bob", point, point)
            assert bob.wait() == -9
            assert mesh.undelivered() == 1
            assert len(bob.received()) == number + (point != "R1")
            mesh.server.send_signal(signal.SIGSTOP)  # nothing comes before somebody watches
            bob.start()
            bob.watch()
            mesh.server.send_signal(signal.SIGCONT)
            eventually(lambda: mesh.undelivered() == 0)
            told = int(point == "R1")  # later points: the row was there already
            eventually(partial(is_told, bob, point, told))
            bob.kill()
        settled(mesh, set(points), alice, bob)
        bob.start()
        assert len(bob.stream(BEGINNING, 3)) == 3, "a replay has every event"


def is_told(daemon: DaemonProcess, message_id: str, times: int) -> bool:
    """Whether there were so many live events of a message."""
    return [event["client_message_id"] for _, event in daemon.events].count(message_id) == times


def test_ft_13_lost_answers(tmp_path: Path, postgresql_url: str) -> None:
    """Two hundred sends whose first five answers are lost: one message each, then duplicates.

    Both engines at once: the case is made of waiting.
    """
    pairs: list[tuple[RealMesh, MeshProxy, DaemonProcess, set[str]]] = []
    with ExitStack() as stack:
        for name, store, count in (
            ("sqlite", None, SENDS),
            ("postgresql", postgresql_url, SENDS_ON_POSTGRESQL),
        ):
            ids = {f"m{number:03}" for number in range(count)}
            mesh = stack.enter_context(RealMesh(tmp_path / name, store))
            proxy = stack.enter_context(proxied(mesh.server.url))
            proxy.is_lost = partial(is_early, proxy)
            alice = mesh.daemon("alice", settings=FAST, broker_url=proxy.url)
            stack.enter_context(alice).start()
            for message_id in sorted(ids):
                alice.send(DESTINATION, message_id, message_id)
            pairs.append((mesh, proxy, alice, ids))
        for mesh, proxy, alice, ids in pairs:
            at_rest(mesh, alice, timeout_seconds=150)
            settled(mesh, ids, alice)
            assert mesh.used_units() in (None, len(ids))
            check_delays(proxy, ids)


def stored_as(mesh: RealMesh, message_id: str) -> str | None:
    """The broker's id of a message, once it has it."""
    return mesh.ids().get(message_id)


def is_early(proxy: MeshProxy, message_id: str) -> bool:
    """Whether an answer is one of the first five to a send."""
    return len(proxy.answers[message_id]) <= 5


def check_delays(proxy: MeshProxy, ids: set[str]) -> None:
    """Six attempts of each id, the second half a second after the first, and ever more slowly.

    There may be more: on a busy machine the sixth answer can miss its timeout too.
    """
    gaps: list[list[float]] = [[] for _ in range(5)]
    for message_id in ids:
        first, *others = proxy.answers[message_id]
        assert (first, set(others)) == (201, {200})
        assert len(others) >= 5
        for number, (earlier, later) in enumerate(pairwise(proxy.arrivals[message_id][:6])):
            gaps[number].append(later - earlier)
    for number, found in enumerate(gaps):
        delay = 0.5 * 2**number
        # A busy proxy reads an attempt late; the daemon's timeout comes on top of its delay.
        assert min(found) >= delay * 0.8 - LATE_SECONDS, number
        assert median(found) >= delay * 0.8, number
        assert min(found) <= delay * 1.2 + TIMEOUT_MS / 1000 + 1.0, number


def test_ft_18_one_way_black_hole(mesh: RealMesh) -> None:
    """Three timeouts of silence, then every late answer at once: nothing is counted twice."""
    with (
        proxied(mesh.server.url) as proxy,
        mesh.daemon("alice", settings=FAST, broker_url=proxy.url) as alice,
    ):
        alice.start()
        eventually(lambda: alice.health()["connected"])
        proxy.is_holding = True
        ids = {f"m{number}" for number in range(20)}
        for message_id in sorted(ids):
            alice.send(DESTINATION, message_id, message_id)
        time.sleep(3 * TIMEOUT_MS / 1000)
        proxy.call(proxy.let_go)
        settled(mesh, ids, alice)
        for message_id, row in alice.rows().items():
            assert row["attempts"] == proxy.sends[message_id]
            for earlier, later in pairwise(proxy.arrivals[message_id]):
                assert later - earlier >= TIMEOUT_MS / 1000 - 0.05, "two attempts at once"


def test_a_message_waits_for_a_member_that_is_away(mesh: RealMesh) -> None:
    """A daemon that starts later gets what was sent while it was not there, in order."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        alice.start()
        ids = [f"m{number:02}" for number in range(40)]
        for message_id in ids:
            assert alice.send("dm:bob", message_id, message_id)[0] == 202
        check(mesh, alice)
        bob.start()
        eventually(lambda: len(bob.received()) == 40)
        assert [message["body"] for message in bob.inbox()] == ids
        settled(mesh, set(ids), alice, bob)
