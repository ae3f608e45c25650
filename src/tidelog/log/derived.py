"""Rows beside the log: does each agree with the log, or with its own seal?

What follows from entries is compared with them, by the surface that wrote it: each brings a
`Verifier`. What does not (members, settings, states of content that was pruned) carries a seal,
which this module compares, whatever the table.

Everything is read page by page, each page by a statement of its own, so that a server can go on
writing: what one transaction wrote together is compared within one statement, or looked at again
before it is called damaged.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from tidelog.base.data.incarnation import FORMER_INCARNATIONS
from tidelog.base.data.seal import seal
from tidelog.base.errors import StoreError
from tidelog.store.catalogue import sealed_tables
from tidelog.store.engine import Store
from tidelog.store.rows import Key, Row


class Damage(NamedTuple):
    """A row that is not what was written."""

    table: str
    key: str
    problem: str


class Looked(NamedTuple):
    """Some rows of a table were looked at."""

    table: str
    rows: int
    damage: Sequence[Damage] = ()
    unsealed: int = 0
    """How many of them an earlier version wrote, without a seal: of these only the log tells."""


Verifier = Callable[[Store], AsyncIterator[Looked]]
"""Looks at all rows of a surface, and tells of each page."""


async def verify_rows(
    store: Store, verifiers: Mapping[str, Verifier]
) -> AsyncIterator[tuple[str, Looked]]:
    """Look at all rows beside the log; each `Looked` comes with the name of who looked.

    The log must be sound: it is what the rows are compared with.
    """
    for name, verifier in {"seals": verify_seals, **verifiers}.items():
        try:
            async for looked in verifier(store):
                yield name, looked
        except StoreError as error:
            damage = Damage(f"({name})", "", f"could not be read: {error}")
            yield name, Looked(damage.table, 0, (damage,))


async def pages(
    store: Store, query: str, start: Key, limit: int, *more: int
) -> AsyncIterator[Sequence[Row]]:
    """Pages of a query whose first columns are the key to go on after."""
    after = start
    while page := await store.rows(query, (*after, *more, limit)):
        yield page
        if len(page) < limit:
            return
        after = page[-1][: len(start)]


async def verify_seals(store: Store) -> AsyncIterator[Looked]:
    """Compare every row of every sealed table with its seal."""
    for table in sealed_tables(store.schema):
        after: Key | None = None
        while page := await store.sealed_page(table, after):
            key_columns = [table.columns.index(name) for name in table.key]
            damage, unsealed = [], 0
            for *values, sealed in page:
                after = tuple(values[column] for column in key_columns)
                if sealed is None:
                    unsealed += 1
                elif sealed != seal(*values):
                    damage.append(Damage(table.name, shown(*after), "is not what was written"))
            yield Looked(table.name, len(page), damage, unsealed)
            if len(page) < table.rows_per_page:
                break
    yield Looked("incarnation", 0, await _missing_incarnations(store))


async def _missing_incarnations(store: Store) -> Sequence[Damage]:
    """They are numbered, and the head has the last number; only the oldest may be gone."""
    [(last, least, greatest, count)] = await store.rows("incarnation_numbers", ())
    if greatest != last:
        return [Damage("incarnation", str(last), "is missing")]
    oldest = max(1, last - FORMER_INCARNATIONS)
    if least > oldest or count != greatest - least + 1:
        return [Damage("incarnation", f"{min(least, oldest)} to {last}", "is missing in part")]
    return []


def shown(*key: object) -> str:
    """A key, for people."""
    return "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in key)
