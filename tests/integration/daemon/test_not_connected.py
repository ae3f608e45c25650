"""What the commands say and exit with while the broker cannot be reached (mesh 5)."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.command import run as run_command
from support.mesh.broker_process import RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually

WRONG_SLUG = "nowhere"


def tidelog(daemon: DaemonProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command about a daemon."""
    return run_command("daemon", *arguments, "--data-dir", str(daemon.data_dir))


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[RealMesh]:
    """A broker of its own."""
    with RealMesh(tmp_path / "broker") as started:
        yield started


def test_the_status_says_why(mesh: RealMesh) -> None:
    """Nobody listens, the key is revoked, the mesh is unknown: each with what to do about it."""
    with mesh.daemon("ana") as ana:
        ana.start()
        eventually(lambda: ana.health()["connected"])
        assert ana.health()["connection_error"] is None
        shown = tidelog(ana, "status").stdout
        assert "harbour: connected;" in shown
        mesh.server.kill()
        eventually(lambda: "is the broker running?" in (ana.health()["connection_error"] or ""))
        shown = tidelog(ana, "status").stdout
        assert "harbour: NOT connected; sends are kept;" in shown
        assert "is the broker running?" in shown
        assert json.loads(tidelog(ana, "status", "--json").stdout)["connection_error"] in shown
        mesh.server.start()
        eventually(lambda: ana.health()["connected"], 60)
        assert ana.health()["connection_error"] is None
        mesh.call("DELETE", f"/mesh/harbour/members/{ana.public_hex}", None)
        eventually(lambda: not ana.health()["connected"])
        shown = tidelog(ana, "status").stdout
        assert "4403" in shown
        assert "tidelog mesh join" in shown
    with DaemonProcess(mesh.server.url, slug=WRONG_SLUG) as lost:
        lost.start()
        eventually(lambda: "4404" in (lost.health()["connection_error"] or ""))
        assert "tidelog mesh create" in tidelog(lost, "status").stdout


def test_a_wait_that_ends_without_an_answer_exits_with_3(mesh: RealMesh) -> None:
    """The row waits, and the command says so and why; once it is done, a repeat exits with 0."""
    with mesh.daemon("ana") as ana:
        mesh.server.kill()
        ana.start()
        eventually(lambda: ana.health()["connection_error"])
        send = ("send", "topic:tides", "the tide is in", "--key", "tide-1", "--wait")
        waited = tidelog(ana, *send, "0.5")
        assert (waited.returncode, waited.stdout) == (3, "tide-1 pending\n")
        assert "is the broker running?" in waited.stderr
        assert "tidelog mesh outbox inspect tide-1" in waited.stderr
        as_json = tidelog(ana, *send, "0.5", "--json")
        assert (as_json.returncode, json.loads(as_json.stdout)["status"]) == (3, "pending")
        mesh.server.start()
        eventually(lambda: ana.outbox("tide-1")["status"] == "done", 60)
        assert tidelog(ana, *send, "30").returncode == 0
        refused = tidelog(ana, "send", "topic:nobody-made", "x", "--wait", "30")
        assert (refused.returncode, refused.stdout.split()[1]) == (1, "dead")
