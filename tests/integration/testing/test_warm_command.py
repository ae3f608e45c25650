"""A warm `tidelog` for a shell: its streams, its exit code, its signals and its death."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.docs.walk import shell_path
from support.warm import NURSERY

SECONDS = 120.0


def shell(script: str, folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """A script of bash that has ended."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": shell_path(), **more},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("more", [{}, {"PYTHONOPTIMIZE": "1"}])
def test_a_command_prints_and_ends_as_any_other(folder: Path, more: dict[str, str]) -> None:
    """Where it was started, to a pipe and to a file; and it tells that something is wrong."""
    done = shell(
        "tidelog --version | cat; tidelog log stats --data-dir nowhere 2> said; echo $?",
        folder,
        **more,
    )
    version, code = done.stdout.splitlines()
    assert version.startswith("tidelog ")
    assert code == "1"
    assert f"there is no log at {folder}/nowhere/tidelog.db" in (folder / "said").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_a_command_is_ended_as_any_other(folder: Path, number: int, code: int) -> None:
    """A signal reaches it, and the shell learns of its end; killed, nothing of it is left."""
    with subprocess.Popen(
        [NURSERY.commands() / "tidelog", "serve", "--dev", "--port", "0", "--data-dir", folder],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert any("tidelog is ready" in line for line in server.stdout)
        server.send_signal(number)
        assert server.wait(SECONDS) == code
        server.stdout.read()  # ends when nobody has the pipe any more
