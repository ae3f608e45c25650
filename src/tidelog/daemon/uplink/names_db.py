"""Which member a name stood for last, kept on the disk for when the broker is away (mesh 3.2).

The broker is asked first, always. What is kept here is what it said: a member that has joined again
has another key under the same name. A file that is damaged is begun anew, for it holds nothing that
the broker could not say again.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from tidelog.base.errors import StoreDamaged, StoreError, StoreUntrustworthy
from tidelog.daemon.database import Database

APPLICATION_ID = 0x74646E6D
FILE_NAME = "names.db"

MAX_NAMES = 10_000
"""Beyond it the names go that have not changed for longest."""

_log = logging.getLogger(__name__)


class Names:
    """The file `names.db`."""

    def __init__(self, path: Path) -> None:
        self.is_new = not path.exists()
        """Whether nothing was kept before."""
        try:
            self._database = _open(path)
        except StoreDamaged as error:
            _log.warning("%s", error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self.is_new = True
            self._database = _open(path)

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def key_of(self, name: str) -> str | None:
        """Whom the name stood for last."""
        found = self._database.row("names_key", name)
        return None if found is None else str(found[0])

    def note(self, keys: Mapping[str, str]) -> None:
        """Each of these names stands for this key; what is known already costs no write."""
        changed = [(name, key) for name, key in keys.items() if self.key_of(name) != key]
        if not changed:
            return
        with _Tolerant(), self._database.transaction():
            for name, key in changed:
                self._database.run("names_note", name, key)
            self._database.run("names_trim", MAX_NAMES)

    def introduce(self, name: str, key: str) -> None:
        """Somebody of this name wrote; that may be long ago, so it counts if no key is known."""
        if self.key_of(name) is None:
            self.note({name: key})

    def forget(self, name: str) -> None:
        """Nobody has this name."""
        if self.key_of(name) is not None:
            with _Tolerant(), self._database.transaction():
                self._database.run("names_forget", name)


def _open(path: Path) -> Database:
    remedy = "A new one is started; the broker knows the names."
    return Database(path, kind="names", application_id=APPLICATION_ID, remedy=remedy)


class _Tolerant:
    """A name that could not be kept is looked up again."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, StoreError) or isinstance(error, StoreUntrustworthy):
            return False
        _log.warning("names of members could not be kept: %s", error)
        return True
