"""The how-to of runs: its programs and its commands, as printed."""

import asyncio
import re
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from itertools import pairwise
from pathlib import Path

from tidelog.testing.process import ServerProcess

HOWTO = Path(__file__).parents[2] / "docs/howto/stop-button.md"
WAIT_SECONDS = 60.0
PROGRAMS = ("let_in.py", "agent.py", "ask.py", "stop.py")


async def test_a_run_is_stopped_as_printed(tmp_path: Path) -> None:
    """The answer grows until the second device stops it; agent and asker both say so."""
    text = HOWTO.read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    serve, commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    command = shlex.split(serve)
    assert command[:2] == ["tidelog", "serve"]
    with ServerProcess(data_dir=tmp_path / "data", arguments=tuple(command[2:])) as server:
        await asyncio.to_thread(server.start)
        for name, program in zip(PROGRAMS, programs, strict=True):
            assert f"`{name}`" in text
            moved = program.replace("8080", str(server.port))
            (tmp_path / name).write_text(moved, encoding="utf-8")

        async def start(line: str) -> Process:
            """A command as a shell would start it."""
            line = line.replace("8080", str(server.port)).partition("#")[0].removesuffix("& ")
            line = line.rstrip().removesuffix("&").replace("python ", f"{sys.executable} -u ")
            return await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", f"exec {line}", cwd=tmp_path, stdout=PIPE, stderr=PIPE
            )

        async def read(process: Process) -> str:
            assert process.stdout is not None
            return (await process.stdout.readline()).decode().rstrip("\n")

        agent, ask, stop = commands.splitlines()
        agent_process = await start(agent)
        async with asyncio.timeout(WAIT_SECONDS):
            assert await read(agent_process) == "listening"
            asking = await start(ask)
            shown = [await read(asking)]
            while "wave 5," not in shown[-1]:
                shown.append(await read(asking))
            stopping = await start(stop)
            _, errors = await stopping.communicate()
            assert stopping.returncode == 0, errors.decode()
            rest, errors = await asking.communicate()
            assert asking.returncode == 0, errors.decode()
            told = await read(agent_process)
        agent_process.terminate()
        await agent_process.communicate()
    shown += rest.decode().splitlines()
    assert shown[-1] == "ended: cancelled"
    assert told == "the run for ana ended: cancelled"
    texts = [line for line in shown[:-1] if line.startswith("wave")]
    assert shown[0] in ("counting", texts[0])
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
