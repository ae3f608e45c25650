"""Programs of ours in processes of their own, run by the same Python."""

import sys


def own_program(module: str, *arguments: str) -> list[str]:
    """A command that runs a module of ours.

    Nothing is imported from the directory in which somebody happens to be (`-P`): it may have a
    `socket.py` of its own, or of somebody else's.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
