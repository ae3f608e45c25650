"""Delta tables that stay open: to look at one that nobody has changed costs two looks at a file.

To open a table means to read its last checkpoint and every commit since. Whoever follows the log
asks for its tables several times a second, so each is opened once, and then only told of the
commits that were added. A table that was removed, or whose commits were rewritten, is opened again.
"""

import threading
from collections.abc import Hashable
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


class Open(NamedTuple):
    """A table, and the commit it is at."""

    table: DeltaTable
    mark: Hashable
    """Tells that commit from another one of the same number."""


class OpenTables:
    """The tables that were asked for, each as its newest commit has it."""

    def __init__(self) -> None:
        self._open: dict[Path, Open] = {}
        self._lock = threading.Lock()

    def at(self, path: Path) -> DeltaTable:
        """The table in a folder.

        Raises:
            TableNotFoundError: there is none.
        """
        with self._lock:
            known = self._open.pop(path, None)
            if known is None or known.mark != self.mark(path, known.table.version()):
                table = self.opened(path)
            else:
                table = known.table
                if self.mark(path, table.version() + 1) is not None:
                    table.update_incremental()
            mark = self.mark(path, table.version())
            if mark is not None:
                self._open[path] = Open(table, mark)
            return table

    def opened(self, path: Path) -> DeltaTable:
        """A table as it is now."""
        return DeltaTable(path)

    def mark(self, path: Path, version: int) -> Hashable | None:
        """What tells a commit from another one of the same number; None if it is not there."""
        try:
            stat = (path / LOG_FOLDER / commit_name(version)).stat()
        except FileNotFoundError:  # if only a checkpoint is left of it, it is opened each time
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


def commit_name(version: int) -> str:
    """The file of a commit."""
    return f"{version:020d}.json"
