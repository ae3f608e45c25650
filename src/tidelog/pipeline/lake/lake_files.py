"""Where the files of a lake are kept: what tells a directory from an object store.

All work is done on files of a directory, by Spark, Arrow, tantivy and whoever else. If the lake is
on an object store (see `object_files`), that directory has copies of it: a file of a table never
changes, so it is fetched once, and what is written is sent before a commit names it.
"""

import shutil
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.schema import Schema

from tidelog.pipeline.lake.open_tables import OpenTables
from tidelog.pipeline.lake.seal import is_as_written


class LakeFiles(Protocol):
    """What a lake asks of the place it is in; a table is called by its folder in the directory."""

    name: str
    """What people call the lake."""
    look_seconds: float
    """How often somebody who waits for the right to write asks for it."""

    def take(self) -> bool:
        """Take the right to write, of which this machine's lock is a part; False if it is taken."""

    def is_mine(self) -> bool:
        """Whether it was not lost since, as far as this process knows."""

    def is_known_to_be_mine(self) -> bool:
        """Whether it was not lost since; for what cannot be taken back."""

    def give_back(self) -> None:
        """Let others write."""

    def address(self, folder: Path) -> str:
        """What people call the place of a table."""

    def table(self, folder: Path) -> DeltaTable:
        """A table as its newest commit has it.

        Raises:
            TableNotFoundError: there is none.
        """

    def table_now(self, folder: Path) -> DeltaTable:
        """The same, and it stays as it is now."""

    def create(self, folder: Path, schema: Schema, **options: Any) -> None:
        """Make a table, if there is none.

        Raises:
            CommitFailedError: somebody else has made it meanwhile.
        """

    def committed(self, folder: Path, version: int) -> None:
        """Note that this process has made a version of a table."""

    def path(self, folder: Path, uri: str) -> str:
        """The path of a file that the table calls so."""

    def fetch(self, folder: Path, files: Iterable[str]) -> bool:
        """Have files of a table in the directory; returns whether one had to come.

        Raises:
            FileNotFoundError: one is gone; a newer commit does not name it.
        """

    def send(self, files: Iterable[Path]) -> None:
        """Have files of the directory where the lake is."""

    def is_as_written(self, file: Path) -> bool:
        """Whether a file, where the lake is, has what its name says."""

    def prune(self, folder: Path, needed: Iterable[str], keep: timedelta) -> None:
        """Delete copies of a table's files that nobody needs, and nobody has for so long."""

    def remove(self, folder: Path) -> None:
        """Remove a table with all it has."""

    def has_note(self, name: str) -> bool:
        """Whether there is a note of this name."""

    def put_note(self, name: str) -> None:
        """Leave one."""

    def remove_note(self, name: str) -> None:
        """Take it away."""


class LocalFiles:
    """A lake that is the directory."""

    look_seconds = 0.05

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root
        self._tables = OpenTables()

    def take(self) -> bool:
        """The lock is all there is to it."""
        return True

    def is_mine(self) -> bool:
        """As long as the process lives."""
        return True

    def is_known_to_be_mine(self) -> bool:
        """As long as the process lives."""
        return True

    def give_back(self) -> None:
        """The lock is given back by whoever has it."""

    def address(self, folder: Path) -> str:
        """Its path."""
        return str(folder)

    def table(self, folder: Path) -> DeltaTable:
        """A table as its newest commit has it."""
        return self._tables.at(folder)

    def table_now(self, folder: Path) -> DeltaTable:
        """The same, and it stays as it is now."""
        return DeltaTable(folder)

    def create(self, folder: Path, schema: Schema, **options: Any) -> None:
        """Make a table, if there is none."""
        DeltaTable.create(folder, schema, mode="ignore", **options)

    def committed(self, folder: Path, version: int) -> None:
        """A look at the folder shows it."""

    def path(self, folder: Path, uri: str) -> str:
        """The path of a file that the table calls so."""
        del folder
        return local_path(uri)

    def fetch(self, folder: Path, files: Iterable[str]) -> bool:
        """They are there."""
        del folder, files
        return False

    def send(self, files: Iterable[Path]) -> None:
        """They are there."""

    def is_as_written(self, file: Path) -> bool:
        """Whether a file has what its name says."""
        return is_as_written(file)

    def prune(self, folder: Path, needed: Iterable[str], keep: timedelta) -> None:
        """There are no copies."""

    def remove(self, folder: Path) -> None:
        """Remove a table with all it has."""
        shutil.rmtree(folder, ignore_errors=True)

    def has_note(self, name: str) -> bool:
        """Whether there is a note of this name."""
        return (self._root / name).exists()

    def put_note(self, name: str) -> None:
        """Leave one."""
        (self._root / name).touch()

    def remove_note(self, name: str) -> None:
        """Take it away."""
        (self._root / name).unlink(missing_ok=True)


def local_path(uri: str) -> str:
    """The path that a `file:` URL or a path names."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
