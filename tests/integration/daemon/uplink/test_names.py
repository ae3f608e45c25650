"""Sends to a member by its name, through real processes (mesh 3.2)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.mesh.broker_process import RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[RealMesh]:
    """A broker of its own."""
    with RealMesh(tmp_path / "broker") as started:
        yield started


@pytest.fixture
def ana(mesh: RealMesh) -> Iterator[DaemonProcess]:
    """Who sends."""
    with mesh.daemon("ana") as daemon:
        yield daemon


def revoke(mesh: RealMesh, public_hex: str) -> None:
    """End a membership; the name is free."""
    mesh.call("DELETE", f"/mesh/harbour/members/{public_hex}", None)


def connect(daemon: DaemonProcess) -> None:
    """Start it and wait until the broker has it."""
    daemon.start()
    eventually(lambda: daemon.health()["connected"])


def test_a_repeat_has_its_rows_answer_whatever_the_name_means_now(
    mesh: RealMesh, ana: DaemonProcess
) -> None:
    """Nobody has the name, somebody else has it, the broker is away: the row is what counts."""
    bob = mesh.member("bob")
    connect(ana)
    assert ana.send("dm:bob", "the tide is in", "tide-1")[0] == 202
    eventually(lambda: ana.outbox("tide-1")["status"] == "done")
    row = ana.outbox("tide-1")
    assert (row["to"], row["destination_ref"]) == ("dm:bob", bob.public_hex)
    revoke(mesh, bob.public_hex)
    ana.kill()
    connect(ana)
    nobody = ana.send("dm:bob", "the tide is in", "tide-1")
    mesh.member("bob")
    another = ana.send("dm:bob", "the tide is in", "tide-1")
    assert ana.ask("POST", "/v1/outbox/prune", {"confirm": True})[1] == {"pruned": 1}
    mesh.server.kill()
    away = ana.send("bob", "the tide is in", "tide-1")
    for status, answer in (nobody, another, away):
        assert (status, answer["duplicate"]) == (200, True)
        assert answer["broker_message_id"] == row["broker_message_id"]
    status, answer = ana.send("dm:bob", "the tide is out", "tide-1")
    assert (status, answer["conflict"]) == (409, "outbox_done_fingerprint_mismatch")
    status, answer = ana.send("dm:carol", "the tide is in", "tide-1")
    assert (status, answer["conflict"]) == (409, "outbox_done_fingerprint_mismatch")
    status, answer = ana.send("dm:carol", "the tide is in", "tide-2")
    assert (status, answer["error"]) == (404, "destination_unresolvable")


def test_a_member_who_joined_again_is_reached_under_the_new_key(
    mesh: RealMesh, ana: DaemonProcess
) -> None:
    """What the daemon has heard of the old one does not count."""
    connect(ana)
    with mesh.daemon("bob") as old:
        connect(old)
        old.send(f"dm:{ana.public_hex}", "hello", "hello-1")
        eventually(ana.inbox)
        assert ana.send("dm:bob", "the tide is in", "tide-1")[0] == 202
        eventually(old.inbox)
        revoke(mesh, old.public_hex)
    with mesh.daemon("bob") as new:
        assert ana.send("dm:bob", "the tide is out", "tide-2")[0] == 202
        connect(new)
        [received] = eventually(new.inbox)
    assert received["client_message_id"] == "tide-2"


def test_names_are_kept_for_when_the_broker_is_away(mesh: RealMesh, ana: DaemonProcess) -> None:
    """Also over a kill of the daemon: what was looked up, listed, and heard of."""
    keys = {name: mesh.member(name).public_hex for name in ("bob", "carol")}
    connect(ana)
    assert ana.send("dm:bob", "the tide is in", "tide-1")[0] == 202
    ana.kill()
    mesh.server.kill()
    ana.start()
    assert ana.send("dm:bob", "the tide is out", "tide-2")[0] == 202
    assert ana.outbox("tide-2")["destination_ref"] == keys["bob"]
    assert ana.send("dm:carol", "the tide is out", "tide-3")[0] == 404
    mesh.server.start()
    eventually(lambda: ana.health()["connected"])
    assert len(ana.ask("GET", "/v1/peers")[1]["items"]) == 3
    ana.kill()
    mesh.server.kill()
    ana.start()
    assert ana.send("dm:carol", "the tide is out", "tide-3")[0] == 202
    assert ana.outbox("tide-3")["destination_ref"] == keys["carol"]


def test_a_failed_look_up_is_not_remembered(mesh: RealMesh, ana: DaemonProcess) -> None:
    """Neither that the broker was away, nor that nobody had the name."""
    mesh.server.kill()
    ana.start()
    assert ana.send("dm:bob", "the tide is in", "tide-1")[0] == 404
    mesh.server.start()
    eventually(lambda: ana.health()["connected"])
    assert ana.send("dm:bob", "the tide is in", "tide-1")[0] == 404
    mesh.member("bob")
    assert ana.send("dm:bob", "the tide is in", "tide-1")[0] == 202
