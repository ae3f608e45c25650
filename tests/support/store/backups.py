"""`tidelog backup` and `tidelog restore` as the tests of the store use them."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from support.cli.inside import invoked
from tidelog.base.errors import TidelogError


def command(*arguments: str) -> dict[str, Any]:
    """What `tidelog ... --json` prints when it succeeds; its error otherwise."""
    result = invoked([*arguments, "--json"])
    if isinstance(result.exception, TidelogError):
        raise result.exception
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def files_in(folder: Path) -> list[str]:
    """The names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def silent(done: int, total: int) -> None:
    """Nobody watches the progress."""
    assert 0 <= done <= total


def run_sql(script: str) -> Callable[[Path], None]:
    """Damage by SQL."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)

    return damage
