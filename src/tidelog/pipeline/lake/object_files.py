"""A lake on an object store, with copies of its files in a directory.

The tables are on the store: delta-rs reads and writes their logs there, each commit by a put that
only one process can win. Files of tables never change once a commit names them, so a copy is as
good as the original; files that this machine has written need not be fetched. What can be made
again of the tables, such as the search index, is in the directory alone.
"""

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema

from tidelog.pipeline.lake.lease import Lease
from tidelog.pipeline.lake.object_store import LakeUnavailable, ObjectStore
from tidelog.pipeline.lake.open_tables import LOG_FOLDER, Open, OpenTables, commit_name
from tidelog.pipeline.lake.seal import digest_in_name

_T = TypeVar("_T")

AT_ONCE = 8
"""Files that are sent or fetched at once."""

FRESH_SECONDS = 1.0
"""Who only reads sees a table as it was at most so long ago: each look asks the store."""


class ObjectFiles:
    """A lake below a URL, whose copies are in a directory."""

    look_seconds = 0.25

    def __init__(self, root: Path, url: str) -> None:
        self.name = url
        self._root = root
        self._store = ObjectStore(url)
        self._lease = Lease(self._store)
        self._tables = _ObjectTables(self._store, self._key)

    def take(self) -> bool:
        """Take the right to write: the lease, beside this machine's lock."""
        if not self._lease.take():
            return False
        self._tables.look_again()
        return True

    def is_mine(self) -> bool:
        """Whether the lease was not lost."""
        return self._lease.is_mine()

    def is_known_to_be_mine(self) -> bool:
        """The same, and the store was asked."""
        return self._lease.is_known_to_be_mine()

    def give_back(self) -> None:
        """Let others write."""
        self._lease.give_back()
        self._tables.look_again()

    def address(self, folder: Path) -> str:
        """Its URL."""
        return f"{self.name}/{self._key(folder)}"

    def table(self, folder: Path) -> DeltaTable:
        """A table as its newest commit has it."""
        return self._tables.at(folder, is_alone=self.is_mine())

    def table_now(self, folder: Path) -> DeltaTable:
        """The same, and it stays as it is now."""
        return self._tables.opened(folder)

    def create(self, folder: Path, schema: Schema, **options: Any) -> None:
        """Make a table.

        Raises:
            CommitFailedError: somebody else has made it.
        """
        try:
            DeltaTable.create(
                self.address(folder),
                schema,
                mode="error",
                storage_options=self._store.options,
                **options,
            )
        except DeltaError as error:
            if self._tables.mark(folder, 0) is None:
                raise
            raise CommitFailedError("it was made meanwhile") from error
        self._tables.created(folder)

    def committed(self, folder: Path, version: int) -> None:
        """Note that this process has made a version of a table."""
        self._tables.changed(folder, version)

    def path(self, folder: Path, uri: str) -> str:
        """The path of the copy of a file that the table calls so."""
        return str(folder / uri.removeprefix(f"{self.address(folder)}/"))

    def fetch(self, folder: Path, files: Iterable[str]) -> bool:
        """Have files of a table in the directory; returns whether one had to come."""
        del folder
        missing = [path for path in map(Path, files) if not path.exists()]
        _at_once(self._fetch, missing)
        return bool(missing)

    def _fetch(self, file: Path) -> None:
        try:
            self._store.fetch(self._key(file), file)
        except FileNotFoundError:
            gone = "it was replaced meanwhile, try again"
            raise FileNotFoundError(errno.ENOENT, gone, f"{self.name}/{self._key(file)}") from None

    def send(self, files: Iterable[Path]) -> None:
        """Have files of the directory on the store."""
        _at_once(lambda file: self._store.send(file, self._key(file)), files)

    def is_as_written(self, file: Path) -> bool:
        """Whether the object has what its name says; the copy is not asked."""
        named = digest_in_name(file)
        return named is None or self._store.digest(self._key(file)) == named

    def prune(self, folder: Path, needed: Iterable[str], keep: timedelta) -> None:
        """Delete copies that nobody needs; when one came here is when its inode changed."""
        known, before = set(needed), time.time() - keep.total_seconds()
        for parent, _, names in os.walk(folder):  # passes over folders that go meanwhile
            for file in (Path(parent, name) for name in names if name.endswith(".parquet")):
                with contextlib.suppress(FileNotFoundError):
                    if str(file) not in known and file.stat().st_ctime <= before:
                        file.unlink()

    def remove(self, folder: Path) -> None:
        """Remove a table with all it has."""
        self._store.delete(self._store.keys(f"{self._key(folder)}/"))
        shutil.rmtree(folder, ignore_errors=True)
        self._tables.look_again(folder)

    def has_note(self, name: str) -> bool:
        """Whether there is a note of this name."""
        return self._store.get(name) is not None

    def put_note(self, name: str) -> None:
        """Leave one."""
        self._store.put(name, b"")

    def remove_note(self, name: str) -> None:
        """Take it away."""
        self._store.delete([name])

    def _key(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


class _ObjectTables(OpenTables):
    """Tables of an object store that stay open.

    A look asks the store. While nobody else may write it is looked once, and from then on a table
    is what this process has made of it, and no more: if somebody else does write, the next commit
    is not the next version of the table, and is refused.
    """

    def __init__(self, store: ObjectStore, key: Callable[[Path], str]) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._looked: dict[Path, float] = {}
        """When each table was looked for, whether it is there or not."""
        self._absent: set[Path] = set()
        self._looking = threading.Lock()

    def at(self, path: Path, *, is_alone: bool = False) -> DeltaTable:
        """The table in a folder; `is_alone` if this process alone may write."""
        with self._looking:
            looked = self._looked.get(path)
            if looked is not None and (is_alone or time.monotonic() - looked < FRESH_SECONDS):
                if path in self._absent:
                    raise TableNotFoundError(f"there is no table {self._key(path)}")
                if (known := self._open.get(path)) is not None:
                    return known.table
            self._absent.discard(path)
            self._looked.pop(path, None)
            began = time.monotonic()
            try:
                table = super().at(path)
            except TableNotFoundError:
                self._absent.add(path)
                self._looked[path] = began
                raise
            except (DeltaError, OSError) as error:
                raise LakeUnavailable(self._store.in_words(error)) from None
            # One whose commit is gone is opened at the next look; until then it stays what it is.
            self._open.setdefault(path, Open(table, object()))
            self._looked[path] = began
            return table

    def look_again(self, path: Path | None = None) -> None:
        """A table may have changed; all of them if none is named."""
        with self._looking:
            if path is None:
                self._looked.clear()
            else:
                self._looked.pop(path, None)

    def created(self, path: Path) -> None:
        """This process has made a table: it has its first version."""
        with self._looking:
            table = self.opened(path)
            table.load_as_version(0)
            self._open[path] = Open(table, self.mark(path, 0))
            self._absent.discard(path)
            self._looked[path] = time.monotonic()

    def changed(self, path: Path, version: int) -> None:
        """This process has committed to a table, and made this version of it."""
        with self._looking:
            known = self._open.get(path)
            if known is not None and known.table.version() < version:
                known.table.load_as_version(version)

    def opened(self, path: Path) -> DeltaTable:
        """A table as it is now."""
        self._store.require()
        url = f"{self._store.url}/{self._key(path)}"
        return DeltaTable(url, storage_options=self._store.options)

    def mark(self, path: Path, version: int) -> str | None:
        """What tells a commit from another one of the same number; None if it is not there."""
        return self._store.tag(f"{self._key(path)}/{LOG_FOLDER}/{commit_name(version)}")


def _at_once(work: Callable[[_T], None], many: Iterable[_T]) -> None:
    given = list(many)
    if len(given) < 2:
        for each in given:
            work(each)
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(given)), "tidelog-objects") as pool:
        list(pool.map(work, given))
