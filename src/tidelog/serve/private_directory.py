"""A directory of one server's processes, in which nobody else can make or reach a socket.

Its path is short, because a socket's must be, so it is not in the data directory. Whoever made it
holds its lock; one that nobody holds is of a server that was killed, and the next one removes it.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidelog.base.errors import ConfigError

MAX_PATH_BYTES = 100
"""Of a socket's path; systems have room for 103 or 107."""

_PREFIX = "tidelog-serve-"
_LONGEST_NAME = "owner.sock"


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Make one, mode 0700; it is removed afterwards."""
    parent = _parent()
    _sweep(parent)
    made, number = _locked(parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(number)


def _locked(parent: Path) -> tuple[Path, int]:
    """A new one, and what holds its lock.

    A server that starts at the same moment may find it before it is locked, and remove it.
    """
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            number = os.open(made, os.O_RDONLY)
            fcntl.flock(number, fcntl.LOCK_EX)
            if made.exists():
                return made, number
            os.close(number)


def _parent() -> Path:
    """The first place for temporary files that is there, safe, and has a short path."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]  # noqa: S108
    for place in filter(None, places):
        longest = os.path.join(place, f"{_PREFIX}12345678", _LONGEST_NAME)  # noqa: PTH118
        is_short = len(os.fsencode(longest)) <= MAX_PATH_BYTES
        if is_short and _is_safe(place) and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise ConfigError(
        "no directory for the socket between this server's processes: none of XDG_RUNTIME_DIR, "
        f"TMPDIR and /tmp can be written, is safe from other users and has a path of at most "
        f"{MAX_PATH_BYTES - len(_PREFIX) - len(_LONGEST_NAME) - 10} bytes. Set TMPDIR to such a "
        "directory, or use --workers 1."
    )


def _is_safe(place: str) -> bool:
    """Whether nobody else can put another directory in the place of one that we make there."""
    try:
        found = os.stat(place)  # noqa: PTH116
    except OSError:
        return False
    is_kept = found.st_mode & stat.S_ISVTX or not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.getuid()) and bool(is_kept)


def _sweep(parent: Path) -> None:
    """Remove what killed servers of this user have left."""
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or gone
            number = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                if os.fstat(number).st_uid == os.getuid():
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)
            finally:
                os.close(number)
