"""The daemon on a disk that forgets: keeps beside each SQLite file what was synced of it.

`python tests/support/daemon/synced_disk.py DIRECTORY [--normal] -- ...` puts a layer below SQLite
and is the daemon then. The layer is a VFS: it hands every call to the usual one, and of writes and
cuts it remembers those that no sync has followed. A sync of a file writes what was
remembered of it to the file of the same name in DIRECTORY. So a process killed at any moment leaves
there what a machine that lost its power would have kept at worst: nothing that was not synced.

`--normal` opens every file with `synchronous=NORMAL`, to show that the layer does forget.

The shared-memory file of a WAL is not kept: SQLite makes it anew from the WAL.
"""

import _sqlite3
import ctypes
import os
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p, cast
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_OK = 0
_CREATE = 0x4
_JOURNAL_KINDS = 0x800 | 0x4000 | 0x80000
"""Flags of opening: a file may be new; it is a journal, a super-journal or a WAL."""

_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
"""The name is an address: SQLite keeps it while the file is open, so it is handed on as it is."""

_CLOSE = CFUNCTYPE(c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


class _Vfs(Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("max_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("app_data", c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("others", c_void_p * 14),
    )


class _Methods(Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = (
        ("version", c_int),
        ("close", _CLOSE),
        ("read", c_void_p),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("others", c_void_p * 13),
    )


class _File(Structure):
    """`sqlite3_file`."""

    _fields_ = (("methods", POINTER(_Methods)),)


class _Remembered:
    """An open file: what was done to it since it was synced."""

    def __init__(self, kept: Path, methods: Any, *, is_new_journal: bool) -> None:
        self.kept = kept
        self.methods = methods
        """The usual ones."""
        self.is_new_journal = is_new_journal
        """Whether its next sync is one of its directory too, as in SQLite's `unixSync`."""
        self.changes: list[tuple[int, bytes | None]] = []
        """Offset and content of a write; the new size and None of a cut."""

    def sync(self) -> None:
        """What was done is kept."""
        if not self.changes:
            return
        descriptor = os.open(self.kept, os.O_RDWR | os.O_CREAT, 0o600)
        for at, content in self.changes:
            if content is None:
                os.ftruncate(descriptor, at)
            else:
                os.pwrite(descriptor, content, at)
        os.close(descriptor)
        self.changes.clear()


class SyncedDisk:
    """The layer; it must live as long as the process uses SQLite."""

    def __init__(self, folder: Path) -> None:
        """Put the layer below every file that is opened from now on."""
        self._folder = folder
        self._files: dict[int, _Remembered] = {}
        self._tables: dict[int, _Methods] = {}
        self._deleted: list[Path] = []
        """Files whose directory was not synced since: they may come back."""
        # A handle of the module finds what the module is linked with, whichever SQLite that is.
        library = ctypes.CDLL(_sqlite3.__file__)
        if not hasattr(library, "sqlite3_vfs_register"):
            raise RuntimeError("this Python hides its SQLite: there is no place for the layer")
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        usual = library.sqlite3_vfs_find(None)
        self._usual = usual.contents
        self._vfs = _Vfs.from_buffer_copy(usual.contents)
        self._vfs.name = b"synced-disk"
        self._vfs.open = _OPEN(self._open)
        self._vfs.delete = _DELETE(self._delete)
        self._own: dict[str, Callable[..., int]] = {
            "close": _CLOSE(self._close),
            "write": _WRITE(self._write),
            "truncate": _TRUNCATE(self._truncate),
            "sync": _SYNC(self._sync),
        }
        if library.sqlite3_vfs_register(byref(self._vfs), 1) != _OK:
            raise RuntimeError("SQLite did not take the layer")

    def _open(self, _: int, name: int | None, file: int, flags: int, out: Any) -> int:
        code = self._usual.open(ctypes.addressof(self._usual), name, file, flags, out)
        opened = cast(file, POINTER(_File)).contents
        if code == _OK and name and opened.methods:
            usual = opened.methods.contents
            kept = self._folder / Path(os.fsdecode(ctypes.string_at(name))).name
            if kept in self._deleted:  # made anew: the name is this file's from now on
                self._deleted.remove(kept)
                kept.unlink(missing_ok=True)
            is_new_journal = bool(flags & _CREATE and flags & _JOURNAL_KINDS)
            self._files[file] = _Remembered(kept, usual, is_new_journal=is_new_journal)
            opened.methods = ctypes.pointer(self._table(usual))
        return int(code)

    def _table(self, usual: _Methods) -> _Methods:
        """The usual methods with ours among them."""
        address = ctypes.addressof(usual)
        if address not in self._tables:
            table = _Methods.from_buffer_copy(usual)
            for name, method in self._own.items():
                setattr(table, name, method)
            self._tables[address] = table
        return self._tables[address]

    def _close(self, file: int) -> int:
        return int(self._files.pop(file).methods.close(file))

    def _write(self, file: int, data: int, size: int, at: int) -> int:
        remembered = self._files[file]
        code = remembered.methods.write(file, data, size, at)
        if code == _OK:
            remembered.changes.append((at, ctypes.string_at(data, size)))
        return int(code)

    def _truncate(self, file: int, size: int) -> int:
        remembered = self._files[file]
        code = remembered.methods.truncate(file, size)
        if code == _OK:
            remembered.changes.append((size, None))
        return int(code)

    def _sync(self, file: int, flags: int) -> int:
        remembered = self._files[file]
        code = remembered.methods.sync(file, flags)
        if code == _OK:
            remembered.sync()
            if remembered.is_new_journal:
                remembered.is_new_journal = False
                self._sync_directory()
        return int(code)

    def _sync_directory(self) -> None:
        for file in self._deleted:
            file.unlink(missing_ok=True)
        self._deleted.clear()

    def _delete(self, _: int, name: bytes, sync_directory: int) -> int:
        code = self._usual.delete(ctypes.addressof(self._usual), name, sync_directory)
        if code == _OK:
            self._deleted.append(self._folder / Path(os.fsdecode(name)).name)
            if sync_directory:
                self._sync_directory()
        return int(code)


def _make_normal() -> None:
    """Let every connection of tidelog be one that does not sync at each commit."""
    from tidelog.base.sql import sqlitefile

    connect = sqlitefile.connect

    def relaxed(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    sqlitefile.connect = relaxed


def main() -> int:
    """Put the layer below and be the daemon."""
    split = sys.argv.index("--data-dir")
    folder, options = Path(sys.argv[1]), sys.argv[2:split]
    folder.mkdir(exist_ok=True)
    disk = SyncedDisk(folder)
    if "--normal" in options:
        _make_normal()
    from tidelog.daemon.__main__ import main as run_daemon

    code = run_daemon(sys.argv[split:])
    del disk
    return code


if __name__ == "__main__":
    sys.exit(main())
