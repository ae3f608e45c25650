"""Where tests put what nobody needs afterwards."""

import os
import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, below which names are made safely
_ROOM_BYTES = 4 * 1024**3
"""Containers often have 64 MiB there, which one PostgreSQL would fill."""


def memory_directory() -> str | None:
    """A directory on a file system in memory that has room, or None, which means the usual place.

    Tests that kill processes prove as much there as on a disk: what a process has written outlives
    it on both, and the loss of power, which is what syncing is for, is not something they can test.
    Measurements must stay away from it: syncing costs nothing there.
    """
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return str(_MEMORY) if free >= _ROOM_BYTES and os.access(_MEMORY, os.W_OK) else None
