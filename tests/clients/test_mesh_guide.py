"""The operator's guide of the outbox, executed: every command block, in one shell, as printed."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/operations/mesh-outbox.md"
WAIT_SECONDS = 300.0
"""Thirty commands, each of which starts Python; a busy machine takes seconds for one."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tdl-") as name:
        yield Path(name)


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_walk_through_the_states(folder: Path) -> None:
    """Each command does what the text before it says, and a row is seen in every lasting state."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    script = "".join(f"echo 'block {number}'\n{block}" for number, block in enumerate(blocks))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TIDELOG_PORT": str(free_port())}
    with (folder / "log").open("w") as log, (folder / "shown").open("w") as shown:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment,
            stdout=shown,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = shell.wait(WAIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):  # all of it has ended
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = (folder / "shown").read_text()
    assert code == 0, (folder / "log").read_text()[-3000:] + text
    start, failed, mended, patched, pruned, away = re.split(
        r"^block \d\n", text, flags=re.MULTILINE
    )[1:]
    assert "alice is " in start
    assert "disk-1 dead\nexit code 1" in failed
    assert "404 topic_not_found" in failed
    assert "disk-1-again done" in mended
    assert re.search(r"aborted +disk-1 ", mended)
    assert "is queued as disk-2-again" in patched
    assert " is aborted" in patched
    assert re.search(r"^\d+ rows emptied$", pruned, re.MULTILINE)
    assert {line.split()[1] for line in pruned.splitlines()[1:]} >= {"done", "aborted"}
    assert "sound: every row has its counterpart" in away
    assert re.search(r"pending +disk-4", away)
    assert "NOT connected; sends are kept; 1 waiting" in away
    assert "the outbox is sound; nothing was done" in away
