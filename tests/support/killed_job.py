"""A job of the pipeline in a process of its own that dies at a fault point."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from tidelog.base.faultpoint import VARIABLE

SECONDS = 400
"""Some ten are enough; but a JVM starts in the process, on a machine that may be very busy."""


def run_killed(code: str, *arguments: str, fault: str) -> None:
    """Run Python code with a fault armed, and wait until the process has killed itself.

    Its output goes to a file and its JVM is ended too: that would hold on to a pipe for a while.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, VARIABLE: fault},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            ended = process.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        assert ended == -signal.SIGKILL, output.read()[-2000:].decode()
