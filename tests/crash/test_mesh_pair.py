"""Real daemons and the real broker, killed on the way from a send to an inbox (FAULTS.md)."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import pytest

from support.mesh_daemon import DaemonProcess, eventually
from support.mesh_proxy import proxied
from support.mesh_real import TOPIC, RealMesh

TIMEOUT_MS = 1000
FAST = f"[uplink]\nrequest_timeout_ms = {TIMEOUT_MS}\n"
DESTINATION = f"topic:{TOPIC}"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[RealMesh]:
    """A running broker."""
    with RealMesh(tmp_path / "broker") as mesh:
        yield mesh


def settled(daemon: DaemonProcess, mesh: RealMesh, ids: set[str]) -> None:
    """Wait until all is done, then check G1 to G4 and G8."""
    eventually(lambda: set(daemon.statuses()) <= {"done"} and daemon.rows().keys() == ids, 40)
    stored = mesh.ids()
    assert {key: row["broker_message_id"] for key, row in daemon.rows().items()} == stored
    assert mesh.messages() == dict.fromkeys(ids, 1)
    mesh.check()


@pytest.mark.parametrize("point", ["D1", "D2", "D3", "D4", "D5"])
def test_a_sender_killed_anywhere_sends_once(mesh: RealMesh, point: str) -> None:
    """FT-01 to FT-05: whichever step the daemon dies at, a repeat ends in one message."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        bob.start()
        alice.start(f"{point}=kill")
        with suppress(OSError, HTTPException):
            alice.send(DESTINATION, "high", "a")
        assert alice.wait() == -9
        is_sent = point in ("D4", "D5")
        first = eventually(lambda: mesh.ids().get("a")) if is_sent else None
        alice.start()
        assert (point == "D1") == ("a" not in alice.rows())
        assert alice.send(DESTINATION, "high", "a")[0] in (200, 202)
        settled(alice, mesh, {"a"})
        if is_sent:
            assert alice.rows()["a"]["broker_message_id"] == first
        eventually(lambda: [message["body"] for message in bob.inbox()] == ["high"])
        eventually(lambda: mesh.undelivered() == 0)


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
        settled(alice, mesh, ids)


@pytest.mark.parametrize("point", ["R1", "R2", "R3"])
def test_ft_12_a_receiver_killed_around_its_commit(mesh: RealMesh, point: str) -> None:
    """One row, one acknowledgement, whatever died in between."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        alice.start()
        bob.start(f"{point}=kill")
        eventually(lambda: bob.health()["connected"])
        alice.send("dm:bob", "high", "a")
        assert bob.wait() == -9
        assert mesh.undelivered() == 1
        bob.start()
        eventually(lambda: mesh.undelivered() == 0, 20)
        assert [message["client_message_id"] for message in bob.inbox()] == ["a"]
        settled(alice, mesh, {"a"})


def test_ft_13_lost_answers(mesh: RealMesh) -> None:
    """Two hundred sends whose first five answers are lost: one message each, then duplicates."""
    with (
        proxied(mesh.server.url) as proxy,
        mesh.daemon("alice", settings=FAST, broker_url=proxy.url) as alice,
    ):
        proxy.is_lost = lambda message_id: len(proxy.answers[message_id]) <= 5
        alice.start()
        ids = {f"m{number:03}" for number in range(200)}
        for message_id in sorted(ids):
            alice.send(DESTINATION, message_id, message_id)
        eventually(lambda: alice.statuses().count("done") == 200, 150)
        settled(alice, mesh, ids)
        for message_id in ids:
            assert proxy.answers[message_id] == [201, 200, 200, 200, 200, 200]
            for number, (earlier, later) in enumerate(pairwise(proxy.arrivals[message_id])):
                assert later - earlier >= 0.5 * 2**number * 0.8


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
        settled(alice, mesh, ids)
        for message_id, row in alice.rows().items():
            assert row["attempts"] == proxy.sends[message_id]
            for earlier, later in pairwise(proxy.arrivals[message_id]):
                assert later - earlier >= TIMEOUT_MS / 1000 - 0.05, "two attempts at once"


def test_ft_19_the_broker_dies_in_mid_batch(mesh: RealMesh) -> None:
    """What was under way is sent again when the broker is back; every message is there once."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        alice.start()
        bob.start()
        eventually(lambda: alice.health()["connected"] and bob.health()["connected"])
        ids = {f"m{number:03}" for number in range(200)}
        for number, message_id in enumerate(sorted(ids)):
            alice.send(DESTINATION, message_id, message_id)
            if number in (60, 140):
                mesh.server.kill()
                mesh.server.start()
        settled(alice, mesh, ids)
        eventually(lambda: len(bob.inbox()) == 200, 40)
        assert {message["client_message_id"] for message in bob.inbox()} == ids
        eventually(lambda: mesh.undelivered() == 0, 20)


def test_a_message_waits_for_a_member_that_is_away(mesh: RealMesh) -> None:
    """A daemon that starts later gets what was sent while it was not there, in order."""
    with mesh.daemon("alice") as alice, mesh.daemon("bob") as bob:
        alice.start()
        ids = [f"m{number:02}" for number in range(40)]
        for message_id in ids:
            assert alice.send("dm:bob", message_id, message_id)[0] == 202
        settled(alice, mesh, set(ids))
        bob.start()
        eventually(lambda: len(bob.inbox()) == 40, 20)
        assert [message["body"] for message in bob.inbox()] == ids
        eventually(lambda: mesh.undelivered() == 0, 20)
