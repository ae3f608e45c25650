"""`tidelog pipeline` as anybody runs it: a process of its own, from its start to its end."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline_parts.memory import Memory, peak_memory
from tidelog.pipeline.lake.lake import Lake


class Ran(NamedTuple):
    """What a command took, and what it printed."""

    seconds: float
    cpu_seconds: float
    memory: Memory
    printed: dict[str, Any]


def run_pipeline(store: Path, lake: Path) -> Ran:
    """`tidelog pipeline run`: ingest, all tables, index, checks, report."""
    command = [sys.executable, "-m", "tidelog", "pipeline", "run", "--json"]
    command += ["--data-dir", str(store.parent), "--store", str(store), "--lake", str(lake)]
    began = time.perf_counter()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        peak_memory(process.pid) as peak,
    ):
        printed, _ = process.communicate()
    seconds = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {printed}")
    return Ran(seconds, peak.cpu_seconds, peak.memory, json.loads(printed.splitlines()[-1]))


def told(ran: Ran) -> dict[str, Any]:
    """What is kept of it: the whole, and where the time went."""
    return {
        "seconds": round(ran.seconds, 2),
        "cpu_seconds": round(ran.cpu_seconds, 2),
        "peak_mb": ran.memory._asdict(),
        "start_seconds": ran.printed["start_seconds"],
        "ingest_seconds": ran.printed["ingest"]["seconds"],
        "tables": {
            each["name"]: {"seconds": round(each["seconds"], 2), "rows": each["rows"]}
            for each in ran.printed["tables"]
        },
        "whole_seconds": ran.printed["seconds"],
        "examined": {each["check"]: each["examined"] for each in ran.printed["checks"]},
        "is_sound": ran.printed["is_sound"],
    }


def files_of(lake: Path, table: str) -> dict[str, int]:
    """Rows of each file of a table."""
    delta = Lake(lake).delta(table)
    assert delta is not None
    files = pa.table(delta.get_add_actions())
    return dict(zip(files["path"].to_pylist(), files["num_records"].to_pylist(), strict=True))


def rewritten_share(before: dict[str, int], after: dict[str, int]) -> float:
    """How much of a table was in files that were replaced."""
    return sum(rows for file, rows in before.items() if file not in after) / sum(before.values())
