"""The how-to of hooks, executed as printed."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from support.docs.walk import shell_path
from tidelog.daemon.continuous_integration import VARIABLES

HOWTO = Path(__file__).parents[2] / "docs/howto/mesh-hooks.md"
WAIT_SECONDS = 120.0


def test_a_hook_answers_as_printed(folder: Path, free_port: int) -> None:
    """The script gets the message, its run is noted, and the message is in the inbox."""
    blocks = re.findall(r"```sh\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    environment = {**os.environ, "PATH": shell_path(), "TIDELOG_PORT": str(free_port)}
    for name in VARIABLES:  # hooks are off in CI, where this test runs too
        environment.pop(name, None)
    with (folder / "log").open("w") as log, (folder / "shown").open("w") as shown:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", "".join(blocks)],
            cwd=folder,
            env=environment,
            stdout=shown,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = shell.wait(WAIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = (folder / "shown").read_text()
    assert code == 0, (folder / "log").read_text()[-3000:] + text
    assert "tide-1 done" in text
    assert re.search(r"Z alice: the tide is in$", text, re.MULTILINE)
    assert re.search(r'"hook": "on-dm".*"status": "ok".*"exit_code": 0', text)
    last = text.splitlines()[-1]
    assert last.startswith('alice wrote {"cursor"')
    assert '"body":"the tide is in"' in last
