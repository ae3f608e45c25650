"""The owner's half of channels and several fronts, over a link that only data can cross."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import until
from support.link.listening_front import ListeningFront
from support.log.nodes import running_node
from tidelog.base.clock import SystemClock
from tidelog.channels import messages
from tidelog.channels.messages import (
    VOCABULARY,
    Attach,
    Attached,
    Detach,
    Entries,
    Erased,
    EraseHistory,
    Event,
    Floors,
    Hello,
    HistoryErased,
    Live,
    Look,
    Mutated,
    Publish,
    Published,
    Revoke,
    Revoked,
    Target,
    Welcome,
)
from tidelog.channels.protocol.requests import Asked, Mode, parse_mutation, parse_publication
from tidelog.channels.settings import Channels, VersionedMessages
from tidelog.channels.upkeep import owner as module
from tidelog.channels.upkeep import submitting as submitting_module
from tidelog.channels.upkeep.owner import ChannelsOwner
from tidelog.link.message import Failed
from tidelog.store.rows import Effects

SETTINGS = Channels(versioned_messages=VersionedMessages(enabled=True))


class Front(ListeningFront):
    """A front that only listens, and asks what the tests ask."""

    def __init__(self, owner: ChannelsOwner) -> None:
        super().__init__(owner, VOCABULARY)

    def publish(self, *channels: str, mode: Mode = "versioned") -> None:
        """Publish to these; the answer is heard."""
        body = b'{"name":"n","channel":"c","data":"x"}'
        events = tuple(
            Event(parse_publication(body, None, SETTINGS), (Target(each, mode, False),))
            for each in channels
        )
        self.end.ask(Publish("a", events, is_batch=True), self.hear)


@asynccontextmanager
async def owning(store: Path | str, name: str = "node-a") -> AsyncIterator[ChannelsOwner]:
    """An owner's half on a store of its own in a directory, or on a PostgreSQL."""
    clock = SystemClock()
    location = str(store / "tidelog.db") if isinstance(store, Path) else store
    async with running_node(location, clock=clock, name=name) as node:
        yield await ChannelsOwner.open(node.committer, node.store, SETTINGS, clock)


async def front_of(owner: ChannelsOwner, *, follows_all: bool = False) -> Front:
    """A front that was let in."""
    front = Front(owner)
    await front.end.reply(Hello(follows_all), Welcome)
    return front


def streams(entries: Entries) -> list[str]:
    """Where the entries are."""
    return [each.stream for each in entries.entries]


async def test_a_front_is_told_what_it_follows_and_how_far_the_log_is(tmp_path: Path) -> None:
    """The answer first, then the entries of what it attached, and the position in any case."""
    p, q = "channels/a/p", "channels/a/q"
    async with owning(tmp_path) as owner:
        a, b = await front_of(owner), await front_of(owner, follows_all=True)
        assert await a.end.reply(Attach(p), Attached) == Attached(0, 0, 0, 0, 0, 0, 0)
        a.publish("p", "q", "p")
        published, entries = await a.next(2)
        assert published == Published(b"{}", 3)
        assert (entries.position, streams(entries)) == (3, [p, p])
        [there] = await b.next(1)
        assert (there.position, streams(there)) == (3, [p, q, p])
        assert await b.end.reply(Look(p), Attached) == Attached(3, 0, 0, 0, 2, 2, 2)
        a.end.tell(Detach((p,)))
        b.publish("p")
        assert await a.next(1) == [Entries(4, [])]
        assert owner.states._channels[p].pins == 0
        b.at_owner.lost()
        a.publish("q", mode="live")
        live, answer = await a.next(2)
        assert (type(live), live.stream) == (Live, q)
        assert answer == Published(b"{}", 0)


async def test_much_is_told_in_several_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with how far it has come: what nobody asks for must fit through the link."""
    monkeypatch.setattr(module, "MAX_ENTRIES_BYTES", 150)
    async with owning(tmp_path) as owner:
        front = await front_of(owner, follows_all=True)
        front.publish("p", "p", "p")
        answer, *told = await front.next(4)
        assert answer == Published(b"{}", 3)
        assert [(each.position, len(each.entries)) for each in told] == [(1, 1), (2, 1), (3, 1)]


async def test_floors_are_told_before_anything_later_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset and a publish in one batch: the entry comes under the new epoch."""
    stream = "channels/a/p"
    async with owning(tmp_path) as owner:
        front = await front_of(owner, follows_all=True)
        await front.end.reply(Attach(stream), Attached)
        front.publish("p")
        await front.next(2)
        committer, writer = owner._committer, owner._store.writer
        gate, begin = asyncio.Event(), writer.begin

        async def busy(*arguments: Any) -> Any:
            await gate.wait()
            return await begin(*arguments)

        monkeypatch.setattr(writer, "begin", busy)
        front.publish("q")
        await until(lambda: committer._unanswered)
        front.end.ask(EraseHistory(stream, None, Asked("why")), front.hear)
        await until(lambda: len(committer._queue) == 1)
        front.publish("p")
        await until(lambda: len(committer._queue) == 2)
        gate.set()
        heard = await front.next(5)
        assert [type(each) for each in heard] == [Published, Entries, Floors, Published, Entries]
        assert heard[2] == Floors(stream, 1, 1, 1)
        while not isinstance(heard[-1], HistoryErased):
            heard += await front.next(1)
        assert Erased in [type(each) for each in heard]
        assert heard[-1] == HistoryErased(0, 1, is_complete=True)


async def test_what_is_revoked_all_fronts_know(tmp_path: Path) -> None:
    """The one that asked has it as the answer; one that comes later is told with its welcome."""
    async with owning(tmp_path) as owner:
        a, b = await front_of(owner), await front_of(owner)
        revoked = await a.end.reply(Revoke("a", (("jti", "t"),)), Revoked)
        assert [each.value for each in revoked.revocations] == ["t"]
        assert await b.next(1) == [revoked]
        late = Front(owner)
        late.end.ask(Hello(follows_all=False), late.hear)
        told, welcome = await late.next(2)
        assert (told, type(welcome)) == (revoked, Welcome)
        assert a.heard == []


async def test_a_question_that_makes_no_sense_harms_nobody(tmp_path: Path) -> None:
    """It is answered as failed; the next one is as good as before."""
    async with owning(tmp_path) as owner:
        front = await front_of(owner)
        wrong = messages.Mutate("a", None)  # type: ignore[arg-type]
        front.at_owner.received(77, wrong)
        front.publish("p")
        await front.next(2)


async def test_a_mistake_of_ours_is_told_whoever_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a state was loaded first, and nothing stays held: no caller waits for ever."""
    async with owning(tmp_path) as owner:
        front = await front_of(owner)

        def fail() -> str:
            raise RuntimeError("injected")

        with monkeypatch.context() as broken:
            broken.setattr(owner.submitting._ids, "message", fail)
            for _ in ("it is loaded", "it is there"):
                front.publish("p")
                assert await front.next(1) == [
                    Failed("TidelogError", "internal error (RuntimeError)")
                ]
        front.publish("p")
        await front.next(2)
        serial = (await owner._store.entries(0))[0].entity
        monkeypatch.setattr(owner.submitting._ids, "message", fail)
        owner.states.forget_idle_messages()
        mutation = parse_mutation("append", "p", serial, b'{"data":"y"}')
        for _ in ("it is loaded", "it is there"):
            answer = await front.end.answer(messages.Mutate("a", mutation))
            assert answer == Failed("TidelogError", "internal error (RuntimeError)")
        assert owner.states._channels["channels/a/p"].pins == 0
        assert [each.pins for each in owner.states._messages.values()] == [0]


async def test_no_more_requests_wait_for_a_state_than_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number and by size; one alone may always, and those that wait are done in the end."""
    async with owning(tmp_path) as owner:
        front, submitting = await front_of(owner), owner.submitting
        read, may_read = owner._store.rows, asyncio.Event()

        async def slow(query: str, key: Any) -> Any:
            await may_read.wait()
            return await read(query, key)

        full = Failed("QueueFull", "too many requests wait for the store; retry in a moment")
        for bound in ("MAX_LOADING_REQUESTS", "MAX_LOADING_BYTES"):
            owner.states.forget_idle_messages()
            owner.states._channels.clear()
            may_read.clear()
            with monkeypatch.context() as slowed:
                slowed.setattr(owner._store, "rows", slow)
                slowed.setattr(submitting_module, bound, 1)
                for _ in range(2):
                    front.publish("p")
                assert await front.next(1) == [full]
                may_read.set()
                [published] = [each for each in await front.next(2) if isinstance(each, Published)]
            front.publish("p")
            assert published.position < (await front.next(2))[0].position
        assert (submitting._loading, submitting._loading_bytes) == (0, 0)
        assert owner.states._channels["channels/a/p"].pins == 0


async def test_an_owner_that_ends_at_once_complains_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it does by itself knows that the store is closed because it ends."""
    for turns in range(5):
        async with running_node(str(tmp_path / "tidelog.db"), clock=SystemClock()) as node:
            owner = await ChannelsOwner.open(node.committer, node.store, SETTINGS, SystemClock())
            for _ in range(turns):
                await asyncio.sleep(0)
        work = [each for each in (owner.erasing._task, owner.streams._task) if each is not None]
        await asyncio.wait(work, timeout=20)
    assert caplog.text == ""


async def test_a_message_of_another_node_in_the_place_of_one_that_is_taken_back(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both nodes have decided about the next message; the one that there is can be changed here."""
    async with owning(postgresql_url) as a, owning(postgresql_url, "node-b") as b:
        here, there = await front_of(a, follows_all=True), await front_of(b)
        here.publish("p")
        await here.next(2)
        writer = a._store.writer
        commit = writer.commit
        appending: list[asyncio.Future[Any]] = []

        async def overtaken(batch_id: bytes, effects: Effects) -> int | None:
            monkeypatch.setattr(writer, "commit", commit)
            there.publish("p")
            assert isinstance((await there.next(2))[-1], Published)
            serial = (await b._store.entries(1))[0].entity
            mutation = parse_mutation("append", "p", serial, b'{"data":"y"}')
            question = here.end.answer(messages.Mutate("a", mutation))
            appending.append(asyncio.ensure_future(question))
            await until(lambda: appending[0].done() or a._committer._awaited)
            return await commit(batch_id, effects)

        monkeypatch.setattr(writer, "commit", overtaken)
        here.publish("p")
        await until(lambda: appending)
        assert isinstance(await appending[0], Mutated)
        entries = await a._store.entries(0)
        assert [(each.kind, int(each.entity[-20:])) for each in entries] == [
            ("message.create", 1),
            ("message.create", 2),
            ("message.create", 3),
            ("message.append", 2),
        ]
