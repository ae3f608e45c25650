"""Programs that end with the process that started them, also when that is killed."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
"""From Linux's `prctl.h`: the signal a process gets when its parent ends. It outlives `exec`."""


def tied(command: Sequence[str]) -> list[str]:
    """A command that does the same as this one and is told to end when its caller ends."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


def main(arguments: Sequence[str]) -> None:
    """Become the command, tied to the parent whose number comes first."""
    parent, *command = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return  # it ended before it could be tied
    os.execv(command[0], command)  # noqa: S606 - what the caller asked for


if __name__ == "__main__":
    main(sys.argv[1:])
