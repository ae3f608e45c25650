"""Only what `hooks.toml` names is run, and only what nobody else can write (mesh 15)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.base.errors import ConfigError
from tidelog.daemon import hook_files
from tidelog.daemon.hook_files import MAX_TIMEOUT_MS, Hook

DM = "[hooks.on-dm]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with the scripts `on-dm` and `on-topic-tides`, and no `hooks.toml`."""
    scripts = tmp_path / "hooks"
    scripts.mkdir(mode=0o755)
    for name in ("on-dm", "on-topic-tides"):
        (scripts / name).write_text("#!/bin/sh\n")
        (scripts / name).chmod(0o755)
    return tmp_path


def write(folder: Path, text: str) -> None:
    """Write `hooks.toml`."""
    path = folder / "hooks.toml"
    path.write_text(text)
    path.chmod(0o644)


def test_without_the_file_there_are_none(folder: Path) -> None:
    """Scripts alone are not run."""
    assert hook_files.read(folder) == {}


def test_those_that_are_named(folder: Path) -> None:
    """Each with its timeout; a script that is not named is not run."""
    write(folder, "[hooks.on-topic-tides]\ntimeout_ms = 500\n")
    assert hook_files.read(folder) == {"on-topic-tides": Hook(500)}
    write(folder, DM)
    assert hook_files.read(folder) == {"on-dm": Hook(MAX_TIMEOUT_MS)}


@pytest.mark.parametrize(
    "text",
    [
        "hooks = 1",
        "[hooks.on-dm]\ntimeout_ms = 0",
        f"[hooks.on-dm]\ntimeout_ms = {MAX_TIMEOUT_MS + 1}",
        "[hooks.on-dm]\ncommand = 'rm'",
        "[other]\n",
        "[hooks.on-file-share]\n",
        "[hooks.'../on-dm']\n",
        "[hooks.'on-topic-a/b']\n",
        "[hooks.on-topic-]\n",
        "[hooks.on-message]\n",
        "[hooks",
    ],
)
def test_what_cannot_be_understood_is_refused(folder: Path, text: str) -> None:
    """Unknown names and settings, a script that is not there, a path out of the directory."""
    write(folder, text)
    with pytest.raises(ConfigError):
        hook_files.read(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "hooks/on-dm").chmod(0o775),
        lambda folder: (folder / "hooks/on-dm").chmod(0o757),
        lambda folder: (folder / "hooks").chmod(0o777),
        lambda folder: (folder / "hooks.toml").chmod(0o666),
        lambda folder: (folder / "hooks/on-dm").chmod(0o644),
    ],
)
def test_what_others_could_have_written_is_refused(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    """The script, its directory and the file; and one that cannot be executed."""
    write(folder, DM)
    spoil(folder)
    with pytest.raises(ConfigError, match="chmod"):
        hook_files.read(folder)
