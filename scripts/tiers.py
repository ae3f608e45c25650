"""Runs the tiers of `scripts/test` side by side.

The tests wait a lot: for disks, timers and processes that start. So a tier is made of parts, of
which four more run at once than there are processors, and further ones begin while processors have
nothing to do. What a part prints is kept in a file and shown when its tier has ended. One
PostgreSQL serves all of them.

A tier has a budget of processor time and not of time on the wall, which says as much about what
else runs: how long all of it takes on a machine of its own is about half of the sum on two
processors.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from tidelog.testing.postgresql import (
    DSN_VARIABLE,
    TEMPLATE_VARIABLE,
    create_template,
    throwaway_postgresql,
)
from tidelog.testing.scratch import memory_directory

ROOT = Path(__file__).parents[1]
SHARED_VARIABLE = "TIDELOG_TEST_SHARED"
"""Tells every part of a folder in which they may leave something for each other."""
BIN = ".venv/bin"
HUNG = "-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true"
"""No test takes a quarter of an hour, however busy the machine is: it waits for what never comes.
Then it is shown where, and the part ends."""
PYTEST = (
    f"{BIN}/pytest -q --durations=10 --durations-min=5 -o tmp_path_retention_policy=failed {HUNG}"
)
IS_COVERED = os.environ.get("TIDELOG_TEST_COVERAGE") == "1"
"""Whether to tell which branches the tests inside their own process reach; to watch them makes
these tests two to three times as slow."""
COVERED = f"{PYTEST} --cov --cov-report=" if IS_COVERED else PYTEST
ELSEWHERE = " ".join(
    f"--ignore=tests/integration/{folder}"
    for folder in ("daemon", "log", "mesh", "store", "sync", "testing", "web")
)
"""Integration tests that are parts of their own."""


def modules(folder: str, *names: str) -> tuple[str, ...]:
    """Paths of test modules, wherever below the folder they are."""
    found = [(name, [*(ROOT / folder).rglob(f"test_{name}.py")]) for name in names]
    assert all(len(paths) == 1 for _, paths in found), found
    return tuple(str(path.relative_to(ROOT)) for _, [path] in found)


CRASH = (
    modules("tests/crash", "pipeline_kill"),
    modules("tests/crash", "workers_chaos", "failover"),
    modules("tests/crash", "channels_kill", "channels_orphans", "channels_promises"),
    modules("tests/crash", "mesh_pair", "mesh_broker_faults"),
    modules("tests/crash", "mesh_races", "mesh_faults", "mesh_storm", "mesh_fleet"),
    modules("tests/crash", "kill", "sync_kill", "erasure_kill"),
)
"""Crash tests in parts that take about as long as each other; what is left is another one."""

QUARTER = " ".join(
    modules("tests/conformance/channels", "continuity", "frames", "history_control", "mutations")
)
"""What is also run with halves that share nothing but bytes, with three fronts, and with two nodes
of two fronts each; `scripts/soak` runs all of it so."""

PIPELINE = modules(
    "tests/pipeline", "built_tables", "commands", "engines", "extent", "jvm", "object_store"
)
"""Tests of the pipeline on a lake on which everything was run, and on other engines; what is left
is another part. These make that lake, and the others want it as late as they can: they wait for it.
A session for each takes some 20 s of processor time to get warm, but one for all waits for most of
the time that the others run, and then alone."""

AT_LEAST = (os.cpu_count() or 1) + 4
"""How many parts run at the same time, however busy the machine is."""
AT_MOST = AT_LEAST + 4
BUSY_PERCENT = 95.0
"""Of all processors: below it another part begins, up to the most. With 85 they had nothing to do
for a seventh of the time."""
LOOK_SECONDS = 2.0
SIGN_OF_LIFE_SECONDS = 15.0
FAREWELL_SECONDS = 10.0
"""How long a part that is told to end may take to end the servers it started."""


class Tier(NamedTuple):
    """What belongs together in the summary; its parts need not wait for each other."""

    name: str
    title: str
    budget_seconds: int
    """Of processor time, over all processes that somebody waits for: not the JVMs of Spark, which
    end after their session, nor what a browser starts."""
    parts: tuple[str, ...]
    on_disk: bool = False
    """Whether its files must be on a disk, where a kill may strike while a sync is under way."""


TIERS = (
    Tier(
        "pipeline",
        "pipeline",
        300,
        (
            f"{PYTEST} {' '.join(PIPELINE)}",
            f"{PYTEST} tests/pipeline " + " ".join(f"--ignore={module}" for module in PIPELINE),
        ),
        on_disk=True,
    ),
    Tier(
        "packaging",
        "packaging and demo",
        100,
        (
            f"{PYTEST} tests/packaging/test_start.py",
            f"{PYTEST} tests/packaging --ignore=tests/packaging/test_start.py",
        ),
        on_disk=True,  # the environment with Spark is hard links into the installer's cache
    ),
    Tier(
        "integration",
        "integration",
        400,
        (
            f"{COVERED} tests/integration/log tests/integration/store",
            f"{COVERED} tests/integration {ELSEWHERE}",
            f"{COVERED} tests/integration/mesh",
            f"{COVERED} tests/integration/daemon tests/integration/testing tests/integration/web",
            f"{COVERED} tests/integration/sync",
        ),
    ),
    Tier(
        "conformance",
        "conformance",
        150,
        (
            f"{PYTEST} tests/conformance",
            "ENGINE=sqlite scripts/conformance sync",
            "ENGINE=postgresql scripts/conformance sync",
            f"TIDELOG_TEST_LINK=encoded {PYTEST} {QUARTER} -k sqlite",
            (
                f"TIDELOG_TEST_WORKERS=3 {PYTEST} -k sqlite {QUARTER}"
                " tests/clients/test_channels_sdk.py tests/crash/test_channels_promises.py"
            ),
            f"TIDELOG_TEST_WORKERS=2 TIDELOG_TEST_NODES=2 {PYTEST} {QUARTER} -k postgresql",
        ),
    ),
    Tier(
        "unit",
        "unit and property",
        60,
        (f"{COVERED} tests/unit",),
    ),
    Tier("browser", "browser", 50, (f"{PYTEST} tests/browser",)),
    Tier(
        "lint",
        "lint and types",
        70,
        (
            f"{BIN}/mypy",
            f"{BIN}/ruff check . && {BIN}/ruff format --check . && {BIN}/lint-imports",
        ),
    ),
    Tier("clients", "clients", 60, (f"{PYTEST} tests/clients",)),
    Tier(
        "crash",
        "crash and faults",
        185,
        (
            *(f"{PYTEST} -s {' '.join(part)}" for part in CRASH),
            f"{PYTEST} -s tests/crash "
            + " ".join(f"--ignore={module}" for part in CRASH for module in part),
        ),
        on_disk=True,
    ),
    Tier(
        "docs",
        "documentation",
        90,
        (
            f"{PYTEST} tests/docs/test_walks.py",
            f"{PYTEST} tests/docs --ignore=tests/docs/test_walks.py",
        ),
    ),
)
"""In the order in which they and their parts start: those with long parts first, such as the demo
with Spark, and last those of many short parts, so that no part is left alone at the end."""


AREAS = (
    Tier(
        "log",
        "the log and what it stands on",
        360,
        (
            (
                f"{PYTEST} tests/unit/base tests/unit/cli tests/unit/config tests/unit/link"
                " tests/unit/log tests/unit/web tests/integration/store tests/integration/testing"
                " tests/integration/web"
            ),
            f"{PYTEST} tests/integration/log",
            f"{PYTEST} -s tests/crash/test_kill.py",
            (
                f"{PYTEST} -s tests/crash/test_commit_cut.py tests/crash/test_disk.py"
                " tests/crash/test_postgresql_loss.py tests/crash/test_two_nodes.py"
            ),
        ),
        on_disk=True,
    ),
    Tier(
        "channels",
        "channels",
        300,
        (
            (
                f"{PYTEST} tests/unit/channels tests/unit/client/channels"
                " tests/conformance/channels tests/integration/channels"
            ),
            f"{PYTEST} tests/clients -k channel",
            f"{PYTEST} -s tests/crash/test_channels_kill.py tests/crash/test_event_stream_kill.py",
        ),
        on_disk=True,
    ),
    Tier(
        "sync",
        "sync",
        300,
        (
            (
                f"{PYTEST} tests/unit/sync tests/unit/client/sync tests/conformance/sync"
                " tests/integration/sync tests/integration/client/sync"
            ),
            f"{PYTEST} tests/clients -k sync",
            f"{PYTEST} -s tests/crash/test_sync_kill.py",
            "ENGINE=sqlite scripts/conformance sync && ENGINE=postgresql scripts/conformance sync",
        ),
        on_disk=True,
    ),
    Tier(
        "mesh",
        "mesh and its daemon",
        300,
        (
            f"{PYTEST} tests/unit/mesh tests/unit/daemon tests/integration/daemon",
            f"{PYTEST} tests/integration/mesh",
            f"{PYTEST} tests/clients -k mesh",
            f"{PYTEST} -s tests/crash -k mesh",
        ),
        on_disk=True,
    ),
)
"""The same tests by what they are about, for whoever works on that; only run when named."""


class Part(NamedTuple):
    """When a part ran, what it took of the processors, and its exit status."""

    began: float
    ended: float
    processor_seconds: float
    status: int


class Report(NamedTuple):
    """How a tier went."""

    seconds: float
    """From the begin of its first part to the end of its last one."""
    processor_seconds: float
    passed: bool


class Run:
    """One run of some tiers, with a directory of its own for everything they leave behind."""

    def __init__(self, tiers: list[Tier], scratch: Path, coverage: Path) -> None:
        self._tiers = tiers
        self._scratch = scratch
        self._coverage = coverage
        self._next = asyncio.Lock()
        """Held by the part whose turn it is to begin; the others wait in their order."""
        self._started = time.monotonic()
        self._running: dict[str, float] = {}

    async def tiers(self) -> dict[str, Report]:
        """Run them all; returns how each went."""
        signs = asyncio.create_task(self._show_signs_of_life())
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {tier.name: group.create_task(self._tier(tier)) for tier in self._tiers}
        finally:
            signs.cancel()
        return {name: task.result() for name, task in tasks.items()}

    async def _tier(self, tier: Tier) -> Report:
        outputs = [self._scratch / f"{tier.name}-{n}.txt" for n in range(len(tier.parts))]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._part(tier, command, output))
                for command, output in zip(tier.parts, outputs, strict=True)
            ]
        parts = [task.result() for task in tasks]
        report = Report(
            max(part.ended for part in parts) - min(part.began for part in parts),
            sum(part.processor_seconds for part in parts),
            all(part.status == 0 for part in parts),
        )
        print(f"\n== {tier.title}", flush=True)
        for command, output in zip(tier.parts, outputs, strict=True):
            print(f"$ {command}", flush=True)
            sys.stdout.buffer.write(output.read_bytes())
        self._say(f"{tier.name} {verdict(tier, report)} in {report.seconds:.0f} s")
        return report

    async def _part(self, tier: Tier, command: str, output: Path) -> Part:
        async with self._next:
            await self._turn()
            began = time.monotonic()
            self._running[output.stem] = began
        self._say(f"{tier.name}: {command}")
        taken = output.with_suffix(".times")
        try:
            timed = f"({command}); status=$?; times >{taken}; exit $status"
            status = await self._execute(tier, timed, output)
        finally:
            del self._running[output.stem]
        return Part(began, time.monotonic(), processor_seconds(taken), status)

    async def _turn(self) -> None:
        """Wait until another part may begin."""
        while len(self._running) >= AT_LEAST:
            psutil.cpu_percent()  # how busy they are is told since the last time that was asked
            await asyncio.sleep(LOOK_SECONDS)
            if len(self._running) < AT_MOST and psutil.cpu_percent() < BUSY_PERCENT:
                return

    async def _execute(self, tier: Tier, command: str, output: Path) -> int:
        environment = dict(os.environ)
        environment["COVERAGE_FILE"] = str(self._coverage / output.stem)
        environment[SHARED_VARIABLE] = str(self._scratch / "shared")
        if not tier.on_disk:
            environment["TMPDIR"] = str(self._scratch)
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_shell(
                command, stdout=file, stderr=file, env=environment, start_new_session=True
            )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await end(process)

    async def _show_signs_of_life(self) -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)
            now = time.monotonic()
            if running := [f"{part} {now - at:.0f} s" for part, at in self._running.items()]:
                self._say(f"running: {', '.join(running)}")

    def _say(self, what: str) -> None:
        print(f"[{time.monotonic() - self._started:4.0f} s] {what}", flush=True)


async def end(process: asyncio.subprocess.Process) -> None:
    """End a part and what it started, by the signal at which pytest still cleans up."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), FAREWELL_SECONDS)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def processor_seconds(taken: Path) -> float:
    """What the shell says that a command and all it waited for have taken; 0 if it was killed."""
    if not taken.exists():
        return 0.0
    _, children = taken.read_text().splitlines()
    return sum(
        60.0 * float(minutes) + float(seconds)
        for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", children)
    )


def verdict(tier: Tier, report: Report) -> str:
    """A tier's result in words; to be over budget is told, and is no failure."""
    words = "passed" if report.passed else "FAILED"
    return words + (", OVER BUDGET" if report.processor_seconds > tier.budget_seconds else "")


def report_coverage(coverage: Path) -> None:
    """Show what the tests inside their own process reach together."""
    print("\n== branch coverage of unit and integration", flush=True)
    subprocess.run([f"{BIN}/coverage", "combine", "--quiet", *coverage.iterdir()], check=False)
    shown = subprocess.run(
        [f"{BIN}/coverage", "report", "--skip-covered", "--precision=1"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    print("\n".join(shown.stdout.splitlines()[-40:]), flush=True)


def compile_once() -> "subprocess.Popen[bytes]":
    """Have what every part imports compiled.

    In a fresh clone nothing is, and the first parts, which begin together, would each do it: three
    seconds of a processor.
    """
    program = "import pytest, hypothesis, pytest_asyncio; from support import warm; warm.preload()"
    environment = {**os.environ, "PYTHONPATH": "tests"}
    return subprocess.Popen([f"{BIN}/python", "-c", program], env=environment)


async def run_tiers(tiers: list[Tier], scratch: Path, coverage: Path) -> dict[str, Report]:
    """Run them; SIGTERM, like Ctrl-C, ends everything that was started."""
    whole = asyncio.current_task()
    assert whole is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, whole.cancel)
    return await Run(tiers, scratch, coverage).tiers()


def main() -> int:
    """Run the tiers that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install-seconds", type=int, default=0, help="for the summary")
    parser.add_argument("only", nargs="*", metavar="tier", help="default: all tiers")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - {tier.name for tier in (*TIERS, *AREAS)}:
        parser.error(f"there is no tier or area {', '.join(sorted(unknown))}")
    tiers = [tier for tier in (*TIERS, *AREAS) if tier.name in arguments.only] or list(TIERS)
    os.chdir(ROOT)
    scratch = Path(tempfile.mkdtemp(prefix="tidelog-test-", dir=memory_directory()))
    scratch.chmod(0o711)  # some tests are another user for a moment, who must get this far
    coverage = scratch / "coverage"
    coverage.mkdir()
    failed = False
    started = time.monotonic()
    try:
        with compile_once() as compiling, throwaway_postgresql(in_memory=True) as url:
            os.environ[DSN_VARIABLE] = url
            os.environ[TEMPLATE_VARIABLE] = asyncio.run(create_template(url))
            compiling.wait()
            reports = asyncio.run(run_tiers(tiers, scratch, coverage))
        failed = not all(report.passed for report in reports.values())
        if IS_COVERED:
            report_coverage(coverage)
        print("\n== tiers")
        print(f"{'install':20} {arguments.install_seconds:4} s")
        for tier in tiers:
            report = reports[tier.name]
            print(
                f"{tier.title:20} {report.seconds:4.0f} s, processors"
                f" {report.processor_seconds:4.0f} s of {tier.budget_seconds:4} s"
                f"  {verdict(tier, report)}"
            )
        taken = sum(report.processor_seconds for report in reports.values())
        print(f"{'all':20} {time.monotonic() - started:4.0f} s, processors {taken:4.0f} s")
        if failed:
            print(f"What the failed tests left is in {scratch}.")
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    finally:
        if not failed:
            shutil.rmtree(scratch, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
