"""Alterations: what the store notes for a lake that follows it, and what it does not."""

from typing import Any

import pytest

from support.store.catalogue import Database
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store

ENTRY = 7
"""A position; that there is no such entry does not matter here."""

KEY = "INSERT INTO dedupe (scope, key, committed_id, fingerprint, owner, outcome, available, "
DELIVERY = (
    "INSERT INTO mesh_delivery_queue (broker_message_id, recipient_pubkey, channel, endpoint_id, "
    "mesh_id, history_id, created_at, status, attempts, next_attempt_at) "
)
STATUS = "UPDATE mesh_delivery_queue SET status = '{}', attempts = attempts + 1"

WITH_ENTRIES = (
    f"{KEY}first_seen_at) VALUES ('sync', 'e1', {ENTRY}, BLOB, 'o', BLOB, 1, 0)",
    f"{DELIVERY}VALUES ('b1', 'k', 'push', '', 'm', 3, 0, 'pending', 0, 0)",
    (
        "INSERT INTO mesh_mention_index (broker_message_id, mentioned_pubkey, mesh_id, history_id, "
        "created_at) VALUES ('b1', 'k', 'm', 3, 0)"
    ),
    (
        "INSERT INTO channels_message (message, stream, history_serial, published_at, is_open, "
        f"size_bytes, through) VALUES ({ENTRY}, 'channels/a/c', 1, 0, 1, 0, {ENTRY})"
    ),
    "UPDATE channels_message SET is_open = 0",
)
"""What comes with an entry, or does not concern a lake: the log tells it, or nobody asks."""

LATER: tuple[tuple[str, list[tuple[Any, ...]]], ...] = (
    (STATUS.format("claimed"), []),
    (STATUS.format("claimed"), [("delivery", 3, "m", "b1")]),
    (STATUS.format("pending"), [("delivery", 3, "m", "b1")]),
    (STATUS.format("delivered"), [("delivery", 3, "m", "b1")]),
    ("DELETE FROM mesh_delivery_queue", [("delivery", 3, "m", "b1")]),
    ("DELETE FROM mesh_mention_index", [("mention", 3, "m", "b1")]),
    ("UPDATE dedupe SET available = 0", [("dedupe", ENTRY, "", "")]),
    ("DELETE FROM dedupe", [("dedupe", ENTRY, "", "")]),
    (
        f"{KEY}first_seen_at) VALUES ('channels/a', 'r1', NULL, BLOB, 'o', BLOB, 1, 0)",
        [("dedupe", 0, "channels/a", "r1")],
    ),
    ("DELETE FROM dedupe", [("dedupe", 0, "channels/a", "r1")]),
    ("DELETE FROM channels_message", [("channel_message", ENTRY, "", "")]),
    (
        (
            "INSERT INTO mesh_message_tombstone (broker_message_id, mesh_id, deleted_at, reason) "
            "VALUES ('b1', 'm', 0, 'retention')"
        ),
        [("tombstone", 0, "m", "b1")],
    ),
)
"""What happens without an entry, and what is noted of it. A lease is nothing, until it ends."""

NOTED = "SELECT relation, position, scope, name FROM alteration WHERE number > {} ORDER BY number"


@pytest.fixture
async def store(store_location: str) -> Database:
    """An empty store, which nobody serves."""
    opened = await open_store(SCHEMA, store_location, log_id="L", node="n")
    await opened.close()
    return Database(store_location)


async def last(store: Database) -> int:
    """The number of the last alteration; 0 before the first."""
    [(number,)] = await store.run("SELECT coalesce(max(number), 0) FROM alteration")
    return int(number)


async def test_what_no_entry_tells_is_noted_and_nothing_else(store: Database) -> None:
    """Each in its turn: a publish costs nothing here, an end, a purge and an expiry a row."""
    blob = "x''" if store.is_sqlite else "''::bytea"
    for statement in WITH_ENTRIES:
        await store.run(statement.replace("BLOB", blob))
    assert await last(store) == 0
    for statement, noted in LATER:
        before = await last(store)
        await store.run(statement.replace("BLOB", blob))
        assert await store.run(NOTED.format(before)) == noted, statement


async def test_the_newest_million_is_kept(store: Database) -> None:
    """Whoever notes an alteration also removes what is too old, a thousand at a time."""
    many = "INSERT INTO alteration (number, relation, position, scope, name) "
    many += "VALUES ({}, 'r', 0, '', '')"
    for number in (1, 2, 3000, 1_001_000):
        await store.run(many.format(number))
    kept = await store.run("SELECT number FROM alteration ORDER BY number")
    assert kept == [(3000,), (1_001_000,)]
