"""Commands as somebody runs them who has no repository and has set nothing."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_OURS = ("PYTHON", "TIDELOG_", "VIRTUAL_ENV", "COVERAGE", "COV_CORE")
"""Beginnings of the variables that tests, their tools and their environment set."""


def run(
    *command: str | Path,
    cwd: Path,
    seconds: float = 120.0,
    check: bool = True,
    more: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """A command that has ended.

    Args:
        command: its program and arguments.
        cwd: where it runs.
        seconds: how long it may take.
        check: whether it must succeed.
        more: variables it gets beside those of the machine.
    """
    plain = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
    ended = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**plain, **(more or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if check:
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended
