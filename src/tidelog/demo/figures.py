"""The numbers of the tour: how much of everything the log has, and how much the lake has."""

from collections import Counter
from typing import Any, NamedTuple

from tidelog.config.schema import SCHEMA
from tidelog.demo.stage import Stage
from tidelog.store import open_store


class Figure(NamedTuple):
    """One number of the summary; counted twice if the pipeline ran."""

    what: str
    log: int
    """As the store says, which is what `tidelog log stats` prints."""
    lake: int | None
    """As the tables say."""


async def counted(stage: Stage, *, with_lake: bool) -> list[Figure]:
    """Count everything in the store and, where the pipeline ran, in the lake."""
    in_log = await _in_log(stage)
    in_lake: dict[str, int] = _in_lake(stage) if with_lake else {}
    return [
        Figure(what, number, in_lake.get(what, 0) if with_lake else None)
        for what, number in in_log.items()
    ]


async def _in_log(stage: Stage) -> dict[str, int]:
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
    return {
        **{f"entries of {surface}": stats[surface].entries for surface in sorted(stats)},
        "messages published": kinds["channels:message.create"],
        "words appended": kinds["channels:message.append"],
        "changes of the task list": stats["sync"].entries,
        "reports sent": sum(n for kind, n in kinds.items() if kind.startswith("mesh:send")),
    }


def _in_lake(stage: Stage) -> dict[str, int]:
    entries = Counter(str(row["surface"]) for row in rows(stage, "log", ["surface"]))
    messages = rows(stage, "message", ["appends"])
    return {
        **{f"entries of {surface}": number for surface, number in entries.items()},
        "messages published": len(messages),
        "words appended": sum(int(row["appends"]) for row in messages),
        "changes of the task list": len(rows(stage, "event", ["event_id"])),
        "reports sent": len(rows(stage, "send", ["history_id"])),
    }


def rows(stage: Stage, table: str, columns: list[str]) -> list[dict[str, Any]]:
    """Some columns of a table of the lake."""
    from tidelog.pipeline.reading import read

    found: list[dict[str, Any]] = read(table, lake=stage.lake, columns=columns).to_pylist()
    return found
