"""The real server as a process that a test can start, kill and start again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Protocol, Self

from tidelog.base.faultpoint import VARIABLE as FAULTS_VARIABLE

CREDENTIALS = {
    "TIDELOG_ADMIN_TOKEN": "only for servers of tests, an admin token",
    "TIDELOG_APP_ID": "harness",
    "TIDELOG_APP_KEY": "harness-key",
    "TIDELOG_APP_SECRET": "only for servers of tests, a secret of an app",
}
"""Without these, or others in their place, a server that is not for development does not start. The
app is served beside those of a test's own configuration."""


class Process(Protocol):
    """What is used of a `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def stdout(self) -> IO[str] | None:
        """What it prints."""
        ...

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, if it has not ended."""
        ...


def spawn(command: list[str], *, env: Mapping[str, str], stderr: IO[bytes], cwd: str) -> Process:
    """Start a command with a pipe for its standard output."""
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=cwd
    )


class ServerProcess:
    """`tidelog serve` on a fixed port.

    A context manager: the process is gone when the block ends, however it ends.
    """

    program: ClassVar[str] = "tidelog"
    """The module that is run: this, or one that adds surfaces and then does the same."""

    spawn: ClassVar[Callable[..., Process]] = staticmethod(spawn)
    """How its process is started; tests of tidelog itself fork one that has imported everything."""

    def __init__(
        self,
        *,
        data_dir: Path,
        store: str | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            data_dir: passed as `--data-dir`; also where the process's log is kept.
            store: passed as `--store`, if given.
            environment: added to this process's environment and `CREDENTIALS`, at every start.
            arguments: further arguments of `tidelog serve`; with `--dev` no credentials are given.
        """
        self.data_dir = data_dir.absolute()  # the process works in another directory
        data_dir.mkdir(parents=True, exist_ok=True)
        self.log_path = data_dir / "server.log"
        self.port = 0
        """The port it got at its first start; kept, so that clients find it again."""
        self._store = store
        self._environment = dict(environment or {})
        self._arguments = arguments
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def launch(self, faults: str = "") -> None:
        """Start the process without waiting for it."""
        command = [sys.executable, "-m", self.program, "serve", "--json", "--port", str(self.port)]
        command += ["--data-dir", str(self.data_dir), *self._arguments]
        if self._store:
            command += ["--store", self._store]
        environment = {
            **os.environ,
            **({} if "--dev" in self._arguments else CREDENTIALS),
            **self._environment,
            FAULTS_VARIABLE: faults,
        }
        with self.log_path.open("ab") as log:
            self._process = self.spawn(
                command, env=environment, stderr=log, cwd=tempfile.gettempdir()
            )

    def start(self, faults: str = "") -> None:
        """Start the process and wait until it says it is ready.

        Args:
            faults: fault points to arm, in the form of `tidelog.base.faultpoint`.
        """
        self.launch(faults)
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.wait()
            raise RuntimeError(f"the server did not start:\n{self.log_text()[-2000:]}")
        self.port = int(json.loads(line)["url"].rsplit(":", 1)[1])

    def log_text(self) -> str:
        """What the process has logged over all its starts."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """SIGTERM, and wait for the orderly end; returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_seconds: float = 30.0) -> int:
        """Wait until the process has ended by itself; returns the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_seconds)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it has not ended."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_running:
            self.kill()
