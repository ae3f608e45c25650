"""Named statements in packaged files."""

from importlib.resources import files
from pathlib import Path

import pytest

from support.probe.service import EXTENSION
from tidelog.base.sql.queries import load_queries
from tidelog.config.schema import SCHEMA


def test_statements_are_found_by_name(tmp_path: Path) -> None:
    """Each name gives the text up to the next name, over all .sql files of a folder."""
    (tmp_path / "b.sql").write_text("-- name: two\n-- Why.\nSELECT 2;\n")
    (tmp_path / "a.sql").write_text(
        "-- A file may begin with a remark.\n\n"
        "-- name: one\nSELECT\n  1;\n\n-- name: three\nSELECT 3;"
    )
    (tmp_path / "notes.txt").write_text("-- name: none\nSELECT 0;")
    assert load_queries(tmp_path) == {
        "one": "SELECT\n  1;",
        "three": "SELECT 3;",
        "two": "-- Why.\nSELECT 2;",
    }


def test_a_marker_inside_a_line_is_no_name(tmp_path: Path) -> None:
    """Only a line that is nothing but the marker names a statement."""
    (tmp_path / "a.sql").write_text("-- name: one\nSELECT '-- name: two';\n  -- name: three\n")
    assert list(load_queries(tmp_path)) == ["one"]


@pytest.mark.parametrize("other", ["a.sql", "b.sql"])
def test_a_name_is_used_once(tmp_path: Path, other: str) -> None:
    """The same name again, in the same file or another, is a mistake that names itself."""
    (tmp_path / "a.sql").write_text("-- name: one\nSELECT 1;\n")
    with (tmp_path / other).open("a") as file:
        file.write("-- name: one\nSELECT 2;\n")
    with pytest.raises(ValueError, match=rf"{other}.*'one' is used twice"):
        load_queries(tmp_path)


def test_an_empty_folder_has_no_statements(tmp_path: Path) -> None:
    """No files, no statements."""
    assert load_queries(tmp_path) == {}


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_packaged_statements_say_what_they_are_for(engine: str) -> None:
    """Every statement begins with a comment and holds exactly one statement or a script."""
    for queries in (SCHEMA.queries(engine), EXTENSION.queries[engine]):
        assert queries
        for name, text in queries.items():
            assert text.startswith("-- "), name
            assert text.endswith(";"), name


def test_the_probes_statements_do_not_hide_ours() -> None:
    """A surface's names and the built-in ones are apart, on both engines alike."""
    for engine in ("sqlite", "postgresql"):
        assert not EXTENSION.queries[engine].keys() & SCHEMA.queries(engine).keys()
    assert EXTENSION.queries["sqlite"].keys() == EXTENSION.queries["postgresql"].keys()


def test_statements_are_read_from_the_package() -> None:
    """The files are found wherever the package is installed."""
    assert "head" in load_queries(files("tidelog.store") / "sql", ".sqlite.sql")
