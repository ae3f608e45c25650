"""Full-text search of the inbox, for whoever switches it on (mesh 8.2).

The index is kept by triggers, in the transaction that stores or removes a message: it is never
out of date. It is made when it is first wanted, and left alone where this SQLite has no FTS5.
"""

from tidelog.daemon.database import Database

MAX_WORDS = 32
"""Words of one search; each is looked up on its own."""

_STALE = "search_stale"
"""Remembered while a vacuum may have moved rows that the index still has at their old places."""


class Search:
    """The index of one inbox."""

    def __init__(self, database: Database, *, is_wanted: bool) -> None:
        self._database = database
        self.is_available = is_wanted and database.row("search_module") is not None
        """Whether there is an index; without one nothing is found."""
        with database.transaction():
            if self.is_available:
                self._prepare()
            else:
                database.run("search_end_insert")
                database.run("search_end_delete")

    def _prepare(self) -> None:
        found = self._database.row("search_parts")
        stale = self._database.row("inbox_state", _STALE)
        if found != (3,):
            for name in ("view", "table", "on_insert", "on_delete"):
                self._database.run(f"search_{name}")
        if found != (3,) or (stale is not None and stale[0]):
            self._database.run("search_rebuild")
            self._database.run("inbox_set_state", _STALE, 0)

    def before_vacuum(self) -> None:
        """The places of rows may change from now on."""
        if self.is_available:
            self._database.run("inbox_set_state", _STALE, 1)

    def after_vacuum(self) -> None:
        """They have changed."""
        if self.is_available:
            with self._database.transaction():
                self._database.run("search_rebuild")
                self._database.run("inbox_set_state", _STALE, 0)


def words_in(text: str) -> str | None:
    """A search as FTS5 takes it; None if there is nothing to look for.

    All words must occur, in any order. A word that ends in `*` stands for all that begin so;
    nothing else has a meaning of its own, so that no text is a wrong search.
    """
    words = []
    for word in text.split()[:MAX_WORDS]:
        is_beginning = word.endswith("*")
        plain = word.rstrip("*").replace('"', '""')
        if any(character.isalnum() for character in plain):
            words.append(f'"{plain}"{"*" if is_beginning else ""}')
    return " ".join(words) or None
