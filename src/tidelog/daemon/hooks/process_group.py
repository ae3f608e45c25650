"""The process group of one run of a hook: it ends with the run, and with the daemon.

A keeper leads the group: a shell that waits at a pipe whose other end only the daemon has. A daemon
that is killed cannot end its hooks, but its end of the pipe is closed, and the keeper kills its own
group. Until the keeper is waited for, no other process can get the number of the group.
"""

import contextlib
import os
import signal
import subprocess
from types import TracebackType
from typing import Self

_KEEPER = ("/bin/sh", "-c", "trap '' HUP INT TERM; read -r line; kill -s KILL 0")


class HookGroup:
    """A group that processes can be started in; leaving the block kills all of it."""

    def __init__(self) -> None:
        """Start the keeper.

        Raises:
            OSError: it cannot be started.
        """
        self._keeper = subprocess.Popen(  # noqa: S603 - no part of it comes from anybody
            _KEEPER,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            process_group=0,
        )

    @property
    def number(self) -> int:
        """What a process that is started in the group is given."""
        return self._keeper.pid

    def terminate(self) -> None:
        """Ask everything in it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End everything in it, the keeper too; nothing can be started in it any more."""
        self._signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._keeper.communicate()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.number, number)
