"""What the benches say of where a server's CPU goes."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
BENCH, PACKAGE = ROOT / "bench", ROOT / "src" / "tidelog"

TABLES = """
import json, by_part
print(json.dumps([sorted(by_part.FUNCTIONS), sorted(by_part.MODULES), by_part.PARTS,
                  sorted({*by_part.FUNCTIONS.values(), *by_part.MODULES.values()})]))
"""

WORK = """
import time, by_part
totals = memoryview(bytearray(8 * len(by_part.PARTS))).cast("d")
sampler = by_part._Sampler(totals)
import signal
signal.signal(signal.SIGPROF, sampler.tick)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
from tidelog.base.data.canonical import canonical
began = time.process_time()
value = {"numbers": list(range(1000))}
while time.process_time() - began < 0.5:
    canonical(value)
signal.setitimer(signal.ITIMER_PROF, 0)
import json
print(json.dumps(dict(zip(by_part.PARTS, totals))))
"""


def run(program: str) -> Any:
    """What a program prints that can import the benches."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_tables_name_what_there_is() -> None:
    """A module or function that moves takes its line with it, and each has a part that is shown."""
    functions, modules, parts, used = run(TABLES)
    assert set(used) <= set(parts)
    for name in modules:
        assert (PACKAGE / name).exists(), name
    for name in functions:
        file, _, function = name.partition(":")
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        assert function in {each.name for each in ast.walk(tree) if hasattr(each, "name")}, name


def test_work_counts_for_the_part_it_is_of() -> None:
    """Half a second of canonical JSON is `verify`, also what it lets others do."""
    found = run(WORK)
    assert found["verify"] > 0.7 * sum(found.values()) > 0.1
