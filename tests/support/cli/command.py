"""The `tidelog` command as a process of its own, to its end."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.warm import NURSERY

COMMAND_SECONDS = 60.0
"""Bound of one command; the slowest ones take a few seconds on a machine that is not busy."""


def run(
    *arguments: str,
    module: str = "tidelog",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    is_plain_user: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """How it ended, as `subprocess.run` tells it.

    Args:
        arguments: of the command.
        module: what Python is to run: `tidelog` or `tidelog.daemon`.
        cwd: where it runs; where the tests do if None.
        env: its whole environment; that of the tests if None.
        check: whether another exit code than 0 fails the test.
        is_plain_user: whether files keep it out as their modes say, also if it is root's.
    """
    command = [sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryFile() as errors:
        process = NURSERY.start(
            command,
            env=os.environ if env is None else env,
            stderr=errors,
            cwd=str(cwd or Path.cwd()),
            is_plain_user=is_plain_user,
        )
        assert process.stdout is not None
        overdue = threading.Timer(COMMAND_SECONDS, process.send_signal, [9])
        overdue.start()
        try:
            with process.stdout:
                output = process.stdout.read()
            code = process.wait()
        finally:
            overdue.cancel()
        errors.seek(0)
        told = errors.read().decode()
    assert code == 0 or not check, told
    return subprocess.CompletedProcess(command, code, output, told)


async def tidelog(*arguments: str) -> dict[str, Any]:
    """What `tidelog ... --json` prints when it succeeds."""
    ended = await asyncio.to_thread(run, *arguments, "--json", check=True)
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
