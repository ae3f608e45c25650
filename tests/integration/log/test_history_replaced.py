"""A store whose log is not the one that was seen: nothing is acknowledged, and it gets a name."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.log.nodes import Node, put_item, running_node, verdict
from support.store.catalogue import Database
from tidelog.base.data.incarnation import Incarnation
from tidelog.base.errors import HistoryReplaced, ShuttingDown, StoreUnavailable
from tidelog.base.settings.limits import Limits
from tidelog.log.decision import Failure
from tidelog.store import Store
from tidelog.store.rows import Head, Loaded, Names

SECONDS = 20.0
QUICK = Limits(head_poll_ms=20)
NEVER = Limits(head_poll_ms=600_000)
"""Such a node notices only when it writes."""


async def write(node: Node, *keys: str) -> None:
    """Put each key in a batch of its own."""
    for key in keys:
        assert (await node.put("s", key)).status == "committed"


async def take_back(location: str, position: int) -> None:
    """Let the log end at an earlier position, as on a replica that lagged."""
    database = Database(location)
    for table, column in (("log", "committed_id"), ("dedupe", "committed_id")):
        await database.run(f"DELETE FROM {table} WHERE {column} > {position}")
    last = f"FROM log WHERE committed_id = {position}"
    await database.run(
        f"UPDATE head SET committed_id = {position}, digest = (SELECT digest {last}), "
        f"committed_at = (SELECT committed_at {last})"
    )
    await database.run(
        "UPDATE probe_stream SET puts = (SELECT count(*) FROM log), "
        "weight = (SELECT count(*) FROM log)"
    )


async def replaced(node: Node) -> HistoryReplaced:
    """Wait until the node has given up the log that it has seen."""
    async with asyncio.timeout(SECONDS):
        return await asyncio.shield(node.committer.replaced)


async def known(node: Node) -> list[Incarnation]:
    """What the store knows."""
    return await node.store.incarnations()


async def test_a_writer_acknowledges_nothing(store_location: str) -> None:
    """It refuses what it has and what comes, begins an incarnation where both agree, and ends."""
    async with running_node(store_location, limits=NEVER) as node:
        await write(node, "a", "b", "c", "d", "e")
        await take_back(store_location, 3)
        answers = await node.put_many([put_item("s", f"x{n}") for n in range(5)])
        assert all(isinstance(answer, Failure) for answer in answers)
        assert {type(answer.error) for answer in answers} <= {HistoryReplaced, ShuttingDown}
        assert "is not the one that this node has seen up to 5" in str(await replaced(node))
        with pytest.raises(ShuttingDown, match="another log"):
            await node.put("s", "y")
        [first, second] = await known(node)
        assert (first.began, second.began, second.number) == (0, 3, 2)
        assert (await node.store.head()).committed_id == 3
    async with running_node(store_location) as node:
        assert node.committer.incarnations.current == second
        assert (await node.put("s", "x0")).committed_id == 4
        assert (await verdict(node.store)).finding is None
    database = Database(store_location)
    assert await database.run("SELECT count(*) FROM incarnation WHERE seal IS NULL") == [(0,)]


async def test_an_idle_node_notices_by_itself(store_location: str) -> None:
    """It looks now and then."""
    async with running_node(store_location, limits=QUICK) as node:
        await write(node, "a", "b", "c")
        await take_back(store_location, 2)
        await replaced(node)
        assert [each.began for each in await known(node)] == [0, 2]


async def test_a_log_as_long_as_before_with_another_end_is_another(store_location: str) -> None:
    """Its digest tells, to who looks and to who writes."""
    database = Database(store_location)
    for limits in (QUICK, NEVER):
        async with running_node(store_location, limits=limits) as node:
            await write(node, f"a {limits.head_poll_ms}", f"b {limits.head_poll_ms}")
            head = (await node.store.head()).committed_id
            other = "x'07'" if database.is_sqlite else "'\\x07'"
            await database.run(f"UPDATE log SET digest = {other} WHERE committed_id = {head}")
            await database.run(f"UPDATE head SET digest = {other}")
            if limits is NEVER:
                assert isinstance(await node.put("s", "x"), Failure)
            await replaced(node)
            assert (await known(node))[-1].began == head - 1


async def test_a_server_that_waits_for_its_store_can_be_stopped(store_location: str) -> None:
    """Nothing was begun; the next start finds what there is."""
    wrapped: list[Wrapped] = []
    async with running_node(store_location, limits=NEVER, wrap=wrapping(wrapped)) as node:
        await write(node, "a", "b", "c")
        await take_back(store_location, 2)
        wrapped[0].failures = 10**9
        with pytest.raises(HistoryReplaced):
            await node.committer.catch_up()
        async with asyncio.timeout(SECONDS):
            while not node.committer.is_suspended:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.005)
            await node.committer.stop()
        assert not node.committer.replaced.done()
        assert len(await known(node)) == 1


async def test_whoever_wants_to_catch_up_is_not_served_from_another_log(
    store_location: str,
) -> None:
    """What it asked for would be read from that one."""
    async with running_node(store_location, limits=NEVER) as node:
        await write(node, "a", "b", "c")
        await take_back(store_location, 1)
        with pytest.raises(HistoryReplaced):
            await node.committer.catch_up()
        await replaced(node)
        with pytest.raises(HistoryReplaced):
            await node.committer.catch_up()


async def test_a_log_that_was_never_seen_begins_at_the_start(store_location: str) -> None:
    """Nothing in common is known: every reader begins again."""
    async with running_node(store_location, limits=NEVER) as node:
        await write(node, "a", "b")
    async with running_node(store_location, limits=NEVER) as node:
        await write(node, "c")
        await take_back(store_location, 1)
        await node.put("s", "x")
        await replaced(node)
        assert [each.began for each in await known(node)] == [0, 0]


async def test_nodes_that_notice_together_begin_one(postgresql_url: str) -> None:
    """Under the head lock, whoever comes later finds that it is done."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                running_node(postgresql_url, name=f"node-{n}", limits=QUICK if n else NEVER)
            )
            for n in range(4)
        ]
        for letter in "abcde":  # one by one: of what comes together only the last is remembered
            await write(nodes[0], letter)
            for node in nodes:
                await node.committer.catch_up()
        await take_back(postgresql_url, 3)
        await asyncio.gather(*(node.put("s", "x") for node in nodes[:1]), *map(replaced, nodes))
        assert [each.began for each in await known(nodes[0])] == [0, 3]


async def test_a_node_that_missed_it_notices_by_the_next_entry(postgresql_url: str) -> None:
    """The log is longer than before when it looks again: its entries do not follow what it saw."""
    async with AsyncExitStack() as stack:
        late = await stack.enter_async_context(
            running_node(postgresql_url, name="late", limits=NEVER)
        )
        await write(late, "a", "b", "c")
        late.store._listener._watchers.clear()  # type: ignore[attr-defined]
        delivered = list(late.delivered)
        await take_back(postgresql_url, 2)
        await Database(postgresql_url).run("UPDATE incarnation SET id = id")
        async with running_node(postgresql_url, name="early") as early:
            await write(early, "x", "y", "z")
            assert (await early.store.head()).committed_id == 5
        late.committer._follow_to(5)
        assert "does not go on with the entry after it" in str(await replaced(late))
        assert late.delivered == delivered, "nothing of another history was delivered"
        assert [each.began for each in await known(late)] == [0, 2]


async def test_a_node_follows_another_that_noticed(postgresql_url: str) -> None:
    """Its own log is what it saw, and yet readers of the other node's must be told."""
    async with running_node(postgresql_url, limits=QUICK) as node:
        await write(node, "a", "b")
        await Database(postgresql_url).run(
            "INSERT INTO incarnation (number, id, began, at) VALUES (2, 'another', 1, 0)"
        )
        await replaced(node)
        assert [each.id for each in await known(node)][1:] == ["another"]


class Wrapped:
    """A store that answers as a test wants, once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.heads: list[Head] = []
        self.failures = 0
        self.writer = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def head(self) -> Head:
        """An older one, if there is one to tell."""
        return self.heads.pop() if self.heads else await self._store.head()

    async def begin(self, names: Names, seen: int) -> Loaded:
        """Fails as often as it is told to."""
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("not now")
        return await self._store.writer.begin(names, seen)

    async def commit(self, *arguments: Any) -> None:
        """See `Writer.commit`."""
        await self._store.writer.commit(*arguments)

    async def confirm(self) -> None:
        """See `Writer.confirm`."""
        await self._store.writer.confirm()

    async def rollback(self) -> None:
        """See `Writer.rollback`."""
        await self._store.writer.rollback()


def wrapping(wrapped: list[Wrapped]) -> Callable[[Store], Store]:
    """Wrap a store and remember it."""

    def wrap(store: Store) -> Store:
        wrapped.append(Wrapped(store))
        return wrapped[-1]

    return wrap


async def test_a_stale_answer_is_a_false_alarm(
    store_location: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock tells: the log is the same, no incarnation begins, and the node goes on."""
    wrapped: list[Wrapped] = []
    async with running_node(store_location, limits=NEVER, wrap=wrapping(wrapped)) as node:
        await write(node, "a")
        old = await node.store.head()
        await write(node, "b", "c")
        wrapped[0].heads = [old, old]
        with pytest.raises(HistoryReplaced):
            await node.committer.catch_up()
        async with asyncio.timeout(SECONDS):
            while wrapped[0].heads or node.committer.is_suspended:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.005)
        await write(node, "d")
        await node.committer.catch_up()
        assert not node.committer.replaced.done()
        assert len(await known(node)) == 1
    assert "are reads answered by a replica?" in caplog.text


async def test_a_store_that_does_not_answer_is_asked_again(
    store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged before the other history has a name."""
    monkeypatch.setattr("tidelog.log.committer.RENEW_SECONDS", 0.01)
    wrapped: list[Wrapped] = []
    async with running_node(store_location, limits=NEVER, wrap=wrapping(wrapped)) as node:
        await write(node, "a", "b", "c")
        wrapped[0].failures = 5  # first: the committer may look at the head by itself
        await take_back(store_location, 2)
        with pytest.raises(HistoryReplaced):
            await node.committer.catch_up()
        await replaced(node)
        assert wrapped[0].failures == 0
        assert [each.began for each in await known(node)] == [0, 2]
