"""Names of members on the disk."""

from pathlib import Path

import pytest

from tidelog.daemon.database import StorageFull
from tidelog.daemon.uplink import names_db as module
from tidelog.daemon.uplink.names_db import Names

ALICE, BOB = "a" * 64, "b" * 64


def test_they_outlive_the_process(tmp_path: Path) -> None:
    """The newest key of a name; a name that nobody has any more is gone."""
    names = Names(tmp_path / "names.db")
    assert names.is_new
    names.note({"bob": ALICE, "carol": ALICE})
    names.note({"bob": BOB})
    names.forget("carol")
    names.close()
    names = Names(tmp_path / "names.db")
    assert not names.is_new
    assert (names.key_of("bob"), names.key_of("carol")) == (BOB, None)
    names.close()


def test_who_wrote_counts_only_where_nobody_is_known(tmp_path: Path) -> None:
    """A message may be older than the member that has its sender's name now."""
    names = Names(tmp_path / "names.db")
    names.introduce("bob", ALICE)
    assert names.key_of("bob") == ALICE
    names.note({"bob": BOB})
    names.introduce("bob", ALICE)
    assert names.key_of("bob") == BOB
    names.close()


def test_they_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those go first that have not changed for longest."""
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    names = Names(tmp_path / "names.db")
    for number in range(4):
        names.note({f"name-{number}": ALICE})
    names.note({"name-1": BOB})
    names.note({"name-4": ALICE})
    kept = [number for number in range(5) if names.key_of(f"name-{number}")]
    assert kept == [1, 3, 4]
    names.close()


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    """It is a convenience; the daemon starts without it."""
    (tmp_path / "names.db").write_bytes(b"no database" * 1000)
    names = Names(tmp_path / "names.db")
    assert names.is_new
    names.note({"bob": BOB})
    assert names.key_of("bob") == BOB
    names.close()


def test_a_name_that_cannot_be_kept_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is looked up again; the log says why."""
    names = Names(tmp_path / "names.db")

    def full() -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(names._database, "transaction", full)
    names.note({"bob": BOB})
    assert "no room" in caplog.text
    names.close()
