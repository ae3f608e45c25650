"""Two real daemons with one key, on one node or on two (mesh 9.6)."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cli.command import run as run_command
from support.mesh.broker_process import ADMIN_TOKEN, TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.proxy import proxied
from support.mesh.scripted_broker import SLUG

PATIENCE_S = 60.0


@contextmanager
def clone(mesh: RealMesh, original: DaemonProcess) -> Iterator[DaemonProcess]:
    """A daemon with the same key, at the last node that there is."""
    with DaemonProcess(mesh.beside()[-1], key=original.key) as copy:
        yield copy


def connect(daemon: DaemonProcess) -> None:
    """Start it and wait until it is connected."""
    daemon.start()
    eventually(lambda: daemon.health()["connected"], PATIENCE_S)


def test_the_older_daemon_exits_and_says_why(tmp_path: Path, store_location: str) -> None:
    """By default the newest stays, and what the older one had accepted stays in its outbox."""
    with (
        RealMesh(tmp_path / "broker", store_location) as mesh,
        mesh.daemon("ana") as older,
        clone(mesh, older) as newer,
    ):
        connect(older)
        assert older.send(f"topic:{TOPIC}", "from the older one", "m-0")[0] == 202
        connect(newer)
        assert older.wait(PATIENCE_S) == 4
        assert "m-0" in older.rows()
        assert "replaced_by_newer_connection" in older.log_text()
        assert "allow_concurrent" in older.log_text()
        assert newer.send(f"topic:{TOPIC}", "from the newest", "m-1")[0] == 202
        eventually(lambda: newer.outbox("m-1")["status"] == "done", PATIENCE_S)
        assert "member_concurrent_connection" in mesh.log_text()


def test_the_newer_daemon_exits_and_says_why(tmp_path: Path, store_location: str) -> None:
    """Where the oldest stays, the newer one gives up; when the oldest has gone, it may come."""
    policy = "prefer_oldest"
    with (
        RealMesh(tmp_path / "broker", store_location, clone_concurrency_policy=policy) as mesh,
        mesh.daemon("ana") as older,
        clone(mesh, older) as newer,
    ):
        connect(older)
        newer.start()
        assert newer.wait(PATIENCE_S) == 5
        assert "member_already_connected" in newer.log_text()
        assert older.health()["connected"]
        assert "member_concurrent_connection" in mesh.log_text()
        assert older.terminate() == 0
        connect(newer)


def test_both_daemons_stay(tmp_path: Path, store_location: str) -> None:
    """The command allows several; a message to their member reaches one of them, once."""
    with (
        RealMesh(tmp_path / "broker", store_location) as mesh,
        mesh.daemon("ana") as older,
        mesh.daemon("ben") as ben,
        clone(mesh, older) as newer,
    ):
        shown = run_command(
            *("mesh", "settings", SLUG, "--json", "--url", mesh.server.url),
            *("--clone-concurrency-policy", "allow_concurrent"),
            env={**os.environ, "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
            check=True,
        )
        assert json.loads(shown.stdout)["clone_concurrency_policy"] == "allow_concurrent"
        for daemon in (older, newer, ben):
            connect(daemon)
        for number in range(20):
            ben.send(f"dm:{older.public_hex}", "to whoever is there", f"m-{number}")
        eventually(lambda: len({*ids(older), *ids(newer)}) == 20, PATIENCE_S)
        assert older.health()["connected"]
        assert newer.health()["connected"]
        assert "member_concurrent_connection" in mesh.log_text()


def ids(daemon: DaemonProcess) -> list[str]:
    """What it has received."""
    return [message["client_message_id"] for message in daemon.inbox()]


def test_a_daemon_comes_back_over_its_own_half_open_connection(
    tmp_path: Path, store_location: str
) -> None:
    """Although the oldest stays: the broker knows it by its instance, and it goes on."""
    policy = "prefer_oldest"
    with (
        RealMesh(tmp_path / "broker", store_location, clone_concurrency_policy=policy) as mesh,
        proxied(mesh.server.url) as proxy,
        mesh.daemon("ana", broker_url=proxy.url) as ana,
    ):
        connect(ana)
        proxy.call(proxy.lose)
        assert ana.send(f"topic:{TOPIC}", "over the new connection", "m-1")[0] == 202
        eventually(lambda: ana.outbox("m-1")["status"] == "done", PATIENCE_S)
        assert ana.is_running
        assert "member_concurrent_connection" not in mesh.log_text()
