"""One token opens the port, and the one before it for a minute (mesh 3.1)."""

import base64
from pathlib import Path

import pytest

from tidelog.daemon.ipc.token_file import GRACE_MS, TokenFile, rotate


def test_a_token_is_made_once(tmp_path: Path) -> None:
    """32 random bytes in base64url, readable by the owner only."""
    path = tmp_path / "token"
    now = 0.0
    tokens = TokenFile(path, lambda: now)
    text = path.read_bytes().strip()
    assert len(base64.urlsafe_b64decode(text + b"=")) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert tokens.accepts(text)
    assert not tokens.accepts(b"")
    assert TokenFile(path, lambda: now).accepts(text)


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("known to others", 0o644)])
def test_a_token_that_protects_nothing_is_replaced(tmp_path: Path, text: str, mode: int) -> None:
    """An empty file would open the port to everybody, a readable one to every local user."""
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    tokens = TokenFile(path, lambda: 0.0)
    assert not tokens.accepts(text.encode())
    assert tokens.accepts(path.read_bytes().strip())
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_old_token_lives_for_a_minute(tmp_path: Path) -> None:
    """And the one before the old one not at all."""
    path = tmp_path / "token"
    now = 0.0
    tokens = TokenFile(path, lambda: now)
    first = path.read_bytes().strip()
    rotate(path)
    second = path.read_bytes().strip()
    assert tokens.accepts(second)
    assert tokens.accepts(first)
    now = GRACE_MS - 1
    assert tokens.accepts(first)
    now = GRACE_MS
    assert not tokens.accepts(first)
    rotate(path)
    assert tokens.accepts(second)
    assert not tokens.accepts(first)


def test_a_file_that_is_gone_or_open_to_others_changes_nothing(tmp_path: Path) -> None:
    """The token in use stays in use."""
    path = tmp_path / "token"
    tokens = TokenFile(path, lambda: 0.0)
    first = path.read_bytes().strip()
    path.unlink()
    assert tokens.accepts(first)
    path.write_text("guessed\n")
    path.chmod(0o644)
    assert not tokens.accepts(b"guessed")
    path.chmod(0o600)
    path.write_text("\n")
    assert not tokens.accepts(b"")
    assert tokens.accepts(first)
