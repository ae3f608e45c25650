"""Keys that a batch names: each is found as it was written, however many are asked for at once."""

import pytest

from tidelog.base.data.seal import seal
from tidelog.base.errors import DataError
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.store.catalogue import sealed_tables
from tidelog.store.engine import Store
from tidelog.store.rows import DedupeRow, Effects, Names

KEYS = (
    "a",
    "a\0b",
    "a\0",
    "\0",
    "",
    "1",
    "null",
    '"\\/\n\x1f\x7f',
    "\u2028\ue000",
    "\U0001f30a",
    "[]",
)
"""Texts that JSON, SQLite or PostgreSQL write in a way of their own."""


def row_of(scope: str, key: str) -> DedupeRow:
    """A row that differs from those of all other keys."""
    outcome = f"{scope} {key}".encode()
    return DedupeRow(scope, key, 7, b"f" + outcome, "owner", outcome, 1, 5, None)


async def found(store: Store, *names: tuple[str, str]) -> dict[tuple[str, str], DedupeRow | None]:
    """What a decision about these keys would see."""
    loaded = await store.writer.begin(Names(dedupe=names), 0)
    await store.writer.rollback()
    return loaded.dedupe


async def test_every_key_is_found_alone_and_among_others(store_location: str) -> None:
    """The same row, whichever characters it and its neighbours have; none for one that is new."""
    store = await open_store(SCHEMA, store_location, log_id="L", node="n")
    try:
        written = {(scope, key): row_of(scope, key) for scope in ("one", "two") for key in KEYS}
        head = (await store.writer.begin(Names(), 0)).head
        at = (head.committed_id, head.digest, head.committed_at)
        await store.writer.commit(b"b", Effects(*at, [], [*written.values()], [], []))
        new: dict[tuple[str, str], None] = {("one", "b"): None, ("three", "a"): None}
        for name, row in (written | new).items():
            assert await found(store, name) == {name: row}
        plain = {name: row for name, row in written.items() if "\0" not in name[1]}
        for expected in (written | new, plain | new):
            assert await found(store, *expected) == expected
        [table] = [each for each in sealed_tables(store.schema) if each.name == "dedupe"]
        for *values, sealed in await store.sealed_page(table, None):
            assert sealed == seal(*values)
    finally:
        await store.close()


async def test_a_key_that_no_store_takes_is_refused_as_a_row(store_location: str) -> None:
    """Half a surrogate pair: whoever asks for it is to blame, alone or among others."""
    store = await open_store(SCHEMA, store_location, log_id="L", node="n")
    try:
        for keys in (("\ud800",), ("a", "b", "c", "\ud800")):
            with pytest.raises(DataError):
                await found(store, *(("one", key) for key in keys))
        assert await found(store, ("one", "a")) == {("one", "a"): None}
    finally:
        await store.close()
