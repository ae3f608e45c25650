"""A daemon for one job: joins, works, leaves nothing behind (mesh 4.6)."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from support.cli.command import run as run_command
from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import eventually
from support.mesh.scripted_broker import SLUG
from support.warm import NURSERY
from tidelog.client.mesh.blocking import BlockingMeshClient
from tidelog.daemon.continuous_integration import VARIABLES

PATIENCE_S = 60.0
NO_CI = dict.fromkeys(VARIABLES, "")
UP = ("daemon", "up", "--json")


class Job:
    """`tidelog daemon up` with an invite, as a job would run it."""

    def __init__(
        self, mesh: RealMesh, log: IO[bytes], *arguments: str, environment: dict[str, str]
    ) -> None:
        invite = mesh.call("POST", f"/mesh/{SLUG}/invites", {})["invite"]
        self._log = log
        self._process = NURSERY.start(
            [sys.executable, "-m", "tidelog", *UP, *arguments],
            env={
                **os.environ,
                **NO_CI,
                "TIDELOG_INVITE": f"{mesh.server.url}/mesh/{SLUG}#{invite}",
                **environment,
            },
            stderr=self._log,
            cwd=str(Path.cwd()),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.ended()[1]
        self.ready: dict[str, Any] = json.loads(line)
        self.data_dir = Path(self.ready["socket"]).parent

    @property
    def pid(self) -> int:
        """Of the daemon, which took the command's place."""
        return self._process.pid

    def end(self) -> tuple[int, str]:
        """SIGTERM; returns the exit code and what was logged."""
        self._process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for its end."""
        code = self._process.wait(PATIENCE_S)
        self._log.seek(0)
        return code, self._log.read().decode()

    def kill(self) -> None:
        """Whatever it does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def job(mesh: RealMesh, *arguments: str, **environment: str) -> Iterator[Job]:
    """A job's daemon; gone when the block ends."""
    with tempfile.TemporaryFile() as log:
        running = Job(mesh, log, *arguments, environment=environment)
        try:
            yield running
        finally:
            running.kill()


def names(mesh: RealMesh) -> list[str]:
    """Who is a member."""
    found = mesh.rows("SELECT name FROM mesh_member WHERE revoked_at IS NULL ORDER BY name")
    return [name for (name,) in found]


def test_a_job_joins_sends_and_leaves_nothing(tmp_path: Path, store_location: str) -> None:
    """No key on the disk, what was accepted is sent, the directory and the member are gone."""
    with (
        RealMesh(tmp_path / "broker", store_location) as mesh,
        mesh.daemon("bob") as bob,
        job(mesh, "--ephemeral", "--name", "ci") as running,
    ):
        bob.start()
        assert not (running.data_dir / "key.json").exists()
        assert running.data_dir.stat().st_mode & 0o777 == 0o700
        assert "#" not in Path(f"/proc/{running.pid}/cmdline").read_text()
        assert names(mesh) == ["bob", "ci"]
        with BlockingMeshClient(running.data_dir) as client:
            for number in range(20):
                client.send(f"dm:{bob.public_hex}", "from a job", idempotency_key=f"j-{number}")
        code, log = running.end()
        assert (code, running.data_dir.exists()) == (0, False), log
        assert names(mesh) == ["bob"]
        eventually(lambda: len(bob.inbox()) == 20, PATIENCE_S)
        with job(mesh, "--ephemeral", "--name", "ci") as next_one:
            assert next_one.ready["member_pubkey"] != running.ready["member_pubkey"]


def test_its_time_is_over(tmp_path: Path) -> None:
    """It stops by itself, in order, and takes the directory that it was given with it."""
    place = tmp_path / "job"
    with (
        RealMesh(tmp_path / "broker") as mesh,
        job(mesh, "--ephemeral", "--name", "ci", "--ttl", "1", "--data-dir", str(place)) as running,
    ):
        assert running.data_dir == place
        code, log = running.ended()
        assert (code, place.exists()) == (0, False), log
        assert "the time to live is over" in log
        assert names(mesh) == []


def test_a_message_that_could_not_be_sent_is_not_lost_in_silence(tmp_path: Path) -> None:
    """Without its broker it says how many messages end with it, and fails."""
    with (
        RealMesh(tmp_path / "broker") as mesh,
        job(mesh, "--ephemeral", "--name", "ci") as running,
    ):
        mesh.server.kill()
        with BlockingMeshClient(running.data_dir) as client:
            client.send(f"topic:{TOPIC}", "nobody hears")
        code, log = running.end()
        assert (code, running.data_dir.exists()) == (1, False), log
        assert "1 messages were accepted and not sent" in log
        assert "was not ended" in log


@pytest.mark.parametrize(
    ("arguments", "environment", "is_ephemeral"),
    [
        ((), {}, False),
        ((), {"CI": "true"}, True),
        (("--persistent",), {"CI": "true"}, False),
        (("--ephemeral",), {}, True),
    ],
)
def test_what_ci_implies(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], is_ephemeral: bool
) -> None:
    """With an invite a job's daemon is ephemeral, unless it is told to be persistent."""
    place = tmp_path / "job"
    given = ("--name", "ci", "--data-dir", str(place), *arguments)
    with RealMesh(tmp_path / "broker") as mesh, job(mesh, *given, **environment) as running:
        assert (place / "key.json").exists() is not is_ephemeral
        code, log = running.end()
        assert (code, place.exists()) == (0, not is_ephemeral), log
        assert names(mesh) == ([] if is_ephemeral else ["ci"])


def test_a_joined_directory_stays_persistent_in_ci(tmp_path: Path) -> None:
    """Whoever ran `tidelog mesh join` before has chosen where the key is."""
    with RealMesh(tmp_path / "broker") as mesh, mesh.daemon("ana") as ana:
        where = ("--broker", mesh.server.url, "--mesh", SLUG)
        found = run_command(
            *(*UP, "--data-dir", str(ana.data_dir), "--ttl", "1", *where),
            env={**os.environ, "CI": "true", "TIDELOG_INVITE": ""},
        )
        ready = json.loads(found.stdout)
        assert (found.returncode, ready["member_pubkey"]) == (0, ana.public_hex)
        assert (ana.data_dir / "key.json").exists()


def test_a_directory_that_exists_is_refused(tmp_path: Path) -> None:
    """What is removed at the end must not be somebody else's."""
    invite = "http://127.0.0.1:9/mesh/harbour#secret"
    place = ("--data-dir", str(tmp_path))
    refused = run_command(*UP, "--ephemeral", "--name", "ci", *place, "--invite", invite)
    assert (refused.returncode, tmp_path.exists()) == (2, True)
    assert "does not exist" in refused.stderr


def test_an_ephemeral_daemon_needs_an_invite() -> None:
    """It says what to give it."""
    refused = run_command(*UP, "--ephemeral", env={**os.environ, "TIDELOG_INVITE": ""})
    assert refused.returncode == 2
    assert "tidelog mesh invite" in refused.stderr
