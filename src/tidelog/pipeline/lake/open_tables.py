"""Delta tables that stay open: to look at one that nobody has changed costs two looks at a file.

To open a table means to read its last checkpoint and every commit since. Whoever follows the log
asks for its tables several times a second, so each is opened once, and then only told of the
commits that were added. A table that was removed, or whose commits were rewritten, is opened again.
"""

import threading
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

LOG_FOLDER = "_delta_log"

RETENTION = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
    "delta.checkpointInterval": "50",
}
"""How long a table remembers. Every `checkpointInterval` commits delta-rs writes a checkpoint, and
takes away the commits before one that is older than a day; a file that was replaced is named in
checkpoints for two hours, longer than the file itself stays."""

FOLLOWED_RETENTION = {**RETENTION, "delta.logRetentionDuration": "interval 1 hours"}
"""Of a table that gets a commit every second, so long as its files stay: a commit looks at the
names of all others, and at those of a day it would take most of a second."""


class _Open(NamedTuple):
    table: DeltaTable
    mark: tuple[int, int, int]
    """Of the commit it is at."""


class OpenTables:
    """The tables that were asked for, each as its newest commit has it."""

    def __init__(self) -> None:
        self._open: dict[Path, _Open] = {}
        self._lock = threading.Lock()

    def at(self, path: Path) -> DeltaTable:
        """The table in a folder.

        Raises:
            TableNotFoundError: there is none.
        """
        with self._lock:
            known = self._open.pop(path, None)
            if known is None or known.mark != _mark(path, known.table.version()):
                table = DeltaTable(path)
            else:
                table = known.table
                if _commit(path, table.version() + 1).exists():
                    table.update_incremental()
            mark = _mark(path, table.version())
            if mark is not None:
                self._open[path] = _Open(table, mark)
            return table


def _commit(path: Path, version: int) -> Path:
    return path / LOG_FOLDER / f"{version:020d}.json"


def _mark(path: Path, version: int) -> tuple[int, int, int] | None:
    """What tells a commit from another one of the same number; None if it is not there."""
    try:
        stat = _commit(path, version).stat()
    except FileNotFoundError:  # if only a checkpoint is left of it, it is opened each time
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
