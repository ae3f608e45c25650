"""Programs that end with the process that started them, also when that is killed."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from tidelog.base.own_program import own_program

_PR_SET_PDEATHSIG = 1
"""From Linux's `prctl.h`: the signal a process gets when its parent ends. It outlives `exec`."""


def tied(command: Sequence[str], number: int = signal.SIGTERM) -> list[str]:
    """A command that does the same as this one and gets this signal when its caller ends."""
    return own_program(__name__, str(os.getpid()), str(int(number)), *command)


def main(arguments: Sequence[str]) -> None:
    """Become the command, tied to the parent whose number comes first by the signal after it."""
    parent, number, *command = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):
        return  # it ended before it could be tied
    os.execv(command[0], command)  # noqa: S606 - what the caller asked for


if __name__ == "__main__":
    main(sys.argv[1:])
