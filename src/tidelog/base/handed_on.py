"""A port that one program leaves to the next, open all the while: who connects meanwhile waits."""

import os
import socket
import sys
from typing import NoReturn

from tidelog.base.supervisor import LISTENER_VARIABLE


def begin_again(listener: socket.socket) -> NoReturn:
    """Run the same command in this process's place, with the port that it has.

    Nothing that was made of a log, or of a link, that is no more is in a new program.
    """
    os.set_inheritable(listener.fileno(), True)
    os.environ[LISTENER_VARIABLE] = str(listener.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves


def inherited() -> socket.socket | None:
    """What `begin_again`, or a supervisor, left to this program."""
    given = os.environ.pop(LISTENER_VARIABLE, "")
    if not given:
        return None
    try:
        listener = socket.socket(fileno=int(given))
    except (OSError, ValueError):
        return None  # somebody else's variable
    listener.set_inheritable(False)
    return listener
