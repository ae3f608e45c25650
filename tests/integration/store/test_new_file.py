"""Files that `tidelog backup` and `restore` write: whole, never over another, and no remains."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.command import run as run_command
from support.log.nodes import put_item, running_node
from support.other_user import as_nobody, can_change_user
from support.store.backups import command, files_in, silent
from tidelog.base.errors import StoreUnavailable
from tidelog.config.schema import SCHEMA
from tidelog.store.atomic_file import new_file
from tidelog.store.backup import back_up, restore

SECONDS = 60.0
VALUE = b'"' + b"x" * 2000 + b'"'


async def write_log(location: str) -> None:
    """Some hundred kilobytes."""
    async with running_node(location) as node:
        await node.put_many([put_item("s", f"key-{number}", VALUE) for number in range(200)])


def run(*arguments: str, file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a process, in which a file may be limited as a full disk limits it."""
    if file_bytes is None:
        return run_command(*arguments)
    limits = (file_bytes, file_bytes)
    return subprocess.run(
        [sys.executable, "-m", "tidelog", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
    )


def failure(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command which failed has printed."""
    assert result.returncode == 1, result
    [line] = result.stderr.splitlines()
    assert line.startswith("tidelog: ")
    return line


async def test_a_file_that_appears_during_a_backup_is_kept(
    store_location: str, tmp_path: Path
) -> None:
    """Whoever made it, and whatever it is; and nothing else is left."""
    await write_log(store_location)
    target = tmp_path / "backups" / "b.db"
    target.parent.mkdir()

    def appear(_done: int, _total: int) -> None:
        target.write_bytes(b"precious")

    with pytest.raises(StoreUnavailable, match=r"b\.db exists already; .*Name a new file"):
        await back_up(SCHEMA, store_location, target, appear)
    assert target.read_bytes() == b"precious"
    assert files_in(target.parent) == ["b.db"]


@pytest.mark.parametrize("ending", ["", "-wal"])
async def test_a_file_that_appears_during_a_restore_is_kept(
    backup_file: Path, tmp_path: Path, ending: str
) -> None:
    """Also a journal that SQLite would apply to what is restored."""
    target = tmp_path / "data" / "tidelog.db"
    other = target.with_name(target.name + ending)

    def appear(_done: int, _total: int) -> None:
        other.write_bytes(b"precious")

    with pytest.raises(StoreUnavailable, match=f"{other.name} exists already; .*Move it aside"):
        await restore(SCHEMA, backup_file, str(target), appear)
    assert other.read_bytes() == b"precious"
    assert files_in(target.parent) == sorted([other.name, "tidelog.db.lock"])


async def test_of_two_backups_to_one_name_the_first_to_end_has_it(
    store_location: str, tmp_path: Path
) -> None:
    """The other is refused, and the file is one of them and sound."""
    await write_log(store_location)
    folder = tmp_path / "backups"
    folder.mkdir()
    others: list[subprocess.CompletedProcess[str]] = []

    def begin_others(_done: int, _total: int) -> None:
        if not others:
            names = (str(folder / name) for name in ("b.db", "c.db"))
            others.extend(run("backup", name, "--store", store_location) for name in names)

    with pytest.raises(StoreUnavailable, match=r"b\.db exists already"):
        await back_up(SCHEMA, store_location, folder / "b.db", begin_others)
    assert [other.returncode for other in others] == [0, 0], others
    assert files_in(folder) == ["b.db", "c.db"]
    for name in ("b.db", "c.db"):
        verified = await asyncio.to_thread(run, "log", "verify", "--store", str(folder / name))
        assert "sound: 200 entries" in verified.stdout


def test_a_backup_to_a_full_disk_names_it_and_leaves_nothing(
    store_location: str, tmp_path: Path
) -> None:
    """Not the store, which is sound; journals go too."""
    asyncio.run(write_log(store_location))
    folder = tmp_path / "backups"
    folder.mkdir()
    target = folder / "b.db"
    arguments = ("backup", str(target), "--store", store_location)
    line = failure(run(*arguments, file_bytes=65_536))
    assert line.startswith(f"tidelog: {target} could not be written: ")
    assert "free space" in line
    assert files_in(folder) == []


def test_a_restore_to_a_full_disk_names_it_and_leaves_nothing(
    backup_file: Path, tmp_path: Path
) -> None:
    """The backup is not to blame."""
    folder = tmp_path / "data"
    arguments = ("restore", str(backup_file), "--data-dir", str(folder))
    line = failure(run(*arguments, file_bytes=65_536))
    assert line.startswith(f"tidelog: {folder / 'tidelog.db'} could not be written: ")
    assert files_in(folder) == ["tidelog.db.lock"]


def test_usual_mistakes_are_one_line(backup_file: Path, tmp_path: Path) -> None:
    """A name that is too long, a data directory inside a file, a directory as the backup."""
    source = str(tmp_path / "source")
    before = files_in(tmp_path)
    line = failure(run("backup", str(tmp_path / ("n" * 250)), "--data-dir", source))
    assert "could not be written: File name too long. Check the name" in line
    line = failure(run("restore", str(backup_file), "--data-dir", str(backup_file / "x")))
    assert "Name another --data-dir" in line
    line = failure(run("restore", source, "--data-dir", str(tmp_path / "new")))
    assert "cannot be read: Is a directory. Name a file that `tidelog backup` wrote" in line
    line = failure(run("backup", str(tmp_path / "b.db"), "--data-dir", str(tmp_path / "none")))
    assert "there is no log at" in line
    assert files_in(tmp_path) == before


def test_a_source_or_a_place_without_permission_is_named(backup_file: Path, tmp_path: Path) -> None:
    """Whoever may not read the backup, or not write beside the target, is told which it is."""
    place = tmp_path / "place"
    place.mkdir(mode=0o500)

    def messages() -> list[str]:
        found = []
        for job in (
            restore(SCHEMA, backup_file, str(tmp_path / "new" / "tidelog.db"), silent),
            back_up(SCHEMA, str(tmp_path / "source" / "tidelog.db"), place / "b.db", silent),
        ):
            try:
                asyncio.run(job)
            except StoreUnavailable as error:
                found.append(str(error))
        return found

    if can_change_user():
        answer = as_nobody(messages)
        assert isinstance(answer, list)
    else:
        backup_file.chmod(0)
        answer = messages()
    [unreadable, unwritable] = answer
    assert f"{backup_file} cannot be read: Permission denied. Name a file" in unreadable
    assert f"{place / 'b.db'} could not be written: Permission denied. Check" in unwritable


def test_remains_of_a_killed_process_go_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    """What nobody has locked was abandoned; a file of that name is none of ours."""
    abandoned = tmp_path / "tidelog-abandoned.partial"
    abandoned.mkdir()
    (abandoned / "b.db-journal").write_bytes(b"x")
    (tmp_path / "tidelog-mine.partial").write_bytes(b"precious")
    with new_file(tmp_path / "a.db", "") as first:
        assert not abandoned.exists()
        with new_file(tmp_path / "b.db", "") as second:
            first.write_bytes(b"1")
            second.write_bytes(b"2")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.db": b"1",
        "b.db": b"2",
        "tidelog-mine.partial": b"precious",
    }


def test_without_hard_links_nothing_is_overwritten_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems have none; mounting one takes rights that tests do not have."""

    def refuse(*_paths: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "a.db"
    with new_file(target, "") as partial:
        partial.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    target.unlink()
    monkeypatch.setattr("tidelog.store.atomic_file.require_free", lambda *_: None)

    def come_late() -> None:
        with new_file(target, "") as partial:
            partial.write_bytes(b"late")
            target.write_bytes(b"precious")

    with pytest.raises(StoreUnavailable, match=r"a\.db exists already"):
        come_late()
    assert target.read_bytes() == b"precious"
    assert files_in(tmp_path) == ["a.db"]


def test_the_command_says_what_it_verified(backup_file: Path, tmp_path: Path) -> None:
    """Everything: a file, its log, and every row beside it."""
    done = run("restore", str(backup_file), "--data-dir", str(tmp_path / "new"))
    assert done.stdout.splitlines() == [
        f"restored and verified: head 300, from {backup_file} to {tmp_path / 'new' / 'tidelog.db'}",
        "verified: the schema, every page, the digests of the log, every row beside the log",
    ]
    assert command("log", "verify", "--data-dir", str(tmp_path / "new"))["sound"] is True
