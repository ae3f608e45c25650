"""A damaged outbox: what is kept, what is retired, and what an interruption leaves."""

import random
import sqlite3
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from tidelog.base.errors import ConfigError, StoreDamaged, StoreInUse, TidelogError
from tidelog.base.sql.sqlitefile import DirectoryLock
from tidelog.daemon.outbox.outbox_db import NewSend, Outbox
from tidelog.daemon.outbox.pressure import Pressure
from tidelog.daemon.outbox.recovery import Report, recover, refuse_unfinished
from tidelog.daemon.settings import DiskSettings, OutboxSettings
from tidelog.mesh.protocol.fingerprint import make_envelope

ROWS = 400
PAGE = 4096
NOW = 1_760_000_000_000


def open_outbox(folder: Path) -> Outbox:
    """The outbox in a folder."""
    pressure = Pressure(OutboxSettings(), DiskSettings(reserved_bytes=1), folder, lambda: 0)
    return Outbox(folder / "outbox.db", pressure)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an outbox of small and large rows."""
    outbox = open_outbox(tmp_path)
    sends = []
    for number in range(ROWS):
        body = f"{number} ".encode() * (1 if number % 3 else 3000)
        envelope = make_envelope(destination_kind="topic", destination_ref="t", body=body)
        sends.append(NewSend(f"m{number}", envelope.fingerprint(), envelope.payload()))
    outbox.accept(sends)
    outbox.close()
    return tmp_path


def damage(folder: Path, page: int, content: bytes) -> None:
    """Overwrite a page."""
    with (folder / "outbox.db").open("r+b") as file:
        file.seek(page * PAGE)
        file.write(content)


def run(folder: Path, confirm: Callable[[str], bool] = lambda damage: True) -> Report:
    """Recover."""
    return recover(folder, folder / "lock", NOW, confirm)


@pytest.mark.parametrize("seed", range(12))
def test_one_damaged_page_frees_no_id(folder: Path, seed: int) -> None:
    """Whichever page is lost, every id is still taken, and what is whole is still sent."""
    rng = random.Random(seed)
    pages = (folder / "outbox.db").stat().st_size // PAGE
    damage(folder, rng.randrange(1, pages), rng.randbytes(PAGE) if seed % 2 else bytes(PAGE))
    report = run(folder)
    assert report.copied + report.retired_count == ROWS
    assert Path(report.moved_to or "").exists()
    outbox = open_outbox(folder)
    for number in range(ROWS):
        row, _ = outbox.inspect(f"m{number}")
        if f"m{number}" in report.retired:
            assert (row.status, row.aborted_by) == ("aborted", "auto")
        else:
            assert row.status == "pending"
    outbox.close()


@pytest.fixture
def first_version(tmp_path: Path) -> Path:
    """A folder with an outbox of the first version of the schema."""
    script = (files("tidelog.daemon") / "migrations" / "0001_outbox.sql").read_text()
    with sqlite3.connect(tmp_path / "outbox.db") as connection:
        connection.executescript(script)
        connection.execute("PRAGMA user_version = 1")
        for number in range(ROWS):
            envelope = make_envelope(
                destination_kind="dm", destination_ref="1f" * 32, body=b"%d " % number * 100
            )
            connection.execute(
                "INSERT INTO outbox (id, client_message_id, request_fingerprint, payload,"
                " enqueued_at, next_attempt_at, status) VALUES (?, ?, ?, ?, 0, 0, 'pending')",
                (f"id-{number}", f"m{number}", envelope.fingerprint(), envelope.payload()),
            )
    connection.close()
    return tmp_path


def test_a_damaged_outbox_of_the_first_version_is_recovered(first_version: Path) -> None:
    """It cannot be migrated before; its rows lack what came later."""
    pages = (first_version / "outbox.db").stat().st_size // PAGE
    damage(first_version, pages - 1, bytes(PAGE))
    report = run(first_version)
    assert report.copied + report.retired_count == ROWS
    assert report.copied > ROWS * 9 // 10
    outbox = open_outbox(first_version)
    copied = next(n for n in range(ROWS) if f"m{n}" not in report.retired)
    row, _ = outbox.inspect(f"m{copied}")
    assert (row.status, row.to, row.destination_ref) == ("pending", None, None)
    outbox.close()


def test_the_first_page_of_a_migrated_outbox_is_lost(first_version: Path) -> None:
    """What a migration adds does not move what was there."""
    outbox = open_outbox(first_version)
    outbox.accept([NewSend("new", b"\1" * 32, b"{}", "dm:bob", "1f" * 32)])
    outbox.drop(outbox.inspect("new")[0].id)
    outbox.close()
    damage(first_version, 0, bytes(PAGE))
    report = run(first_version)
    assert (report.copied, report.retired_count, report.unreadable_rows) == (ROWS + 1, 0, 0)
    outbox = open_outbox(first_version)
    assert outbox.counts()["pending"] == ROWS
    row, _ = outbox.inspect("new")
    assert (row.to, row.destination_ref) == ("dm:bob", "1f" * 32)
    outbox.close()


def test_a_recovered_outbox_stays_with_its_mesh(folder: Path) -> None:
    """What was accepted for one mesh is not sent to another after a recovery either."""
    outbox = open_outbox(folder)
    outbox.belong_to("harbour")
    outbox.close()
    damage(folder, 0, bytes(PAGE))
    assert run(folder).copied == ROWS
    outbox = open_outbox(folder)
    with pytest.raises(ConfigError, match="mesh harbour"):
        outbox.belong_to("other")
    outbox.close()


@pytest.mark.parametrize("content", [bytes(PAGE), random.Random(1).randbytes(PAGE)])
def test_the_first_page_is_lost(folder: Path, content: bytes) -> None:
    """It says where the tables begin; every row is found and sent without it."""
    damage(folder, 0, content)
    with pytest.raises(StoreDamaged, match="tidelog mesh recover"):
        open_outbox(folder)
    report = run(folder)
    assert (report.copied, report.retired_count, report.unreadable_rows) == (ROWS, 0, 0)
    outbox = open_outbox(folder)
    assert outbox.counts()["pending"] == ROWS
    outbox.close()
    assert not list(folder.glob(".tidelog-recover-*"))


def test_the_first_page_and_another_are_lost(folder: Path) -> None:
    """What can be read is kept, and no id of it is free."""
    damage(folder, 0, bytes(PAGE))
    damage(folder, 40, bytes(PAGE))
    report = run(folder)
    assert report.copied + report.retired_count == ROWS
    assert report.copied > 0


def test_a_payload_that_reads_well_and_is_wrong_is_retired(folder: Path) -> None:
    """SQLite has no checksums; the fingerprint is one."""
    text = (folder / "outbox.db").read_bytes()
    place = text.rindex(b"399 399 399")
    damage(folder, 0, text[:place] + b"666" + text[place + 3 :])
    pages = len(text) // PAGE
    damage(folder, pages - 1, bytes(PAGE))  # so that the file as a whole is found damaged
    report = run(folder)
    assert "m399" in report.retired
    assert report.copied + report.retired_count == ROWS


def test_a_sound_outbox_is_left_alone(folder: Path) -> None:
    """There is nothing to recover."""
    before = (folder / "outbox.db").read_bytes()
    assert run(folder).was_sound
    assert (folder / "outbox.db").read_bytes() == before


def test_it_asks_first(folder: Path) -> None:
    """A no leaves everything as it is."""
    damage(folder, 5, bytes(PAGE))
    with pytest.raises(TidelogError, match="nothing was changed"):
        run(folder, lambda damage: False)
    assert not list(folder.glob("*.corrupt-*"))


def test_it_is_refused_while_a_daemon_runs(folder: Path) -> None:
    """The lock is the daemon's."""
    lock = DirectoryLock(folder / "lock")
    with pytest.raises(StoreInUse):
        run(folder)
    lock.release()


def test_an_interruption_between_the_renames_is_finished(folder: Path) -> None:
    """A daemon must not start an empty outbox where a full one waits to be put in its place."""
    (folder / "outbox.db").rename(folder / "outbox.db.recovered")
    with pytest.raises(StoreDamaged, match="tidelog mesh recover"):
        refuse_unfinished(folder)
    run(folder)
    refuse_unfinished(folder)
    connection = sqlite3.connect(folder / "outbox.db")
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (ROWS,)
    connection.close()


def test_there_must_be_an_outbox(tmp_path: Path) -> None:
    """The refusal says what to name."""
    with pytest.raises(TidelogError, match="--data-dir"):
        run(tmp_path)
