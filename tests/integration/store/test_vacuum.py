"""Writing the files of a store anew."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.channels_peer import channels_server, unique
from support.command import tidelog
from tidelog.base.errors import StoreInUse, StoreUnavailable
from tidelog.log.verify import verify
from tidelog.store import open_store
from tidelog.store.vacuum import vacuum

LEFT_OVER = b"what nobody can read any more"


async def test_a_copy_has_no_traces(tmp_path: Path, store_location: str) -> None:
    """Nothing is left in unused room, and the log is the same."""
    async with channels_server(tmp_path, store_location) as node:
        channel = unique()
        for n in range(20):
            await node.api.publish(channel, f"{n} " * 400)
    if not store_location.startswith("postgresql://"):
        with closing(sqlite3.connect(store_location, isolation_level=None)) as writing:
            writing.execute("PRAGMA secure_delete = OFF")
            writing.execute("CREATE TABLE passing (content BLOB)")
            writing.execute("INSERT INTO passing VALUES (?)", (LEFT_OVER * 1000,))
            writing.execute("DROP TABLE passing")
        assert LEFT_OVER in Path(store_location).read_bytes()  # noqa: ASYNC240
    done = await tidelog("log", "vacuum", "--store", store_location)
    assert 0 < done["after_bytes"] <= done["before_bytes"]
    if not store_location.startswith("postgresql://"):
        assert LEFT_OVER not in Path(store_location).read_bytes()  # noqa: ASYNC240
    store = await open_store(store_location, log_id="", node="", read_only=True)
    try:
        *_, last = [progress async for progress in verify(store)]
        assert (last.finding, last.verified) == (None, 20)
    finally:
        await store.close()


async def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    """The server's lock counts here too; what is not there is not made."""
    path = tmp_path / "tidelog.db"
    with pytest.raises(StoreUnavailable, match="there is no log"):
        await vacuum(str(path))
    assert not path.exists()
    async with channels_server(tmp_path, str(path)):
        with pytest.raises(StoreInUse, match="in use by another tidelog server"):
            await vacuum(str(path))
