"""Announcements: every other node hears them, in one order, never ahead of the log."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.log.nodes import Node, running_node
from support.store.catalogue import Database
from tidelog.base.errors import QueueFull, ShuttingDown, StoreUnavailable
from tidelog.base.settings.limits import Limits
from tidelog.log import announcements as module
from tidelog.store import postgresql as engine_module
from tidelog.store import postgresql_listener as listener_module
from tidelog.store.engine import PAGE_ENTRIES
from tidelog.store.rows import Announcement


class Ear:
    """What a node hears about a topic."""

    def __init__(self, node: Node, topic: str = "t") -> None:
        self.heard: list[Announcement] = []
        self._news = asyncio.Event()
        node.committer.announcements.subscribe(topic, self._hear)

    def _hear(self, announcement: Announcement) -> None:
        self.heard.append(announcement)
        self._news.set()

    async def payloads(self, count: int) -> list[bytes]:
        """The payloads, once there are so many."""
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                self._news.clear()
                await self._news.wait()
        return [announcement.payload for announcement in self.heard]


async def test_every_other_node_hears_everything_once_in_one_order(postgresql_url: str) -> None:
    """Three nodes speak at once; each hears the two others, ids ascending, nothing of its own."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(running_node(postgresql_url, name=f"node-{n}"))
            for n in range(3)
        ]
        ears = [Ear(node) for node in nodes]
        told: list[list[asyncio.Future[int]]] = [[], [], []]
        for number in range(300):
            for n, node in enumerate(nodes):
                payload = b"%d-%d\0\xff" % (n, number)
                told[n].append(node.committer.announcements.announce("t", payload))
                node.committer.announcements.announce("nobody listens", b"")
            if number % 40 == 0:
                await asyncio.sleep(0.01)
        ids = [[await each for each in mine] for mine in told]
        for mine in ids:
            assert mine == sorted(mine), "in the order of the calls"
        assert len({each for mine in ids for each in mine}) == 900
        for n, ear in enumerate(ears):
            payloads = await ear.payloads(600)
            heard = [announcement.id for announcement in ear.heard]
            assert heard == sorted({*ids[(n + 1) % 3], *ids[(n + 2) % 3]})
            others = [payload for payload in payloads if not payload.startswith(b"%d-" % n)]
            assert len(others) == 600


async def test_an_announcement_waits_for_what_was_committed_before_it(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hearing node delivers the entries up to the announcement's head first."""
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):
        gate, entries = asyncio.Event(), b.store.entries

        async def held(*arguments: Any, **options: Any) -> Any:
            await gate.wait()
            return await entries(*arguments, **options)

        monkeypatch.setattr(b.store, "entries", held)
        delivered_before: list[int] = []
        b.committer.announcements.subscribe(
            "t", lambda _: delivered_before.append(len(b.delivered))
        )
        for number in range(5):
            await a.put("s", f"k{number}")
        await a.committer.announcements.announce("t", b"")
        await asyncio.sleep(0.1)
        early = list(delivered_before)
        gate.set()  # before anything is asserted: a node that still waits here could not stop
        assert early == []
        async with asyncio.timeout(60):
            while not delivered_before:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert delivered_before == [5]


async def test_what_is_announced_while_a_node_is_deaf_is_heard_later(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a lost listening connection nor a store that cannot be read loses one."""
    monkeypatch.setattr(listener_module, "RECONNECT_SECONDS", 0.3)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)
    slow = Limits(head_poll_ms=86_400_000)
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b", limits=slow) as b,
    ):
        ear = Ear(b)
        await a.committer.announcements.announce("t", b"1")
        assert await ear.payloads(1) == [b"1"]
        await Database(postgresql_url).run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
        )
        await a.committer.announcements.announce("t", b"2")
        await asyncio.sleep(0.05)
        assert [each.payload for each in ear.heard] == [b"1"], "b does not listen now"
        assert await ear.payloads(2) == [b"1", b"2"]
        read, failures = b.store.announcements, 2

        async def unreadable(after: int) -> list[Announcement]:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailable("injected")
            return await read(after)

        monkeypatch.setattr(b.store, "announcements", unreadable)
        await a.committer.announcements.announce("t", b"3")
        assert await ear.payloads(3) == [b"1", b"2", b"3"]


async def test_a_server_that_forgot_what_was_announced_is_heard(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica took over: it has no announcements, and gives ids again that were given before."""
    monkeypatch.setattr(listener_module, "RECONNECT_SECONDS", 0.05)
    database = Database(postgresql_url)
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):
        ear, missed = Ear(b), asyncio.Event()
        b.committer.announcements.subscribe("other", lambda _: None, missed.set)
        for number in range(3):
            await a.committer.announcements.announce("t", b"%d" % number)
        assert await ear.payloads(3) == [b"0", b"1", b"2"]
        await database.run("TRUNCATE announcement")
        await database.run("ALTER SEQUENCE announcement_id RESTART")

        async def another() -> tuple[str, int]:
            [(last,)] = await database.run("SELECT last_value FROM announcement_id")
            return "another server", last

        monkeypatch.setattr(b.store, "announcement_keeper", another)
        await database.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
        )
        async with asyncio.timeout(60):
            await missed.wait()
        await a.committer.announcements.announce("t", b"again")
        assert await ear.payloads(4) == [b"0", b"1", b"2", b"again"]


async def test_a_lost_wake_up_delays_an_announcement_by_one_poll(postgresql_url: str) -> None:
    """A node looks now and then, whatever it was told."""
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b", limits=Limits(head_poll_ms=200)) as b,
    ):
        store: Any = b.store
        store._listener._watchers.clear()
        ear = Ear(b)
        await a.committer.announcements.announce("t", b"1")
        assert await ear.payloads(1) == [b"1"]


async def test_a_node_that_was_deaf_for_too_long_says_so(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announcements are kept for a while; beyond it subscribers are told to look themselves."""
    monkeypatch.setattr(module, "ANNOUNCED_MS", 300)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.02)
    limits = Limits(head_poll_ms=20)
    async with running_node(postgresql_url, name="a", limits=limits) as node:
        missed = asyncio.Event()
        node.committer.announcements.subscribe("t", lambda _: None, missed.set)
        await asyncio.sleep(0.5)
        assert not missed.is_set(), "it looked in time"
        read = node.store.announcements

        async def unreadable(after: int) -> list[Announcement]:
            raise StoreUnavailable("injected")

        monkeypatch.setattr(node.store, "announcements", unreadable)
        await asyncio.sleep(0.5)
        assert not missed.is_set(), "as long as it cannot look, neither can they"
        monkeypatch.setattr(node.store, "announcements", read)
        async with asyncio.timeout(60):
            await missed.wait()


async def test_a_busy_node_hears_more_than_a_page(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told while a node was busy is heard page by page; none of it is skipped."""
    count = 2 * PAGE_ENTRIES + 500
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):
        ear, gate, read = Ear(b), asyncio.Event(), b.store.announcements

        async def held(after: int) -> list[Announcement]:
            await gate.wait()
            return await read(after)

        monkeypatch.setattr(b.store, "announcements", held)
        told = [a.committer.announcements.announce("t", b"%d" % n) for n in range(count)]
        await asyncio.gather(*told)
        gate.set()
        assert await ear.payloads(count) == [b"%d" % n for n in range(count)]


async def test_a_node_that_falls_a_minute_back_says_so(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads without a pause, and yet what comes next may have been swept already."""
    monkeypatch.setattr(engine_module, "PAGE_ENTRIES", 2)
    monkeypatch.setattr(module, "PAGE_ENTRIES", 2)
    database = Database(postgresql_url)
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):
        missed = asyncio.Event()
        gate, read = asyncio.Event(), b.store.announcements

        async def held(after: int) -> list[Announcement]:
            await gate.wait()
            return await read(after)

        ear = Ear(b)
        b.committer.announcements.subscribe("other", lambda _: None, missed.set)
        monkeypatch.setattr(b.store, "announcements", held)
        for number in range(5):
            await a.committer.announcements.announce("t", b"%d" % number)
        await database.run("UPDATE announcement SET at = at - 61000")
        gate.set()
        await ear.payloads(5)
        async with asyncio.timeout(60):
            await missed.wait()


async def test_a_failing_sink_does_not_make_a_node_deaf(postgresql_url: str) -> None:
    """It is logged; other topics and later announcements are heard."""
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):

        def fails(announcement: Announcement) -> None:
            raise RuntimeError(announcement.topic)

        b.committer.announcements.subscribe("bad", fails)
        ear = Ear(b)
        a.committer.announcements.announce("bad", b"1")
        a.committer.announcements.announce("t", b"2")
        assert await ear.payloads(1) == [b"2"]


async def test_old_announcements_are_swept_by_who_announces(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows older than a minute go, younger ones stay; a later node hears nothing of either."""
    monkeypatch.setattr(engine_module, "SWEEP_SECONDS", 0.0)
    database = Database(postgresql_url)
    async with running_node(postgresql_url, name="a") as a:
        await a.committer.announcements.announce("t", b"old")
        await database.run("UPDATE announcement SET at = at - 61000")
        await a.committer.announcements.announce("t", b"young")
        assert await database.run("SELECT payload FROM announcement") == [(b"young",)]
        async with running_node(postgresql_url, name="b") as b:
            ear = Ear(b)
            await a.committer.announcements.announce("t", b"new")
            assert await ear.payloads(1) == [b"new"]


async def test_what_cannot_be_told_says_so(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that fails, more than is kept, and the end of the node; nobody needs to wait."""
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    async with running_node(postgresql_url, name="a") as a:
        announcements = a.committer.announcements
        gate, announce = asyncio.Event(), a.store.announce

        async def held(messages: Any) -> list[int]:
            await gate.wait()
            return await announce(messages)

        async def fails(messages: Any) -> list[int]:
            raise StoreUnavailable("injected")

        monkeypatch.setattr(a.store, "announce", fails)
        with pytest.raises(StoreUnavailable):
            await announcements.announce("t", b"")
        monkeypatch.setattr(a.store, "announce", held)
        first = announcements.announce("t", b"")
        await asyncio.sleep(0)
        waiting = [announcements.announce("t", b"") for _ in range(5)]
        with pytest.raises(QueueFull):
            await waiting[3]
        gate.set()
        assert await first < await waiting[0] < await waiting[1] < await waiting[2]
        gate.clear()
        under_way = announcements.announce("t", b"")
        await asyncio.sleep(0)
        behind = announcements.announce("t", b"")
    for late in (under_way, behind, announcements.announce("t", b"")):
        with pytest.raises(ShuttingDown):
            await late
    assert caplog.text.count("other nodes were not told 1 announcements: injected") == 1
    assert caplog.text.count("other nodes are not told everything: 3 wait already") == 1


async def test_alone_there_is_nobody_to_tell(tmp_path: Path) -> None:
    """On SQLite an announcement is done at once, without a task and without the store."""
    async with running_node(str(tmp_path / "tidelog.db")) as node:
        ear = Ear(node)
        told = node.committer.announcements.announce("t", b"")
        assert told.done()
        assert await told == 0
        assert node.committer.announcements._ear is None
        assert await node.store.announce([("t", b"")]) == [0]
        assert await node.store.announcements(0) == []
        assert await node.store.last_announcement() == 0
        await asyncio.sleep(0.05)
        assert ear.heard == []
