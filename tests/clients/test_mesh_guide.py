"""The operator's guide of the outbox, executed: every command block, in one shell, as printed."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from support.docs.walk import shell_path

GUIDE = Path(__file__).parents[2] / "docs/operations/mesh-outbox.md"
WAIT_SECONDS = 300.0
"""Thirty commands, each of which starts Python; a busy machine takes seconds for one."""


def test_the_walk_through_the_states(folder: Path, free_port: int) -> None:
    """Each command does what the text before it says, and a row is seen in every lasting state."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    script = "".join(f"echo 'block {number}'\n{block}" for number, block in enumerate(blocks))
    environment = {**os.environ, "PATH": shell_path(), "TIDELOG_PORT": str(free_port)}
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
