"""Defaults of the limits that docs/operations/capacity.md names."""

from operator import attrgetter

from scripts.generation.markdown import with_table

from tidelog.config.settings import Settings


def with_defaults(document: str) -> str:
    """The page with the defaults as they are now; which limits it names is written by hand."""
    return with_table(document, "What bounds a server", _renewed)


def _renewed(rows: list[list[str]]) -> list[list[str]]:
    settings = Settings()
    return [
        [name, str(attrgetter(name.strip("`"))(settings)), meaning] for name, _, meaning in rows
    ]
