"""What a store consists of: the log's own tables and statements, and what each surface brings.

Migrations are numbered over all of them together: a store has one version, whoever's tables it
changed last. A new migration takes the next free number, in the `migrations` folder of its owner.
"""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from tidelog.base.faultpoint import FaultPoint
from tidelog.base.sql.queries import load_queries
from tidelog.store.grouping import Touch

ENGINES = ("sqlite", "postgresql")


class Extension(NamedTuple):
    """What a surface adds to a store."""

    queries: Mapping[str, Mapping[str, str]] = {}
    """Engine name to named statements."""
    migrations: Mapping[str, Mapping[int, str]] = {}
    """Engine name to scripts by their number."""
    short_reads: frozenset[str] = frozenset()
    """Queries that subscribing, writing and delivering wait for. Each reads what a key names, or
    a page of it, whatever there is; they have a lane of their own, and never wait for somebody's
    history. An engine reads everything else in the other lane."""
    touches: Mapping[str, Touch] = {}
    """Statements that commute with each other unless they touch the same row."""
    kept_reads: frozenset[str] = frozenset()
    """Queries that many decisions make, and whose rows no statement of `touches` changes: who is a
    store's only writer keeps what they found until another statement is written."""
    fault_points: Mapping[str, FaultPoint] = {}
    """Where a test can stop an engine inside a transaction: after these statements."""
    tables: Mapping[str, str] = {}
    """Engine name to a script for tables without migrations, of a surface outside the package. It
    runs at every start and must be idempotent (`CREATE TABLE IF NOT EXISTS`)."""


def packaged(
    package: str,
    *,
    short_reads: Iterable[str] = (),
    kept_reads: Iterable[str] = (),
    touches: Mapping[str, Touch] | None = None,
    fault_points: Mapping[str, FaultPoint] | None = None,
) -> Extension:
    """The extension in the folders `sql` and `migrations` of a package, as `NAME.ENGINE.sql`."""
    folder = files(package)
    sql = folder / "sql"
    return Extension(
        queries={
            engine: load_queries(sql, f".{engine}.sql") if sql.is_dir() else {}
            for engine in ENGINES
        },
        migrations={engine: _numbered(folder / "migrations", engine) for engine in ENGINES},
        short_reads=frozenset(short_reads),
        kept_reads=frozenset(kept_reads),
        touches=touches or {},
        fault_points=fault_points or {},
    )


def _numbered(folder: Traversable, engine: str) -> dict[int, str]:
    if not folder.is_dir():
        return {}
    return {
        int(file.name.split("_")[0]): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(f".{engine}.sql")
    }


LOG = packaged(
    "tidelog.store",
    short_reads=(
        *("head", "clock", "incarnations", "entries_after", "dedupe_row", "dedupe_rows"),
        *("announce", "announcements_after", "last_announcement", "announcement_keeper"),
    ),
)
"""What belongs to no surface."""


class Schema:
    """The log's own part and extensions, as one. Their numbers must leave no gap."""

    def __init__(self, extensions: Iterable[Extension]) -> None:
        self._parts = (LOG, *extensions)
        self.short_reads = frozenset[str]().union(*(part.short_reads for part in self._parts))
        self.kept_reads = frozenset[str]().union(*(part.kept_reads for part in self._parts))
        self.touches: dict[str, Touch] = {}
        self.fault_points: dict[str, FaultPoint] = {}
        for part in self._parts:
            self.touches |= part.touches
            self.fault_points |= part.fault_points
        self._migrations = {engine: self._in_order(engine) for engine in ENGINES}

    def extended(self, extensions: Iterable[Extension]) -> "Schema":
        """The same with more."""
        return Schema((*self._parts[1:], *extensions))

    def migrations(self, engine: str) -> list[str]:
        """The migration scripts, in order; number N is at index N-1."""
        return list(self._migrations[engine])

    def queries(self, engine: str) -> dict[str, str]:
        """All named statements.

        Raises:
            ValueError: two extensions use the same name.
        """
        queries: dict[str, str] = {}
        for part in self._parts:
            for name, text in part.queries.get(engine, {}).items():
                if queries.setdefault(name, text) is not text:
                    raise ValueError(f"the query name {name!r} is used by two extensions")
        return queries

    def tables(self, engine: str) -> list[str]:
        """The scripts to run at every start."""
        return [part.tables[engine] for part in self._parts if engine in part.tables]

    def _in_order(self, engine: str) -> list[str]:
        numbered = [
            pair for part in self._parts for pair in part.migrations.get(engine, {}).items()
        ]
        numbered.sort()
        for expected, (number, _) in enumerate(numbered, start=1):
            if number != expected:
                problem = "missing" if number > expected else "there twice"
                raise ValueError(
                    f"the {engine} migration {min(number, expected)} is {problem}: "
                    "a schema has the extension of every surface, each once"
                )
        return [script for _, script in numbered]
