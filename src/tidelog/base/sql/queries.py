"""SQL kept in packaged files of named statements, never pasted together in Python.

(But for whole statements that are made one: `tidelog.store.one_statement`.)

A file is a sequence of `-- name: some_name` lines, each followed by a comment that says what the
statement is for and by the statement itself.
"""

import re
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_queries(folder: Traversable, ending: str = ".sql") -> dict[str, str]:
    """All named statements of the files in `folder` with this ending; each name occurs once."""
    queries: dict[str, str] = {}
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if not file.name.endswith(ending):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in queries:
                raise ValueError(f"{file.name}: the query name {name!r} is used twice")
            queries[name] = text.strip()
    return queries
