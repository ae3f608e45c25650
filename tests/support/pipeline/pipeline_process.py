"""`tidelog pipeline` as a process that a test can kill and start again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tidelog.base.faultpoint import VARIABLE as FAULTS_VARIABLE

COMMAND = (sys.executable, "-m", "tidelog", "pipeline")
END_SECONDS = 300.0
"""A JVM on a loaded machine takes its time."""
RUN_SECONDS = 3 * END_SECONDS
"""`run` is dozens of jobs of Spark."""


@contextmanager
def pipeline_process(
    *arguments: str, log: Path, faults: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """The command for the length of the block; nothing of it, JVM included, is left afterwards.

    Args:
        arguments: of `tidelog pipeline`.
        log: file that gets what it prints, added to what is there.
        faults: fault points to arm, in the form of `tidelog.base.faultpoint`.
    """
    environment = {**os.environ, FAULTS_VARIABLE: faults}
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_group(process)
        process.wait()


def kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """SIGKILL to the command and its JVM at once, as if the machine had failed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def completed(
    command: Sequence[str],
    *,
    seconds: float,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Any command to its end, with what it printed; nothing that it started is left."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        kill_group(process)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_pipeline(*arguments: str, log: Path) -> None:
    """Run the command to its end, which must be a good one."""
    with pipeline_process(*arguments, log=log) as process:
        code = process.wait(END_SECONDS)
    assert code == 0, log.read_text(encoding="utf-8", errors="replace")[-4000:]
