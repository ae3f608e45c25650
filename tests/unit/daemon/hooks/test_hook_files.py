"""Only what `hooks.toml` names is run, and only what nobody else can write (mesh 8.4)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.other_user import NOBODY, can_change_user
from tidelog.base.errors import ConfigError
from tidelog.daemon.hooks import hook_files
from tidelog.daemon.hooks.hook_files import MAX_TIMEOUT_MS, Hook

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
        lambda folder: folder.chmod(0o770),
        lambda folder: (folder / "hooks.toml").chmod(0o666),
        lambda folder: (folder / "hooks/on-dm").chmod(0o644),
    ],
)
def test_what_others_could_have_written_is_refused(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    """The script, the directories above it and the file; and one that cannot be executed."""
    write(folder, DM)
    spoil(folder)
    with pytest.raises(ConfigError, match="chmod"):
        hook_files.read(folder)


def test_a_directory_with_the_sticky_bit_may_be_above(folder: Path) -> None:
    """There nobody can replace what is another's."""
    write(folder, DM)
    folder.chmod(0o1777)
    assert hook_files.read(folder) == {"on-dm": Hook(MAX_TIMEOUT_MS)}


@pytest.fixture
def linked(folder: Path) -> Path:
    """`on-dm` is a link to `other/link`, and that one, by a relative way, to `place/script`."""
    for name in ("place", "other"):
        (folder / name).mkdir(mode=0o755)
    (folder / "hooks/on-dm").rename(folder / "place/script")
    (folder / "other/link").symlink_to("../place/script")
    (folder / "hooks/on-dm").symlink_to(folder / "other/link")
    write(folder, DM)
    return folder


def test_a_script_may_be_a_link(linked: Path) -> None:
    """If nobody else can change anything on the way to it."""
    assert hook_files.read(linked) == {"on-dm": Hook(MAX_TIMEOUT_MS)}


@pytest.mark.parametrize("place", ["place/script", "place", "other", "."])
def test_the_whole_way_of_a_link_is_looked_at(linked: Path, place: str) -> None:
    """The script, its directory, and those of the links between."""
    (linked / place).chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        hook_files.read(linked)


@pytest.mark.parametrize("name", ["hooks/on-dm", "hooks", "hooks.toml"])
def test_what_belongs_to_another_user_is_refused(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner can change it, whatever its mode says."""
    write(folder, DM)
    if can_change_user():
        os.chown(folder / name, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(ConfigError, match="can be changed by others"):
        hook_files.read(folder)


def test_links_in_a_circle_are_refused(linked: Path) -> None:
    """They lead to no file."""
    (linked / "place/script").unlink()
    (linked / "place/script").symlink_to(linked / "hooks/on-dm")
    with pytest.raises(ConfigError, match="on-dm"):
        hook_files.read(linked)
