"""How often the writer of PostgreSQL waits for the server; what memory decides is true."""

import asyncio
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from support.log.nodes import (
    AppendItem,
    Node,
    another_writes,
    blocked,
    running_node,
    verdict,
    whole_log,
)
from support.probe.rules import SURFACE
from tidelog.base.errors import StoreUnavailable
from tidelog.log.decision import Names, Refuse, View
from tidelog.log.draft import Draft
from tidelog.store.postgresql import PostgresqlStore
from tidelog.store.postgresql_writer import CROWDED_BATCHES
from tidelog.store.rows import Effects


@contextmanager
def round_trips(node: Node) -> Iterator[list[str]]:
    """What the writer sends; the driver returns from each before the next."""
    sent: list[str] = []

    def note(query: Any) -> None:
        sent.append(query.query)

    assert isinstance(node.store, PostgresqlStore)
    connection = node.store.writer._connection
    assert connection is not None
    connection.add_query_logger(note)
    try:
        yield sent
    finally:
        connection.remove_query_logger(note)


def kinds(sent: list[str]) -> list[str]:
    """How each begins, after its comments."""
    return [re.sub(r"(?m)^--.*\n", "", text).split()[0] for text in sent]


def draft(stream: str) -> Draft:
    """Something to append."""
    return Draft(stream, SURFACE, "put", "entity", "", "actor", b"{}")


class Asking:
    """A request that changes nothing."""

    def decide(self, view: View) -> Refuse:
        """What position is next."""
        return Refuse(view.next_committed_id)


async def ask(node: Node) -> int:
    """As of when it is answered."""
    [answer] = await asyncio.wrap_future(node.submit((Asking(),), Names()))
    return int(answer)


async def test_what_is_in_memory_is_written_in_one_round_trip(postgresql_url: str) -> None:
    """The stream is known; a key must be looked for, which is one more."""
    async with running_node(postgresql_url) as node:
        await node.append(draft("s"))
        with round_trips(node) as sent:
            assert [await node.append(draft("s")) for _ in range(3)] == [2, 3, 4]
            assert kinds(sent) == ["WITH"] * 3
        with round_trips(node) as sent:
            names = Names(dedupe=(("scope", "key"),), streams=("s",))
            item = AppendItem(draft("s"))
            assert await asyncio.wrap_future(node.submit((item,), names)) == [5]
            assert kinds(sent) == ["SELECT", "WITH"]
        assert (await verdict(node.store)).finding is None


async def test_a_read_is_one_round_trip(postgresql_url: str) -> None:
    """Nothing is sent after it: the last that its connection was told is the read itself."""
    async with running_node(postgresql_url) as node:
        await node.append(draft("s"))
        assert len(await node.store.stream_entries("s", 0)) == 1
        observer = await asyncpg.connect(postgresql_url)
        try:
            told = await observer.fetch(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'tidelog'"
            )
        finally:
            await observer.close()
        read = node.store.schema.queries("postgresql")["stream_entries_after"]
        assert read in [query for (query,) in told]
        assert not [query for (query,) in told if "RESET" in query]


async def test_entries_of_a_batch_with_equal_columns(postgresql_url: str) -> None:
    """Each has its own content, also one that all of them have, or all but one."""
    contents = (b"same", b"same"), (b"", b""), (b"same", None), (None, None), (b"same", b"other")
    async with running_node(postgresql_url) as node:
        for data in contents:
            items = tuple(AppendItem(draft("s")._replace(data=each)) for each in data)
            await asyncio.wrap_future(node.submit(items, Names(streams=("s",))))
        stored = [entry.data for entry in await whole_log(node.store)]
        assert stored == list(itertools.chain(*contents))
        assert (await verdict(node.store)).finding is None


async def test_a_batch_that_is_overtaken_is_decided_again_under_the_lock(
    postgresql_url: str,
) -> None:
    """And so are the next ones, until nobody else writes any more."""
    async with running_node(postgresql_url) as node:
        await node.append(draft("s"))
        with round_trips(node) as sent:
            async with another_writes(postgresql_url):
                writing = asyncio.create_task(node.append(draft("s")))
                await blocked(postgresql_url)
            assert await writing == 2
            locked = ["BEGIN", "SELECT", "WITH", "COMMIT"]
            assert kinds(sent) == ["WITH", *locked]
            sent.clear()
            for _ in range(CROWDED_BATCHES):
                await node.append(draft("s"))
            assert kinds(sent) == [*locked * (CROWDED_BATCHES - 1), "WITH"]
        assert node.committer.metrics.overtaken._value.get() == 1
        assert (await verdict(node.store)).finding is None


async def test_what_writes_nothing_is_confirmed(postgresql_url: str) -> None:
    """A node that has heard nothing yet must not answer by what it remembers."""
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):
        await a.append(draft("s"))
        with round_trips(a) as sent:
            assert await ask(a) == 2
            assert kinds(sent) == ["SELECT"]
        a.committer._on_head_moved = lambda head: None  # type: ignore[method-assign]
        await a.store._listener.close()  # type: ignore[attr-defined]
        assert await b.append(draft("s")) == 2
        assert await ask(a) == 3
        assert await a.append(draft("s")) == 3
        assert [entry.stream_serial for entry in await whole_log(a.store)] == [1, 2, 3]


async def test_what_is_remembered_is_confirmed_by_the_connection_it_was_read_by(
    postgresql_url: str,
) -> None:
    """Another one may lead to another history, in which the same transaction was another one."""
    async with running_node(postgresql_url) as node:
        await node.append(draft("s"))
        assert isinstance(node.store, PostgresqlStore)
        writer = node.store.writer
        await writer.begin(Names(), 1)
        assert writer._connection is not None
        writer._connection.terminate()
        with pytest.raises(StoreUnavailable):
            await writer.confirm()
        assert await ask(node) == 2


async def test_a_database_with_another_isolation_level(postgresql_url: str) -> None:
    """A batch that was overtaken is decided again, not refused."""
    connection = await asyncpg.connect(postgresql_url)
    try:
        name = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
        )
    finally:
        await connection.close()
    async with running_node(postgresql_url) as node:
        await node.append(draft("s"))
        async with another_writes(postgresql_url):
            writing = asyncio.create_task(node.append(draft("s")))
            await blocked(postgresql_url)
        assert await writing == 2


async def test_two_nodes_that_write_at_once(postgresql_url: str) -> None:
    """Whoever is overtaken, serials and positions have no gap and each write is there once."""
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):

        async def write(node: Node) -> list[int]:
            return [await node.append(draft("s")) for _ in range(60)]

        positions = await asyncio.gather(write(a), write(b), write(a), write(b))
        assert sorted(itertools.chain(*positions)) == list(range(1, 241))
        entries = await whole_log(a.store)
        assert [entry.stream_serial for entry in entries] == list(range(1, 241))
        assert (await verdict(b.store)).finding is None


async def test_a_statement_that_comes_late_writes_nothing(postgresql_url: str) -> None:
    """Once the writer was told that its batch is not there."""
    async with running_node(postgresql_url) as node:
        await node.append(draft("s"))
        assert isinstance(node.store, PostgresqlStore)
        writer = node.store.writer
        loaded = await writer.begin(Names(), 1)
        effects = Effects(1, loaded.head.digest, loaded.head.committed_at, [], [], [], [])
        assert writer._base is not None
        [late] = writer._statements(b"late", effects, writer._base)
        assert not await writer.committed(b"late")
        connection = await asyncpg.connect(postgresql_url)
        try:
            assert await connection.fetch(late.text, *late.values) == []
        finally:
            await connection.close()
        assert not await writer.committed(b"late")
