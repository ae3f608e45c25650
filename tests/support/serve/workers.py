"""Every server of a run in several processes: what `TIDELOG_TEST_WORKERS=3` makes of one.

Tests start, kill and wait for one process, and that is the supervisor then. As on a machine that
loses its power, whoever kills it kills all of its processes, and where a test lets a fault point
kill the server, all of them die with the one that has reached it.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import psutil

from support.warm import NURSERY
from tidelog.base.faultpoint import VARIABLE as FAULTS_VARIABLE
from tidelog.testing.process import Process

VARIABLE = "TIDELOG_TEST_WORKERS"
"""How many fronts the servers of this run have; none: each is one process."""

LOOK_SECONDS = 0.02
_DIED = re.compile(rb" ended \((signal|exit code) (\d+)\)")


def count() -> int:
    """How many fronts servers have; 0 if they are one process."""
    return int(os.environ.get(VARIABLE, "0"))


def spawner(fronts: int) -> Callable[..., Process]:
    """A `ServerProcess.spawn` that starts servers with so many fronts."""

    def start(
        command: list[str], *, env: Mapping[str, str], stderr: IO[bytes], cwd: str
    ) -> Process:
        if command[3:4] != ["serve"]:
            return NURSERY.start(command, env=env, stderr=stderr, cwd=cwd)
        log = Path(stderr.name)
        began = log.stat().st_size
        workers = [*command, "--workers", str(fronts)]
        process = NURSERY.start(workers, env=env, stderr=stderr, cwd=cwd)
        return Workers(process, log, began, has_faults=bool(env.get(FAULTS_VARIABLE)))

    return start


class Workers:
    """A supervisor and all that it has started, as one process."""

    def __init__(self, supervisor: Process, log: Path, began: int, *, has_faults: bool) -> None:
        self._supervisor = supervisor
        self._log = log
        self._began = began
        self._has_faults = has_faults
        self._family: list[psutil.Process] = []
        self.pid = supervisor.pid
        self.stdout = supervisor.stdout

    def poll(self) -> int | None:
        """See `Process.poll`."""
        code = self._supervisor.poll()
        if code is None and self._has_faults and (died := self._died()) is not None:
            self.send_signal(signal.SIGKILL)
            self._supervisor.wait()
            return died
        return code

    def wait(self, timeout: float | None = None) -> int:
        """See `Process.wait`; returns when all have ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(LOOK_SECONDS)
        psutil.wait_procs(self._family, timeout=timeout)
        return code

    def send_signal(self, number: int) -> None:
        """See `Process.send_signal`; SIGKILL, SIGSTOP and SIGCONT are for all of them."""
        self._family = self._children()  # before they are somebody else's
        self._supervisor.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
            for each in self._family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _died(self) -> int | None:
        """How the first of them has ended, as the supervisor says it."""
        with self._log.open("rb") as log:
            log.seek(self._began)
            found = _DIED.search(log.read())
        if found is None:
            return None
        code = int(found[2])
        return -code if found[1] == b"signal" else code
