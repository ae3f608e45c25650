"""What the only writer of a store keeps of what decisions have read."""

from pathlib import Path

from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.store.engine import Store
from tidelog.store.rows import Effects, Head, Names, RowChange
from tidelog.store.sqlite import KEPT_ROWS, SqliteStore

TOPIC = ("mesh_topic", ("m", "alerts"))
NAMES = Names(rows=(TOPIC,))


async def loaded(store: Store) -> tuple[Head, tuple[tuple[object, ...], ...]]:
    """The head, and what a decision about the topic would see; nothing is written."""
    found = await store.writer.begin(NAMES, 0)
    await store.writer.rollback()
    return found.head, found.rows[TOPIC]


async def write(store: Store, *changes: RowChange) -> None:
    """Commit row changes."""
    head = (await store.writer.begin(Names(), 0)).head
    at = (head.committed_id, head.digest, head.committed_at)
    await store.writer.commit(b"", Effects(*at, [], [], [], list(changes)))


async def test_kept_rows_are_read_again_after_any_statement_that_may_change_them(
    tmp_path: Path,
) -> None:
    """A delivery is none; what subscribes somebody is; and many rows are not kept at all."""
    store = await open_store(SCHEMA, str(tmp_path / "tidelog.db"), log_id="L", node="n")
    assert isinstance(store, SqliteStore)
    texts: list[str] = []
    try:
        await write(store, RowChange("mesh_add_topic", ("m", "alerts", 1, "ana")))
        assert (await loaded(store))[1] == ((None, "ana"),)
        store.writer._connection.set_trace_callback(texts.append)
        delivery = ("message", "key", "push", "", "m", 1, 1)
        await write(store, RowChange("mesh_add_delivery", delivery))
        assert (await loaded(store))[1] == ((None, "ana"),)
        assert not [text for text in texts if "FROM mesh_topic t" in text]
        rows: tuple[tuple[object, ...], ...] = ()
        for number in range(KEPT_ROWS + 1):
            await write(store, RowChange("mesh_subscribe", ("m", "alerts", f"{number:02}", 1)))
            rows = (await loaded(store))[1]
            assert [key for key, _ in rows] == [f"{each:02}" for each in range(number + 1)]
        assert len(rows) > KEPT_ROWS
        assert store.writer._kept == {}
    finally:
        await store.close()
