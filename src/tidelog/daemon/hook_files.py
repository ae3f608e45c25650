"""Which hooks a daemon may run: `hooks.toml`, and the scripts that it names (mesh 15).

A script that lies in the directory is not run by that alone. It must be named, and nobody but its
owner may be able to write it: whoever can change it can do what the daemon's user can.
"""

import os
import re
import stat
from collections.abc import Mapping
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
    _refuse_writable(path)
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
        _check(data_dir / FOLDER_NAME / name)
    if hooks:
        _refuse_writable(data_dir / FOLDER_NAME)
    return hooks


def topic_hook(topic: str) -> str:
    """The name of a topic's hook."""
    return f"{_TOPIC_PREFIX}{topic}"


def _check(script: Path) -> None:
    if not script.is_file():
        raise ConfigError(f"{script} is named in {FILE_NAME} and is not there, or is no file")
    _refuse_writable(script)
    if not os.access(script, os.X_OK):
        raise ConfigError(f"{script} cannot be executed. Run: chmod 700 {script}")


def _refuse_writable(path: Path) -> None:
    """Refuse what another user could have written, a link's target included."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{path} can be written by others, who could run anything as you by it. "
            f"Run: chmod go-w {path}, and make sure that it is yours"
        )
