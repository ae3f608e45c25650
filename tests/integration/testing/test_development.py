"""`tidelog serve --dev`: what it opens, and to whom."""

import subprocess
import sys
from pathlib import Path

from tidelog.testing.process import ServerProcess


def test_development_serves_the_known_app_and_says_so(tmp_path: Path) -> None:
    """The development app answers, its messages can change, and the log says it loudly."""
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as server:
        server.start()
        assert "DEVELOPMENT MODE" in server.log_text()
    with ServerProcess(data_dir=tmp_path / "other") as server:
        server.start()
        assert "DEVELOPMENT MODE" not in server.log_text()


def test_development_stays_on_this_machine(tmp_path: Path) -> None:
    """A secret that everybody knows is not served to everybody."""
    command = [sys.executable, "-m", "tidelog", "serve", "--dev", "--host", "0.0.0.0"]
    ended = subprocess.run(
        [*command, "--data-dir", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode != 0
    assert "listens on this machine" in ended.stderr
