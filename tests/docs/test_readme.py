"""The comparison in the README: each cell says where one can look."""

import os
import re
import sys
from pathlib import Path

import pytest

from support.markdown import code
from support.walk import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs/pictures/dashboard.png"
MOST_PICTURE_BYTES = 300_000
"""It is loaded with the README."""

NO_SOURCE = (
    "not measured here",
    "one's own",
    "as the database does",
    "**as old as one's database**",
)
"""Cells that say nothing about somebody else's work."""


def rows() -> list[list[str]]:
    """Rows of the table, each with its cells."""
    section = README.split("\n## Beside others\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_cell_about_tidelog_names_what_shows_it() -> None:
    """The first column names a test or a measuring script, and it is there."""
    assert len(rows()) > 10
    for topic, ours, *_ in rows():
        named = [path for path in code(ours) if path.startswith(("tests/", "bench/"))]
        assert named, f"{topic}: {ours}"
        missing = [path for path in named if not (ROOT / path).is_file()]
        assert not missing, missing


def test_each_cell_about_others_names_its_source() -> None:
    """Every other cell names a source that the list below the table has, or a script of ours."""
    sources = README.split("\nSources. ")[1].split("\n\n")[0]
    known = set(re.findall(r"\b([SIC]\d|O): ", sources))
    for topic, _, *others in rows():
        assert len(others) == 4, topic
        for cell in others:
            named = set(re.findall(r"\[([SIC]\d|O)\]", cell))
            assert named <= known, f"{topic}: {cell}"
            assert named or cell in NO_SOURCE or "`bench/" in cell, f"{topic}: {cell}"
    used = {name for row in rows() for cell in row for name in re.findall(r"\[([SIC]\d|O)\]", cell)}
    assert used == known, "a source that no cell names"


def test_figures_of_the_table_were_measured() -> None:
    """The ratios beside Insieme stand in docs/measurements.md."""
    measured = (ROOT / "docs/measurements.md").read_text(encoding="utf-8")
    [cell] = [row[3] for row in rows() if row[0] == "speed"]
    figures = [figure for figure in re.findall(r"\d+(?:\.\d+)?", cell) if figure != "256"]
    assert figures
    assert all(figure in measured for figure in figures)


def test_the_size_told_is_what_is_installed() -> None:
    """What `scripts/install` puts on the disk is what the README says, give or take a quarter."""
    [told] = re.findall(r"installs (\d+\.\d) GB", README)
    files = {
        (found.st_dev, found.st_ino): found.st_blocks * 512
        for folder, _, names in os.walk(sys.prefix)
        for found in (Path(folder, name).lstat() for name in names)
    }
    assert sum(files.values()) / 1e9 == pytest.approx(float(told), rel=0.25)


def test_the_picture_is_there_and_small() -> None:
    """A picture that was taken of a real server, not too large for a page."""
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert PICTURE.stat().st_size < MOST_PICTURE_BYTES
