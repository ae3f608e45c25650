"""A small file system of its own for one test, for which no rights are needed.

Whoever may not mount here may do so in a namespace of its own. A process with threads cannot enter
one, as pytest's may have, so the test's work is done by a child that it forks; what that child
starts is in the namespace too, and nobody else sees the file system.
"""

import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from support.warm import NURSERY

_NEW_MOUNTS = 0x00020000
_NEW_USER = 0x10000000
_REMOUNT = 0x20
_PRIVATE = 0x40000 | 0x4000
"""Flags of unshare(2) and mount(2). What is mounted below is not to show outside."""

_libc = ctypes.CDLL(None, use_errno=True)


class SmallDisk:
    """A file system in memory whose size a test sets; only inside `on_a_small_disk`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: str) -> None:
        """Give it a size, as `mount` writes it."""
        _mount(self.folder, _REMOUNT, f"size={size}")

    def fill(self) -> None:
        """Leave room for a line of a log and not for a send."""
        found = os.statvfs(self.folder)
        size = found.f_bavail * found.f_frsize - 16_384
        with (self.folder / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / "ballast").unlink()


def on_a_small_disk(folder: Path, size: str, work: Callable[[SmallDisk], None]) -> None:
    """Do `work`, which may fail as a test does, with a disk of that size at the folder.

    Args:
        folder: an empty directory, which is one again afterwards.
        size: as `mount` writes it.
        work: a function; it starts the servers and threads that it needs itself, and what it
            changes in this process stays unseen.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            NURSERY.forget()  # what it forks is not in the namespace
            _enter_namespace()
            _mount(folder, 0, f"size={size}")
            work(SmallDisk(folder))
            code = 0
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            traceback.print_exc()
        finally:
            NURSERY.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, "see what the child printed"


def _enter_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_MOUNTS | (_NEW_USER if user else 0)), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None), "mount")


def _mount(folder: Path, flags: int, options: str) -> None:
    done = _libc.mount(
        b"tidelog-test", bytes(folder), b"tmpfs", ctypes.c_ulong(flags), options.encode()
    )
    _checked(done, "mount")


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(
            number,
            f"{call}: {os.strerror(number)}; it takes root, or user namespaces for everybody "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
        )
