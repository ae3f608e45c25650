"""The mesh broker killed and starved inside an accept and around a delivery (mesh 16.4).

A real `tidelog serve` on each engine, real daemons, and the invariants G1 to G8 at every end.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from support.mesh.broker_process import REAPER_MS, TOPIC, RealMesh, kinds
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.invariants import check
from support.mesh.proxy import proxied

DESTINATION = f"topic:{TOPIC}"
DAY_MS = 86_400_000
LEASE_MS = 60_000
"""Where a case moves the clock to the end of a lease: longer than any restart takes."""

INSERTS = ("K3.message", "K3.history", "K3.dedupe", "K3.delivery", "K3.mention")
"""Behind each insert of an accept. A message and its place in the history are one row of the log;
`K3.history` is behind the last row of the transaction."""

Mesh = Callable[..., AbstractContextManager[RealMesh]]


@pytest.fixture
def broker(tmp_path: Path, store_location: str) -> Mesh:
    """Makes a broker on the engine of the test."""
    return lambda **options: RealMesh(tmp_path / "broker", store_location, **options)


@pytest.fixture
def mesh(broker: Mesh) -> Iterator[RealMesh]:
    """A running broker with the usual settings."""
    with broker() as mesh:
        yield mesh


def connected(*daemons: DaemonProcess) -> None:
    """Wait until the daemons have negotiated with the broker as it runs now."""
    eventually(lambda: all(daemon.health()["connected"] for daemon in daemons))


def post(daemon: DaemonProcess, message_id: str, mentioned: DaemonProcess | None = None) -> None:
    """Give a daemon a topic message that mentions somebody."""
    fields: dict[str, Any] = {"topic": TOPIC, "message": message_id}
    if mentioned is not None:
        fields["mentions"] = [mentioned.public_hex]
    fields["client_message_id"] = message_id
    status, answer = daemon.ask("POST", "/v1/topic/post", fields)
    assert status == 202, answer
    daemon.answers.append((status, answer))


def done(daemon: DaemonProcess, message_id: str) -> dict[str, Any]:
    """Wait until a row is done; returns it."""
    eventually(lambda: daemon.rows()[message_id]["status"] == "done")
    return daemon.rows()[message_id]


def test_ft_08_the_broker_dies_around_the_limiter(broker: Mesh) -> None:
    """A send is never refused for its own earlier attempt, and costs one unit at most."""
    with (
        broker(faults="K1=kill", rate_limit=2, rate_window_ms=DAY_MS) as mesh,
        mesh.daemon("alice") as alice,
    ):
        alice.start()
        # The second pass of K2 is of the second send: the first is the retry of the first one.
        for point, faults in (("K1", "K2=kill@2"), ("K2", "")):
            post(alice, point)
            assert mesh.server.wait() == -9
            assert point not in mesh.ids()
            mesh.server.start(faults)
            assert done(alice, point)["attempts"] == 2
        assert mesh.used_units() in (None, 2)
        check(mesh, alice)


def test_ft_09_the_broker_dies_inside_the_accept(broker: Mesh) -> None:
    """Behind any insert: nothing of the send is left, no number is used, and the retry is first."""
    with (
        broker(faults=f"{INSERTS[0]}=kill") as mesh,
        proxied(mesh.server.url) as proxy,
        mesh.daemon("alice", broker_url=proxy.url) as alice,
        mesh.daemon("bob") as bob,
    ):
        alice.start()
        bob.start()
        bob.watch()
        faults = [*(f"{point}=kill@2" for point in INSERTS[1:]), ""]
        for number, (point, following) in enumerate(zip(INSERTS, faults, strict=True)):
            connected(alice, bob)
            post(alice, point, mentioned=bob)
            assert mesh.server.wait() == -9
            assert kinds(mesh) == [number] * 6, point
            mesh.server.start(following)
            done(alice, point)
            assert proxy.answers[point] == [201], "the retry is a first accept"
            assert kinds(mesh) == [number + 1] * 6, point
            # Or the next kill may find it leased and not pushed: it then comes after the next one.
            eventually(lambda: len(bob.inbox()) == number + 1)  # noqa: B023 - called at once
        check(mesh, alice, bob)
        assert [row["client_message_id"] for row in bob.inbox()] == list(INSERTS)


def test_ft_10_the_broker_dies_behind_the_commit(broker: Mesh) -> None:
    """What was committed is delivered without its sender, whose retry is then a duplicate."""
    with (
        broker(faults="K4=kill") as mesh,
        mesh.daemon("alice") as alice,
        mesh.daemon("bob") as bob,
    ):
        alice.start()
        bob.start()
        post(alice, "a", mentioned=bob)
        assert mesh.server.wait() == -9
        alice.kill()
        assert kinds(mesh) == [1] * 6
        first = mesh.ids()["a"]
        mesh.server.start()
        eventually(lambda: [row["client_message_id"] for row in bob.received()] == ["a"])
        alice.start()
        assert done(alice, "a")["broker_message_id"] == first
        assert "a: the broker had it already" in alice.log_text()
        assert kinds(mesh) == [1] * 6
        check(mesh, alice, bob)


def test_ft_11_the_broker_dies_around_a_push(broker: Mesh) -> None:
    """A lease that died with its broker is given again when it has ended, and not before."""
    lease = {"TIDELOG_MESH_LEASE_MS": str(LEASE_MS)}
    with (
        broker(faults="K5=kill", environment=lease) as mesh,
        mesh.daemon("alice") as alice,
        mesh.daemon("bob") as bob,
    ):
        alice.start()
        bob.start()
        bob.watch()
        query = (
            "SELECT status, claim_id, claimed_at, claim_expires_at FROM mesh_delivery_queue"
            " ORDER BY history_id DESC LIMIT 1"
        )
        for number, (point, following) in enumerate((("K5", "K6=kill@2"), ("K6", "")), start=1):
            connected(alice, bob)
            post(alice, point)
            assert mesh.server.wait() == -9
            [left] = mesh.rows(query)
            assert left[0] == "claimed"
            assert len(bob.received()) == (number if point == "K6" else number - 1)
            mesh.server.start(following)
            connected(bob)
            time.sleep(2 * REAPER_MS / 1000)
            assert mesh.rows(query) == [left], "nothing is given before the lease has ended"
            mesh.shift_clock(number * 2 * LEASE_MS / 3_600_000)
            eventually(lambda: mesh.undelivered() == 0)
            [(status, claim_id, claimed_at, _)] = mesh.rows(query)
            assert (status, claim_id == left[1]) == ("delivered", False)
            assert claimed_at >= left[3], "it was given to two at once"
            assert len(bob.received()) == number
        check(mesh, alice, bob)


def test_ft_19_the_broker_dies_in_mid_batch(mesh: RealMesh) -> None:
    """Ten of 32 accepted, five inside the transaction: all are there in the end, each once."""
    with (
        proxied(mesh.server.url) as proxy,
        mesh.daemon("alice", broker_url=proxy.url) as alice,
        mesh.daemon("bob") as bob,
    ):
        ids = [f"m{number:02}" for number in range(32)]
        alice.start()
        bob.start()
        mesh.server.kill()
        eventually(lambda: not alice.health()["connected"])
        for message_id in ids:
            assert alice.send(DESTINATION, message_id, message_id)[0] == 202
        proxy.admitted = 10
        mesh.server.start("K3.delivery=kill@11")
        eventually(lambda: len(proxy.answers) == 10)
        eventually(lambda: len(proxy.sends) == 32)
        proxy.call(lambda: proxy.admit(5))
        assert mesh.server.wait() == -9
        proxy.call(lambda: proxy.admit(None))
        assert len(mesh.ids()) == 10
        mesh.server.start()
        check(mesh, alice, bob)
        assert mesh.messages() == dict.fromkeys(ids, 1)
        for message_id, row in alice.rows().items():
            assert row["attempts"] == proxy.sends[message_id], message_id
            answers = (
                [201] if message_id in ids[10:] else [201, 200][: len(proxy.answers[message_id])]
            )
            assert proxy.answers[message_id] == answers
        assert {row["client_message_id"] for row in bob.received()} == set(ids)
