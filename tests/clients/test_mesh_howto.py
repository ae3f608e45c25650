"""The how-to of mesh: its ten commands, its topic, its curl lines and its program, as printed."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from support.docs.walk import shell_path

HOWTO = Path(__file__).parents[2] / "docs/howto/mesh-two-daemons.md"
WAIT_SECONDS = 120.0


def test_two_daemons_talk_as_printed(folder: Path, free_port: int) -> None:
    """Ten commands from nothing to an answer; a topic, refused at first; then curl; then Python."""
    text = HOWTO.read_text(encoding="utf-8")
    commands, topic, curls = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(commands.splitlines()) == 10
    (folder / "program.py").write_text(program, encoding="utf-8")
    curls = curls if shutil.which("curl") else ""
    script = commands + topic + curls + "python -u program.py\n"
    environment = {**os.environ, "PATH": shell_path(), "TIDELOG_PORT": str(free_port)}
    with (folder / "log").open("w") as log:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            assert shell.stdout is not None
            lines = []
            for line in shell.stdout:
                lines.append(line.rstrip())
                if "hour 3" in line:
                    break
            code = shell.wait(WAIT_SECONDS)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            if shell.stdout is not None:
                shell.stdout.close()
    shown = "\n".join(lines)
    assert code == 0, (folder / "log").read_text() + shown
    assert "tide-1 done" in lines
    assert re.search(r"Z alice: the tide is in$", shown, re.MULTILINE)
    assert re.search(r"Z bob: seen$", shown, re.MULTILINE)
    assert "alert-1 dead" in lines
    assert "exit code 1" in lines
    assert "403 not_subscribed" in shown
    assert "alert-2 done" in lines
    assert "alice: high water" in lines, "bob has what was sent to the topic"
    assert "alice: hour 1" in lines
    assert lines[-1] == "alice: hour 3"
    if shutil.which("curl"):
        assert '"client_message_id":"tide-2"' in shown
