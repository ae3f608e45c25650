"""The README: its examples work and its links lead somewhere."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    """Every relative link and every named test file exists."""
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"`(tests/[\w/.]+)`", README):
        assert (ROOT / target).exists(), target


def test_the_probe_example_does_what_it_says(tmp_path: Path) -> None:
    """The shell block runs as printed: committed, duplicate, conflict, one sound entry."""
    [block] = [b for b in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "PROBE" in b]
    script = (
        block.replace(".venv/bin/tidelog", str(ROOT / ".venv/bin/tidelog"))
        .replace("/tmp/tide", str(tmp_path / "tide"))
        .replace("8090", "18497")
    )
    done = subprocess.run(
        ["bash", "-euc", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TIDELOG_LOG_LEVEL": "error"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r'"status":"(\w+)"', done.stdout) == ["committed", "duplicate", "conflict"]
    assert "sound: 1 entries verified" in done.stdout
