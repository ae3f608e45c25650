"""CPU of each operation here and at an earlier commit, as a ratio that a busy machine cannot turn.

Both trees run their own benches, each after the other and in turns, with this environment's
libraries and with their files in memory, so that a disk that is slow for a moment decides nothing.
Each round gives one ratio of after to before for each operation; the median of the rounds counts,
and the quartiles tell how much the machine disturbed them. Prints one JSON document; exits with 1
if a median is above --most.

Example: python bench/before_after.py 4d399c2 --rounds 9 --only commit channels
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidelog.testing.scratch import memory_directory

ROOT = Path(__file__).parents[1]
BENCHES = {
    "commit": ("--sqlite-only", "--rounds", "1", "--submitters", "1", "256"),
    "channels": (
        *("--only", "publish,append,token_streams", "--requests", "150"),
        *("--streams", "100", "--appends", "100"),
    ),
    "sync": ("--quick", "--no-insieme"),
    "mesh": ("--quick",),
    "roundtrip": ("--each", "150", "--round-trips-ms", "0", "1"),
}
"""What is run of each bench: its operations, and few of them, since there are many rounds."""

OURS = ("roundtrip",)
"""Benches that know a server from outside only: ours measures that of the earlier commit too."""

CPU = ("cpu_us_per_commit", "server_cpu_us_each", "server_cpu_us_per_event")
"""What the benches call the CPU of one operation."""
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


def operations(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every operation of a bench's document with its CPU."""
    if isinstance(found, list):
        for index, each in enumerate(found):
            yield from operations(each, (*path, str(index)))
    elif isinstance(found, dict):
        for name, value in found.items():
            if name in CPU:
                yield "/".join(path), float(value)
            elif name == BESIDE:
                yield "/".join((*path, "database")), float(value)
            elif name not in THEIRS:
                yield from operations(value, (*path, name))


def measured(tree: Path, bench: str, scratch: Path) -> dict[str, float]:
    """CPU of each operation of a bench, in microseconds, with the code of a tree."""
    script = (ROOT if bench in OURS else tree) / "bench" / f"{bench}.py"
    command = [sys.executable, str(script), *BENCHES[bench]]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "TMPDIR": str(scratch)}
    environment["TIDELOG_BENCH_PARTS"] = "off"
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{bench} of {tree} failed:\n{done.stderr}")
    return dict(operations(json.loads(done.stdout)))


def compared(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """What the rounds of one operation say together."""
    ratios = sorted(after / before for before, after in pairs)
    return {
        "before_us": round(statistics.median(before for before, _ in pairs), 2),
        "after_us": round(statistics.median(after for _, after in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lower_quartile": round(ratios[len(ratios) // 4], 3),
        "ratio_upper_quartile": round(ratios[-1 - len(ratios) // 4], 3),
    }


def main(options: argparse.Namespace) -> int:
    """Measure in turns, and print."""
    pairs: dict[str, list[tuple[float, float]]] = {}
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
        "before": options.before,
        "rounds": options.rounds,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
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
