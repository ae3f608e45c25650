"""What a store consists of, and whether a given SQLite file is that and nothing else."""

import functools
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tidelog.base.errors import StoreDamaged
from tidelog.base.sql import sqlitefile
from tidelog.store.rows import SEAL, SealedTable
from tidelog.store.schema import LOG, Schema

_TRANSIENT = frozenset({"writer", "alteration"})
"""Belong to running processes and to lakes that follow this very store: no part of a backup."""

_TOKEN = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|(?:--[^\n]*|/\*.*?\*/|\s)+""", re.DOTALL)
"""A quoted text, or what may stand between two words of SQL."""


class _Object(NamedTuple):
    """Of a schema; its `kind` is table, index, trigger or view."""

    kind: str
    name: str
    table: str
    sql: str
    """Without comments, and with single spaces."""


@functools.cache
def sealed_tables(schema: Schema) -> tuple[SealedTable, ...]:
    """Those of the newest schema; taken from the migrations, so that none can be forgotten."""
    found = []
    with _fresh(schema, len(schema.migrations("sqlite"))) as fresh:
        for table in tables(schema):
            rows = fresh.execute(f"PRAGMA table_info({table})").fetchall()
            names = [name for _, name, *_ in rows]
            key = sorted((number, name) for _, name, *_, number in rows if number)
            if SEAL in names:
                names.remove(SEAL)
                found.append(SealedTable(table, tuple(names), tuple(name for _, name in key)))
    return tuple(found)


def tables(schema: Schema) -> list[str]:
    """All that makes up a store, and is copied with it.

    Taken from the migrations, so that no table can be forgotten.
    """
    made = _made(schema, len(schema.migrations("sqlite"))).values()
    names = {each.name for each in made if each.kind == "table"}
    return sorted(names - _TRANSIENT)


def require_schema(
    schema: Schema, connection: sqlite3.Connection, path: Path, version: int
) -> None:
    """Refuse a file whose schema is not the one that the first `version` migrations make.

    Tables of other names, with their indexes, may be there: a surface that ships outside the
    package has its own. Anything that acts or hides something, as a trigger or a view, may not.

    Raises:
        StoreDamaged: it differs; the message names the first difference.
    """
    made, found = _made(schema, version), _objects(connection)
    later = _made(schema, len(schema.migrations("sqlite")))
    for key, other in found.items():
        if key in later and key not in made:
            what = f"its version is {version}, but the {other.kind} {other.name} came later"
            raise _foreign(path, what)
    for key, wanted in made.items():
        if key not in found:
            raise _foreign(path, f"the {wanted.kind} {wanted.name} is missing")
        if found[key] != wanted:
            raise _foreign(path, f"the {wanted.kind} {wanted.name} is not the one tidelog makes")
    ours = {each.name for each in later.values()}
    for key, other in found.items():
        if key in made:
            continue
        is_plain = other.kind in ("table", "index") and not other.sql.startswith("CREATE VIRTUAL")
        if not is_plain or other.table in ours:
            raise _foreign(
                path,
                f"the {other.kind} {other.name} is not tidelog's",
                f"remove it from a copy of this one: DROP {other.kind.upper()} {other.name}",
            )


@functools.cache
def _made(schema: Schema, version: int) -> Mapping[tuple[str, str], _Object]:
    with _fresh(schema, version) as fresh:
        return _objects(fresh)


@contextmanager
def _fresh(schema: Schema, version: int) -> Iterator[sqlite3.Connection]:
    """A new store of this version, in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        sqlitefile.migrate(fresh, Path(":memory:"), schema.migrations("sqlite")[:version])
        yield fresh


def _objects(connection: sqlite3.Connection) -> Mapping[tuple[str, str], _Object]:
    """By kind and name: a trigger may be called like a table."""
    rows = connection.execute(LOG.queries["sqlite"]["schema_objects"])
    return {
        (kind, name): _Object(kind, name, table, _plain(sql)) for kind, name, table, sql in rows
    }


def _plain(sql: str) -> str:
    return _TOKEN.sub(lambda match: match[1] or " ", sql).strip()


def _foreign(
    path: Path, difference: str, otherwise: str = "find out who changed this one."
) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is not as tidelog made it: {difference}. Restore another backup, or {otherwise}"
    )
