"""What `tidelog restore` takes for a backup: tidelog's schema, and rows that belong together."""

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from support.store.backups import command, files_in, run_sql
from tidelog.base.errors import StoreDamaged

ARCHIVES = Path(__file__).parents[2] / "fixtures" / "upgrade"

FOREIGN = {
    "trigger": (
        "CREATE TRIGGER evil AFTER INSERT ON mesh_invite BEGIN DELETE FROM mesh_setting; END",
        "the trigger evil is not tidelog's",
    ),
    "trigger that is called like a view": (
        "CREATE TRIGGER sync_meta AFTER INSERT ON log BEGIN DELETE FROM mesh_setting; END",
        "the trigger sync_meta is not tidelog's",
    ),
    "trigger on a table of others": (
        "CREATE TRIGGER evil AFTER INSERT ON probe_stream BEGIN DELETE FROM log; END",
        "the trigger evil is not tidelog's",
    ),
    "view": ("CREATE VIEW more AS SELECT 1", "the view more is not tidelog's"),
    "changed view": (
        "DROP VIEW sync_meta; CREATE VIEW sync_meta AS SELECT 9 AS last_committed_id",
        "the view sync_meta is not the one tidelog makes",
    ),
    "index": (
        "CREATE UNIQUE INDEX once ON mesh_setting (id)",
        "the index once is not tidelog's",
    ),
    "missing index": ("DROP INDEX log_stream_serial", "the index log_stream_serial is missing"),
    "missing table": ("DROP TABLE mesh_member", "the table mesh_member is missing"),
    "another column": (
        "ALTER TABLE head ADD COLUMN more TEXT",
        "the table head is not the one tidelog makes",
    ),
    "another table": (
        "DROP TABLE mesh_queue; CREATE TABLE mesh_queue (mesh_id TEXT, id TEXT, at INTEGER)",
        "the table mesh_queue is not the one tidelog makes",
    ),
    "virtual table": (
        "CREATE VIRTUAL TABLE found USING fts5(words)",
        "the table found is not tidelog's",
    ),
    "lower version": (
        "PRAGMA user_version = 3",
        "version is 3, but the table .* came later",
    ),
    "no version": ("PRAGMA user_version = 0", "says that it has no schema"),
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_foreign_schema_is_refused(backup_file: Path, tmp_path: Path, foreign: str) -> None:
    """Whatever is missing, changed or added, the message names it and nothing is restored."""
    script, difference = FOREIGN[foreign]
    run_sql(script)(backup_file)
    with pytest.raises(StoreDamaged, match=f"{backup_file.name}.* {difference}.*another backup"):
        command("restore", str(backup_file), "--data-dir", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert files_in(tmp_path) == sorted([backup_file.name, "source"])


def test_spaces_and_comments_do_not_matter(backup_file: Path, tmp_path: Path) -> None:
    """A migration may be laid out anew without making earlier backups foreign."""
    run_sql(
        "PRAGMA writable_schema = ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', ' /* always */\n  NOT NULL')"
    )(backup_file)
    restored = command("restore", str(backup_file), "--data-dir", str(tmp_path / "new"))
    assert restored["head"] == 300


def test_tables_of_other_surfaces_are_restored(backup_file: Path, tmp_path: Path) -> None:
    """A surface that ships outside the package has tables of its own, with indexes."""
    run_sql("CREATE INDEX probe_weight ON probe_stream (weight)")(backup_file)
    command("restore", str(backup_file), "--data-dir", str(tmp_path / "new"))
    with closing(sqlite3.connect(tmp_path / "new" / "tidelog.db")) as connection:
        assert connection.execute("SELECT puts FROM probe_stream").fetchall() == [(300,)]


@pytest.fixture
def mesh_backup(tmp_path: Path) -> Path:
    """A file of the previous version, with sends of the mesh in it."""
    with tarfile.open(ARCHIVES / "previous.tar.gz") as archive:
        archive.extractall(tmp_path / "previous", filter="data")
    file = tmp_path / "previous" / "tidelog.db"
    run_sql("PRAGMA journal_mode = DELETE")(file)
    return file


def test_an_earlier_version_with_later_tables_is_refused(mesh_backup: Path, tmp_path: Path) -> None:
    """What a migration would stumble over is found before it runs, in the file itself."""
    run_sql("CREATE TABLE mesh_used_token (token TEXT)")(mesh_backup)
    with pytest.raises(StoreDamaged, match="version is 5, but the table mesh_used_token"):
        command("restore", str(mesh_backup), "--data-dir", str(tmp_path / "new"))
    assert files_in(mesh_backup.parent) == ["tidelog.db"]


@pytest.mark.parametrize("emptied", ["", "dedupe"])
def test_emptied_relations_of_the_mesh_are_found(
    mesh_backup: Path, tmp_path: Path, emptied: str
) -> None:
    """Rows that no digest covers are compared with the log: without its ids it is refused."""
    arguments = ("restore", str(mesh_backup), "--data-dir", str(tmp_path / "new"))
    if not emptied:
        assert command(*arguments)["verified"] is True
        return
    run_sql(f"DELETE FROM {emptied}")(mesh_backup)
    with pytest.raises(StoreDamaged, match=r"damaged rows .*: is missing.*another backup"):
        command(*arguments)
    assert not (tmp_path / "new").exists()
    assert files_in(mesh_backup.parent) == ["tidelog.db"]
