"""What a store holds is its owner's: messages, and secrets of webhooks."""

from pathlib import Path

from tidelog.config.schema import SCHEMA
from tidelog.store.backup import back_up, restore
from tidelog.store.sqlite import SqliteStore


def mode(path: Path) -> int:
    """Who may do what with a file."""
    return path.stat().st_mode & 0o777


async def test_a_store_its_backup_and_its_copy_are_private(tmp_path: Path) -> None:
    """Whatever the umask is; and so is the journal beside an open store."""
    path, backup, copy = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "c.db"
    store = SqliteStore(SCHEMA, path, log_id="log")
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    assert {file.name: mode(file) for file in files} == {file.name: 0o600 for file in files}
    await store.close()
    await back_up(SCHEMA, str(path), backup, lambda done, total: None)
    await restore(SCHEMA, backup, str(copy), lambda done, total: None)
    assert (mode(backup), mode(copy)) == (0o600, 0o600)


async def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """An operator who opened it to a group had a reason."""
    path = tmp_path / "a.db"
    await SqliteStore(SCHEMA, path, log_id="log").close()
    path.chmod(0o640)
    await SqliteStore(SCHEMA, path, log_id="log").close()
    assert mode(path) == 0o640
