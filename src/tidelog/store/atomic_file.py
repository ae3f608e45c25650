"""A file that appears under its name when it is whole, and over another one only if told so.

Until then it lies in a directory of its own beside the name, together with whatever SQLite puts
next to it. That directory goes when the work ends, well or badly; one that a killed process left
is removed by the next that writes there.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidelog.base.errors import StoreUnavailable

_PREFIX, _SUFFIX = "tidelog-", ".partial"

_COMPANIONS = ("-wal", "-journal", "-shm")
"""What SQLite puts beside a file, and would apply to whatever appears under its name."""

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
"""What a file system without hard links fails with."""


def require_free(target: Path, remedy: str) -> None:
    """Refuse a name that is taken, also by a journal that belongs to it; `remedy` ends the message.

    Raises:
        StoreUnavailable: it is taken, or cannot be a name.
    """
    with _naming(target):
        for ending in ("", *_COMPANIONS):
            path = target.with_name(target.name + ending)
            if path.exists() or path.is_symlink():
                raise StoreUnavailable(f"{path} exists already; {remedy}")


@contextmanager
def new_file(target: Path, remedy: str) -> Iterator[Path]:
    """Where to write; if the block ends well, what is there is synced and becomes `target`.

    Raises:
        StoreUnavailable: the name is taken, from the start or meanwhile, or the directory cannot be
            written to.
    """
    require_free(target, remedy)
    with _directory(target) as directory:
        partial = directory / target.name
        yield partial
        with _naming(target):
            _sync(partial)
            require_free(target, remedy)
            try:
                _give_name(partial, target)
            except FileExistsError:
                raise StoreUnavailable(f"{target} exists already; {remedy}") from None
            _sync(target.parent)


@contextmanager
def replacement(target: Path) -> Iterator[Path]:
    """Where to write; if the block ends well, what is there is synced and replaces `target`.

    Raises:
        StoreUnavailable: the directory cannot be written to.
    """
    with _directory(target) as directory:
        partial = directory / target.name
        yield partial
        with _naming(target):
            _sync(partial)
            partial.replace(target)
            _sync(target.parent)


def cannot_write(target: Path, error: Exception) -> StoreUnavailable:
    """What to tell an operator whose `target` could not be written."""
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return StoreUnavailable(
        f"{target} could not be written: {reason}. Check the name, the permissions and the free "
        "space of the disk, or name another file."
    )


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(target, error) from error


@contextmanager
def _directory(target: Path) -> Iterator[Path]:
    """A new directory beside `target`, locked for as long as it is in use."""
    with _naming(target):
        _remove_abandoned(target.parent)
        directory, lock = _make_directory(target.parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _make_directory(parent: Path) -> tuple[Path, int]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=parent))
        lock = os.open(directory, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: nobody will take it for abandoned
            fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return directory, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # in use, not ours, or gone
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
            finally:
                os.close(lock)


def _give_name(partial: Path, target: Path) -> None:
    """Like a rename that fails if there is something under the name."""
    try:
        os.link(partial, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Whoever makes the empty file has the name, and only that one replaces it.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        partial.replace(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
