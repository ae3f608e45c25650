"""The `tidelog` command as a process of its own."""

import asyncio
import json
import sys
from typing import Any

COMMAND_SECONDS = 60.0
"""Bound of one command; the slowest ones take a few seconds on a machine that is not busy."""


async def tidelog(*arguments: str) -> dict[str, Any]:
    """What `tidelog ... --json` prints when it succeeds."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidelog", *arguments, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(COMMAND_SECONDS):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    answer: dict[str, Any] = json.loads(output)
    return answer
