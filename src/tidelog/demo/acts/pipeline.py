"""Last act, the pipeline: Spark makes tables of the log, and checks what the others promised."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT

from tidelog.base.errors import TidelogError
from tidelog.base.own_program import own_program
from tidelog.demo.figures import Figure, counted, rows
from tidelog.demo.narration import Claim, Narrator
from tidelog.demo.stage import Stage

RUN_SECONDS = 600.0
"""For a machine that has other things to do; a quiet one needs a tenth of it."""


async def play(stage: Stage, narrator: Narrator) -> tuple[list[Figure], list[Claim]]:
    """Run the pipeline; returns the figures of the whole tour and what Spark found."""
    narrator.act("Pipeline", "the whole history is a set of open tables, and proves the rest")
    command = ("pipeline", "run", "--config", str(stage.config), "--against", stage.url)
    narrator.say("$ tidelog pipeline run")
    narrator.say(
        "(rows examined: what a check looked at, entries of the log and rows made of them; "
        "sound: none breaks its rule)"
    )
    with narrator.busy("Spark reads the log, builds every table, checks the promises"):
        await _run(stage, narrator, *command, "--output", str(stage.report))
    figures = await counted(stage, with_lake=True)
    verdicts = rows(stage, "verdict", ["check", "findings"])
    claims = [
        Claim(f"check `{row['check']}`: nothing found", row["findings"], 0)
        for row in sorted(verdicts, key=lambda row: str(row["check"]))
    ]
    claims += [
        Claim(f"{each.what}: the lake has what the log has", each.lake, each.log)
        for each in figures
    ]
    return figures, claims


async def _run(stage: Stage, narrator: Narrator, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *own_program("tidelog", *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=stage.home,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert process.stdout is not None  # noqa: S101 - asked for
    lines = []
    try:
        async with asyncio.timeout(RUN_SECONDS):
            async for line in process.stdout:
                lines.append(line.decode("utf-8", "replace").rstrip())
                narrator.say(lines[-1])
            code = await process.wait()
    except TimeoutError:
        raise TidelogError(
            f"the pipeline was not done after {RUN_SECONDS:.0f} s, because the machine is busy. "
            "Play the demo again when it is not, or without Spark: tidelog demo --no-pipeline"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        raise TidelogError("the pipeline failed:\n" + "\n".join(lines[-20:]))
