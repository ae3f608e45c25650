"""A file that the user may not read is one line that says what to do, in every command."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cli.command import run as run_command

if TYPE_CHECKING:
    import subprocess


def run(*arguments: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """A command of a user who may not read what `directory` does not let him."""
    return run_command(*arguments, cwd=directory, is_plain_user=True)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A directory with `closed`, which may not be entered, and a file that may not be read."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    file = tmp_path / "unreadable.toml"
    file.write_text("port = 1\n")
    file.chmod(0)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "stats", "--data-dir", "closed"),
        ("log", "tail", "--data-dir", "closed"),
        ("log", "verify", "--data-dir", "closed"),
        ("backup", "new.db", "--data-dir", "closed"),
        ("backup", "closed/new.db", "--data-dir", "closed"),
        ("restore", "closed/old.db", "--data-dir", "new"),
        ("serve", "--dev", "--port", "0", "--data-dir", "closed"),
        ("serve", "--dev", "--port", "0", "--data-dir", "closed/inner"),
        ("mesh", "check", "--data-dir", "closed"),
        ("daemon", "status", "--data-dir", "closed/inner"),
        ("daemon", "up", "--data-dir", "closed/inner"),
        ("mesh", "outbox", "list", "--data-dir", "closed/inner"),
        ("config", "check", "--config", "closed/tidelog.toml"),
        ("log", "stats", "--config", "unreadable.toml"),
        ("top", "--config", "unreadable.toml"),
        ("pipeline", "search", "word", "--lake", "closed/lake"),
        ("pipeline", "report", "--lake", "closed/lake"),
    ],
    ids=" ".join,
)
def test_what_may_not_be_read_is_told_in_a_line(locked: Path, arguments: tuple[str, ...]) -> None:
    """No traceback; the path or the setting is named, and the exit code is not 0."""
    result = run(*arguments, directory=locked)
    assert result.returncode in (1, 2), result.stderr
    assert "Traceback" not in result.stderr
    told = [line for line in result.stderr.splitlines() if "DEVELOPMENT MODE" not in line]
    boxed = [line for line in told if line.startswith("│")]
    assert len(told) == 1 or len(boxed) == 1, result.stderr
    assert any(name in result.stderr for name in ("closed", "unreadable.toml", "not readable"))
    assert "lake" not in result.stderr or "--lake" in arguments, "nobody named one"


def test_a_store_that_may_not_be_read_is_not_a_lack_of_memory(tmp_path: Path) -> None:
    """The driver says so; the command says what it is."""
    (tmp_path / "tidelog.db").touch(0)
    result = run("pipeline", "ingest", "--data-dir", ".", directory=tmp_path)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(f"tidelog: the store {tmp_path}/tidelog.db cannot be read: Permission")
    assert "memory" not in line
