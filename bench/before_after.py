"""CPU of each operation here and at an earlier commit, as a ratio that a busy machine cannot turn.

The servers of both trees get the same loads from the benches of this one, each after the other and
in turns, with this environment's libraries and with their files in memory, so that a disk that is
slow for a moment decides nothing; only `commit`, which calls functions, is each tree's own. Each
round gives one ratio of after to before for each operation; the median of the rounds counts, and
the quartiles tell how much the machine disturbed them. Rates are medians too; unlike ratios of CPU,
they tell what else the machine did. Prints one JSON document; exits with 1 if a median is above
--most.

Example: python bench/before_after.py 4d399c2 --rounds 9 --only commit channels
"""

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.testing.scratch import memory_directory

ROOT = Path(__file__).parents[1]
BENCHES = {
    "commit": ("--sqlite-only", "--rounds", "1", "--submitters", "1", "256"),
    "channels": (
        *("--only", "publish,publish_to_50,append,token_streams", "--requests", "200"),
        *("--streams", "100", "--appends", "100"),
    ),
    "sync": ("--submits-only", "--no-insieme", "--repeats", "1"),
    "mesh": ("--alone", "--repeats", "1", "--messages", "12288"),
    "start": ("--rounds", "5"),
    "roundtrip": ("--each", "150", "--round-trips-ms", "0", "1"),
}
"""What is run of each bench: its operations, and few of them, since there are many rounds."""

OWN = ("commit",)
"""Benches that call functions of their tree. All others only know a server from outside."""

CPU = ("cpu_us_per_commit", "server_cpu_us_each", "server_cpu_us_per_event")
"""What the benches call the CPU of one operation."""
RATES = ("commits_per_s", "per_second", "appends_per_second", "events_per_s", "accepts_per_s")
"""What they call how many there were a second."""
BESIDE = "database_cpu_us_each"
"""What the processes of PostgreSQL spend on it."""
THEIRS = ("nats", "insieme")


@contextmanager
def tree_at(revision: str) -> Iterator[Path]:
    """The repository as it was at a commit, for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="tidelog-before-") as directory:
        tree = Path(directory) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        add = [*git, "add", "--quiet", "--detach", str(tree), revision]
        subprocess.run(add, check=True, stdout=sys.stderr)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


class Measured(NamedTuple):
    """One operation in one round."""

    cpu_us: float
    per_second: float | None


def operations(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Measured]]:
    """Every operation of a bench's document."""
    if isinstance(found, list):
        for index, each in enumerate(found):
            yield from operations(each, (*path, str(index)))
    elif isinstance(found, dict):
        rate = next((float(found[name]) for name in RATES if name in found), None)
        for name, value in found.items():
            if name in CPU:
                yield "/".join(path), Measured(float(value), rate)
            elif name == BESIDE:
                yield "/".join((*path, "database")), Measured(float(value), None)
            elif name not in THEIRS:
                yield from operations(value, (*path, name))


def measured(tree: Path, bench: str, scratch: Path) -> dict[str, Measured]:
    """Each operation of a bench, with the code of a tree."""
    script = (tree if bench in OWN else ROOT) / "bench" / f"{bench}.py"
    command = [sys.executable, str(script), *BENCHES[bench]]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "TMPDIR": str(scratch)}
    environment["TIDELOG_BENCH_PARTS"] = "off"
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{bench} of {tree} failed:\n{done.stderr}")
    return dict(operations(json.loads(done.stdout)))


def compared(pairs: list[tuple[Measured, Measured]]) -> dict[str, Any]:
    """What the rounds of one operation say together."""
    ratios = sorted(after.cpu_us / before.cpu_us for before, after in pairs)
    rates = {}
    for name, each in zip(("before", "after"), zip(*pairs, strict=True), strict=True):
        found = [one.per_second for one in each if one.per_second is not None]
        if found:
            rates[f"{name}_per_second"] = round(statistics.median(found))
    return {
        "before_us": round(statistics.median(before.cpu_us for before, _ in pairs), 2),
        "after_us": round(statistics.median(after.cpu_us for _, after in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lower_quartile": round(ratios[len(ratios) // 4], 3),
        "ratio_upper_quartile": round(ratios[-1 - len(ratios) // 4], 3),
        **rates,
    }


def commit(revision: str) -> str:
    """The short name of a commit; with a mark if the tree has changes that are in none."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude", "*"]
    command = [*git, "--dirty"] if revision == "HEAD" else [*git, revision]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(options: argparse.Namespace) -> int:
    """Measure in turns, and print."""
    load_before, began = [round(load, 2) for load in os.getloadavg()], time.perf_counter()
    pairs: dict[str, list[tuple[Measured, Measured]]] = {}
    with (
        tree_at(options.before) as before,
        tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=memory_directory()) as made,
    ):
        Path(made).chmod(0o755)  # PostgreSQL does not run as root
        trees = {"before": before, "after": ROOT}
        for turn in range(options.rounds):
            for bench in options.only:
                order = sorted(trees, reverse=turn % 2 == 0)  # neither is always the first
                cpu = {name: measured(trees[name], bench, Path(made)) for name in order}
                for operation in cpu["before"].keys() & cpu["after"].keys():
                    both = (cpu["before"][operation], cpu["after"][operation])
                    pairs.setdefault(f"{bench}: {operation}", []).append(both)
                print(f"round {turn + 1} of {options.rounds}: {bench}", file=sys.stderr)
    results = {operation: compared(pairs[operation]) for operation in sorted(pairs)}
    document = {
        "bench": "before_after",
        "conditions": {
            "before": commit(options.before),
            "after": commit("HEAD"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "versions": {name: version(name) for name in ("uvloop", "msgspec", "asyncpg")},
            "files": "memory; synchronous=FULL, fsync on",
            "rounds": options.rounds,
            "load_average_before": load_before,
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
            "seconds": round(time.perf_counter() - began, 1),
        },
        "most": options.most,
        "operations": results,
    }
    print(json.dumps(document, indent=2))
    return int(any(result["ratio"] > options.most for result in results.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of runs of each bench")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=[*BENCHES])
    parser.add_argument("--most", type=float, default=1.03, help="largest ratio that is well")
    sys.exit(main(parser.parse_args()))
