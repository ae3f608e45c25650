"""Generated files are what the program and the tests say today."""

import subprocess

from support.docs.walk import ROOT
from tidelog.pipeline.tables import TABLES

WAIT_SECONDS = 120.0


def test_the_generated_files_are_current() -> None:
    """`scripts/generate` would write nothing."""
    compared = subprocess.run(
        ["scripts/generate", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert compared.returncode == 0, (
        f"run: scripts/generate\n{compared.stdout[-4000:]}{compared.stderr[-2000:]}"
    )


def test_every_table_says_what_it_costs() -> None:
    """The page lists the tables of `tables.py`, in their order, and leaves none out."""
    lines = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8").splitlines()
    begin = lines.index("| table | it reads | it writes again | where |") + 2
    rows = [line.split("|") for line in lines[begin : lines.index("", begin)]]
    assert [row[1].strip() for row in rows] == [f"`{table.name}`" for table in TABLES]
