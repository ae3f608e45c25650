"""The import contracts: what they must refuse, they refuse."""

import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "tidelog"

PLANTED = {
    "channels/decide/rules.py": ("import tidelog.channels.front.service", "surfaces: "),
    "sync/decide/rules.py": ("import time", "protocol and decide are pure"),
    "base/ids.py": ("import tidelog.mesh.protocol.wire", "rooms: "),
    "web/routing.py": ("import tidelog.log.committer", "front and web"),
}
"""An import that must not be, and the beginning of the contract that says so."""

SURFACE = re.compile(r"(channels|mesh|sync)[_/]\w")


def test_imports_that_must_not_be_are_found(tmp_path: Path) -> None:
    """Each of them breaks the contract that is about it."""
    shutil.copytree(SOURCE, tmp_path / "tidelog", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for name, (line, _) in PLANTED.items():
        with (tmp_path / "tidelog" / name).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    wide = {**os.environ, "COLUMNS": "200"}  # or names are broken into lines
    found = subprocess.run(
        command, cwd=tmp_path, env=wide, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1, found.stdout + found.stderr
    broken = [line for line in found.stdout.splitlines() if "BROKEN" in line]
    for name, (_, contract) in PLANTED.items():
        assert any(line.startswith(contract) for line in broken), (name, found.stdout)


@pytest.mark.parametrize("room", ["base", "store"])
def test_base_and_store_name_no_surface(room: str) -> None:
    """Neither a table, a statement, a setting nor a metric of one; comments may refer to them."""
    named = []
    for path in sorted((SOURCE / room).rglob("*")):
        if path.suffix == ".sql":
            named += [(path.name, match[0]) for match in SURFACE.finditer(path.read_text("utf-8"))]
        elif path.suffix == ".py":
            tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
            named += [
                (path.name, token.string)
                for token in tokens
                if token.type in (tokenize.NAME, tokenize.STRING)
                and not token.string.startswith('"""')
                and SURFACE.search(token.string)
            ]
    assert not named
