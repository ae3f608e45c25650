"""Which hooks a daemon may run: `hooks.toml`, and the scripts that it names (mesh 8.4).

A script that lies in the directory is not run by that alone. It must be named, and nobody but the
daemon's user and root may be able to change it, or to put something else into its place: whoever
can does what the daemon's user can. That is looked at when the daemon starts and before each run.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from tidelog.base.errors import ConfigError

FILE_NAME = "hooks.toml"
FOLDER_NAME = "hooks"

MAX_TIMEOUT_MS = 30_000
"""A hook that runs for longer is ended; more work belongs into a program that follows the inbox."""

NAMES = (
    *("on-message", "on-dm", "on-mention", "on-disconnect", "on-reconnect", "on-startup"),
    "pre-send",
)
"""Every hook but those of topics."""

_MAX_LINKS = 40
"""On the way to one file, as the kernel has it."""

_TOPIC_PREFIX = "on-topic-"
_TOPIC_HOOK = re.compile(rf"{_TOPIC_PREFIX}[A-Za-z0-9._-]{{1,100}}")


class Hook(Struct, frozen=True, forbid_unknown_fields=True):
    """A hook that is allowed."""

    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] = MAX_TIMEOUT_MS


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    hooks: dict[str, Hook] = field(default_factory=dict)


def read(data_dir: Path) -> Mapping[str, Hook]:
    """The hooks of a data directory by name; none without `hooks.toml`.

    Raises:
        ConfigError: the file cannot be understood, or a script that it names must not be run.
    """
    path = data_dir / FILE_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    _refuse_changeable(path)
    try:
        hooks = msgspec.toml.decode(content, type=_File).hooks
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: {error}. Write one table for each hook, as [hooks.on-dm]"
        ) from error
    for name in hooks:
        if name not in NAMES and not _TOPIC_HOOK.fullmatch(name):
            raise ConfigError(
                f"{path}: there is no hook {name!r}. There are {', '.join(NAMES)} and "
                f"{_TOPIC_PREFIX}NAME"
            )
        check(data_dir / FOLDER_NAME / name)
    return hooks


def topic_hook(topic: str) -> str:
    """The name of a topic's hook."""
    return f"{_TOPIC_PREFIX}{topic}"


def check(script: Path) -> None:
    """Refuse a script that must not be run.

    Raises:
        ConfigError: it is not there, others can change it, or it cannot be executed.
    """
    if not script.is_file():
        raise ConfigError(f"{script} is named in {FILE_NAME} and does not exist, or is not a file")
    _refuse_changeable(script)
    if not os.access(script, os.X_OK):
        raise ConfigError(f"{script} cannot be executed. Run: chmod 700 {script}")


def _refuse_changeable(path: Path) -> None:
    """Refuse what another user could have written or replaced, at any point on the way to it."""
    try:
        for here, status in _way(path):
            if status.st_uid not in (0, os.geteuid()) or _is_writable(status):
                raise ConfigError(
                    f"{here} can be changed by others, who could run anything as you through it. "
                    f"Run: chmod go-w {here}, and make sure that it is yours or root's"
                )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _is_writable(status: os.stat_result) -> bool:
    """Whether others can write it, or replace what is in it."""
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return False  # its mode says nothing, and it cannot be written, only replaced
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False  # as `/tmp`: others cannot replace what is not theirs
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH))


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every directory and every link that leads to a file, and the file."""
    left = list(reversed(path.absolute().parts))
    here = Path(left.pop())
    yield here, here.lstat()
    links = 0
    while left:
        found = here / left.pop()
        status = found.lstat()
        yield found, status
        if not stat.S_ISLNK(status.st_mode):
            here = found
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = here / found.readlink()
        here = Path(target.anchor)
        left += reversed(target.parts[1:])
