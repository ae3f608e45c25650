"""`tidelog top` against a live server with traffic."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.dashboard.stage import Stage
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 30.0

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def top(url: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process that is gone when the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidelog", "top", "--url", url, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run(url: str, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code and output of a command that ends by itself."""
    async with asyncio.timeout(WAIT_SECONDS), top(url, *arguments) as process:
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()


async def next_sample(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next line of `--json`."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_SECONDS):
        sample: dict[str, Any] = json.loads(await process.stdout.readline())
        return sample


async def test_traffic_is_seen(stage: Stage) -> None:
    """Entries, commits, latency and connections of an interval with traffic are those of it."""
    async with stage.traffic():
        code, out, err = await run(stage.server.url, "--once", "--json", "--interval", "3")
    assert (code, err) == (0, "")
    [line] = out.splitlines()
    sample = json.loads(line)
    assert sample["up"]
    assert sample["ready"]
    assert sample["seconds"] > 2.5
    assert sample["entries"]["per_second"] > 0
    assert sample["commits"]["total"] >= sample["commits"]["per_second"] * sample["seconds"] - 0.01
    assert 0 < sample["commit"]["p50_ms"] <= sample["commit"]["p99_ms"]
    assert sample["decide"]["p50_ms"] > 0
    assert sample["connections"] == {"channels": 1, "mesh": 2, "sync": 2}
    assert sample["mesh_deliveries"]["pushed"]["total"] >= 1
    assert sample["mesh_deliveries"]["acknowledged"]["total"] >= 1
    assert sample["http"]["200"]["per_second"] > 0
    assert sample["resident_bytes"] > 10_000_000
    assert sample["cpu_percent"] > 0


async def test_it_is_readable(stage: Stage) -> None:
    """`--once` prints one view and ends."""
    code, out, _ = await run(stage.server.url, "--once", "--interval", "0.2")
    assert code == 0
    for wanted in (stage.server.url, "ready", "commit p50 / p99", "mesh deliveries", "refusals"):
        assert wanted in out, wanted


async def test_nobody_there_is_said() -> None:
    """Exit code 1 and what to do, without a traceback."""
    code, out, err = await run("http://127.0.0.1:1", "--once")
    assert (code, out) == (1, "")
    assert "tidelog serve" in err
    assert "Traceback" not in err


async def test_a_restart_is_seen(tmp_path: Path) -> None:
    """The stream goes on over a kill: down while nobody answers, then a restarted process."""
    with ServerProcess(data_dir=tmp_path, arguments=("--dev",)) as server:
        await asyncio.to_thread(server.start)
        async with top(server.url, "--json", "--interval", "0.2") as process:
            assert (await next_sample(process))["up"]
            await asyncio.to_thread(server.kill)
            while (sample := await next_sample(process))["up"]:
                pass
            assert "does not answer" in sample["error"]
            await asyncio.to_thread(server.start)
            while not (sample := await next_sample(process))["up"]:
                pass
            assert sample["restarted"]
            assert not (await next_sample(process))["restarted"]
