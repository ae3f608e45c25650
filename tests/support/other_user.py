"""What another user of this machine can reach.

With the rights to become somebody else the attempts are made by a child process that has done so.
Without them the files' modes say what the kernel would answer.
"""

import json
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

NOBODY = 65_534
"""A user and a group that own nothing."""


def can_change_user() -> bool:
    """Whether this process may become another user."""
    return os.geteuid() == 0


def as_nobody(work: Callable[[], object]) -> object:
    """What `work` answers, as JSON, in a child process of a user without rights."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def reachable(paths: list[Path]) -> list[str]:
    """Names of the files, directories and sockets that another user could read or change."""
    if not can_change_user():
        return [path.name for path in paths if path.stat().st_mode & 0o077]
    ways = [(path.name, way) for path in paths for way in _ways(path)]
    found = as_nobody(lambda: [name for name, way in ways if _works(way)])
    assert isinstance(found, list)
    return found


def _ways(path: Path) -> list[Callable[[], object]]:
    if path.is_socket():
        return [lambda: socket.socket(socket.AF_UNIX).connect(str(path))]
    if path.is_dir():
        return [lambda: list(path.iterdir()), (path / "planted").touch]
    return [lambda: path.open("rb"), lambda: path.open("ab")]


def _works(way: Callable[[], object]) -> bool:
    try:
        way()
    except PermissionError:
        return False
    return True
