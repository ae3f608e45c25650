"""Last act, the pipeline: Spark makes tables of the log, and checks what the others promised."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import Counter
from typing import Any, NamedTuple

from tidelog.base.errors import TidelogError
from tidelog.config.schema import SCHEMA
from tidelog.demo.narration import Claim, Narrator
from tidelog.demo.stage import Stage
from tidelog.store import open_store

RUN_SECONDS = 600.0
"""For a machine that has other things to do; a quiet one needs a tenth of it."""


class Figure(NamedTuple):
    """One number of the summary, counted twice."""

    what: str
    log: int
    """As the store says, which is what `tidelog log stats` prints."""
    lake: int
    """As the tables say."""


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
    figures = await _figures(stage)
    verdicts = _rows(stage, "verdict", ["check", "findings"])
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
        *(sys.executable, "-m", "tidelog", *arguments),
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
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        raise TidelogError("the pipeline failed:\n" + "\n".join(lines[-20:]))


async def _figures(stage: Stage) -> list[Figure]:
    """How much of everything there is: in the store, and in the lake."""
    store = await open_store(
        SCHEMA, str(stage.data_dir / "tidelog.db"), log_id="", node="", read_only=True
    )
    kinds: Counter[str] = Counter()
    try:
        stats = {each.surface: each for each in await store.stats()}
        after = 0
        while page := await store.entries(after):
            kinds.update(f"{entry.stream.partition('/')[0]}:{entry.kind}" for entry in page)
            after = page[-1].committed_id
    finally:
        await store.close()
    in_lake = Counter(str(row["surface"]) for row in _rows(stage, "log", ["surface"]))
    figures = [
        Figure(f"entries of {surface}", stats[surface].entries, in_lake[surface])
        for surface in sorted(stats)
    ]
    return [
        *figures,
        Figure(
            "messages published",
            kinds["channels:message.create"],
            len(_rows(stage, "message", ["message_serial"])),
        ),
        Figure(
            "words appended",
            kinds["channels:message.append"],
            sum(int(row["appends"]) for row in _rows(stage, "message", ["appends"])),
        ),
        Figure(
            "changes of the task list",
            stats["sync"].entries,
            len(_rows(stage, "event", ["event_id"])),
        ),
        Figure(
            "reports sent",
            sum(count for kind, count in kinds.items() if kind.startswith("mesh:send")),
            len(_rows(stage, "send", ["history_id"])),
        ),
    ]


def _rows(stage: Stage, table: str, columns: list[str]) -> list[dict[str, Any]]:
    from tidelog.pipeline.reading import read

    rows: list[dict[str, Any]] = read(table, lake=stage.lake, columns=columns).to_pylist()
    return rows
