"""Programs of ours that are started by others of ours."""

import subprocess
from pathlib import Path

from tidelog.base.own_program import own_program
from tidelog.base.parent_death import tied


def test_nothing_is_imported_from_where_somebody_is(tmp_path: Path) -> None:
    """A file with the name of a module that they import: it would run as whoever serves."""
    for name in ("ctypes", "json", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    command = tied(own_program("json.tool", "--help"))
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "usage" in ran.stdout
