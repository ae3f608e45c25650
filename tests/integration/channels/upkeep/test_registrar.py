"""The registry of who is there, as several fronts use it over a link that only data can cross."""

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
from tidelog.channels.messages import (
    VOCABULARY,
    Admitted,
    Attach,
    Attached,
    CloseUser,
    Count,
    Counts,
    Disconnect,
    Done,
    Full,
    Hello,
    Identified,
    Identify,
    Join,
    Known,
    Leave,
    ListMembers,
    MemberAdded,
    MemberRemoved,
    MemberUpdated,
    Occupied,
    Present,
    Recount,
    SocketFacts,
    UpdateMember,
    Welcome,
    WhoHas,
)
from tidelog.channels.protocol.capabilities import Actor
from tidelog.channels.settings import Channels
from tidelog.channels.upkeep import registrar as module
from tidelog.channels.upkeep.owner import ChannelsOwner
from tidelog.link.message import Failed

MAX_MEMBERS = 3
ROOM, OPEN = "channels/tide/presence-a", "channels/tide/room"
ANA = SocketFacts(2, Actor("ana", None))


@asynccontextmanager
async def owning(tmp_path: Path, fronts: int = 2) -> AsyncIterator[ChannelsOwner]:
    """An owner's half on a store of its own, which waits for so many fronts."""
    clock, settings = SystemClock(), Channels(max_presence_members=MAX_MEMBERS)
    async with running_node(str(tmp_path / "tidelog.db"), clock=clock) as node:
        yield await ChannelsOwner.open(node.committer, node.store, settings, clock, fronts=fronts)


async def front_of(owner: ChannelsOwner) -> ListeningFront:
    """A front that was let in."""
    front = ListeningFront(owner, VOCABULARY)
    await front.end.reply(Hello(follows_all=False), Welcome)
    return front


async def join(front: ListeningFront, user: str, info: bytes | None = None) -> set[str]:
    """Let a socket of a user join; returns all who are there."""
    return set((await front.end.reply(Join(ROOM, user, info), Admitted)).members)


async def count(front: ListeningFront, stream: str = ROOM) -> tuple[int, int]:
    """Subscriptions and users, as the owner says after all that this front has told it."""
    [(_, subscriptions, users)] = (await front.end.reply(Count((stream,)), Counts)).counts
    return subscriptions, users


async def test_fronts_are_told_of_the_members_of_channels_that_they_have_members_of(
    tmp_path: Path,
) -> None:
    """In the order of the link, from a user's first socket to its last; others hear nothing."""
    async with owning(tmp_path, fronts=3) as owner:
        a, b, c = [await front_of(owner) for _ in range(3)]
        assert await join(a, "ana", b"1") == {"ana"}
        assert await join(b, "bo") == {"ana", "bo"}
        assert await join(b, "ana", b"ignored") == {"ana", "bo"}
        assert await a.one() == MemberAdded(ROOM, "bo", None)
        b.end.tell(UpdateMember(ROOM, "bo", b"2"))
        for each in (a, b):
            assert await each.one() == MemberUpdated(ROOM, "bo", b"2")
        present = await c.end.reply(ListMembers(ROOM), Present)
        assert present.members == {"ana": b"1", "bo": b"2"}
        b.end.tell(Leave(ROOM, "ana"))
        b.end.tell(Recount(OPEN, 4))
        assert await count(b) == (2, 2)
        assert await count(b, OPEN) == (4, 0)
        found = await b.end.reply(Occupied("channels/tide/", with_users=True), Counts)
        assert found == Counts(((ROOM, 2, 2), (OPEN, 4, 0)))
        a.end.tell(Leave(ROOM, "ana"))
        assert await b.one() == MemberRemoved(ROOM, "ana")
        assert (a.heard, b.heard, c.heard) == ([], [], [])


async def test_fronts_that_join_at_once_do_not_exceed_the_limit(tmp_path: Path) -> None:
    """With a channel's position or without: exactly as many as it may have are admitted."""
    async with owning(tmp_path) as owner:
        fronts = [await front_of(owner) for _ in range(2)]
        joins = [(front, Join(ROOM, f"u{n}", None)) for n in range(4) for front in fronts]
        answers: list[Any] = await asyncio.gather(
            *(
                front.end.reply(Attach(ROOM, each), Attached)
                if number % 3
                else front.end.reply(each, Admitted, Full)
                for number, (front, each) in enumerate(joins)
            )
        )
        verdicts = [each.joined if isinstance(each, Attached) else each for each in answers]
        admitted = {
            join.user_id
            for (_, join), verdict in zip(joins, verdicts, strict=True)
            if isinstance(verdict, Admitted)
        }
        assert len(admitted) == MAX_MEMBERS
        assert set(owner.registrar.registry.members(ROOM)) == admitted
        assert Full() in verdicts


async def test_the_members_of_a_lost_front_leave_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those who are elsewhere, or back before it is told: they have never left."""
    monkeypatch.setattr(module, "REMOVALS_PER_TURN", 1)
    async with owning(tmp_path) as owner:
        a, b = await front_of(owner), await front_of(owner)
        await join(a, "ana")
        for user in ("ana", "bo", "cy"):
            await join(b, user)
        b.end.tell(Recount(OPEN, 4))
        assert await count(b, OPEN) == (4, 0)
        assert await a.next(2) == [MemberAdded(ROOM, "bo", None), MemberAdded(ROOM, "cy", None)]
        b.at_owner.lost()
        owner.registrar.join(a.at_owner, Join(ROOM, "cy", None))  # type: ignore[arg-type]
        assert await count(a, OPEN) == (0, 0)
        assert await a.one() == MemberRemoved(ROOM, "bo")
        assert await count(a) == (2, 2)
        assert a.heard == []


async def test_a_front_that_is_lost_while_it_joins_leaves_nobody_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel is loaded, and then there is no front to be a member of."""
    async with owning(tmp_path) as owner:
        a, b = await front_of(owner), await front_of(owner)
        gate, load = asyncio.Event(), owner.states.load_channel

        async def slow(stream: str) -> Any:
            await gate.wait()
            return await load(stream)

        monkeypatch.setattr(owner.states, "load_channel", slow)
        b.end.ask(Attach(ROOM, Join(ROOM, "bo", None)), b.hear)
        await until(lambda: b.at_owner._work)  # type: ignore[attr-defined]
        b.at_owner.lost()
        gate.set()
        await b.one()
        assert await join(a, "ana") == {"ana"}


async def test_nobody_has_left_and_no_socket_is_gone_while_a_front_is_yet_to_come(
    tmp_path: Path,
) -> None:
    """An owner that starts waits for all of its fronts before it says so."""
    async with owning(tmp_path) as owner:
        a = await front_of(owner)
        await join(a, "ana")
        for user in ("bo", "cy"):
            await join(a, user)
            a.end.tell(Leave(ROOM, user))
        await join(a, "bo")
        a.end.ask(Identify("tide", "1.1"), a.hear)
        assert await count(a) == (2, 2)
        assert a.heard == []
        b = await front_of(owner)
        assert await a.one() == MemberRemoved(ROOM, "cy"), "and bo is back"
        asked = await b.one()
        assert asked == WhoHas(asked.question, "tide", "1.1"), "the socket may be there"
        b.end.tell(Known(asked.question, ANA))
        assert await a.one() == Identified(ANA)


async def test_a_front_that_does_not_come_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two heartbeats."""
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)
    async with owning(tmp_path) as owner:
        a = await front_of(owner)
        for user in ("ana", "bo"):
            await join(a, user)
        a.end.tell(Leave(ROOM, "bo"))
        assert await a.one() == MemberRemoved(ROOM, "bo")
        assert await a.end.reply(Identify("tide", "1.1"), Identified) == Identified(None)


async def test_who_a_socket_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other front is asked; one that is lost has it not, and one that is silent may."""
    async with owning(tmp_path, fronts=3) as owner:
        a, b, c = [await front_of(owner) for _ in range(3)]

        async def asked() -> tuple[Any, Any]:
            a.end.ask(Identify("tide", "1.1"), a.hear)
            return await b.one(), await c.one()

        first, _ = await asked()
        b.end.tell(Known(first.question, ANA))
        assert await a.one() == Identified(ANA), "nobody else matters"
        c.end.tell(Known(first.question, None))
        first, second = await asked()
        b.end.tell(Known(first.question, None))
        c.end.tell(Known(second.question, None))
        assert await a.one() == Identified(None)
        first, _ = await asked()
        b.end.tell(Known(first.question, None))
        c.at_owner.lost()
        assert await a.one() == Identified(None)
        monkeypatch.setattr(module, "QUESTION_SECONDS", 0.05)
        a.end.ask(Identify("tide", "1.1"), a.hear)
        assert (await a.one()).error == "QueueFull", "b has said nothing"
        monkeypatch.setattr(module, "MAX_QUESTIONS", 0)
        full = await a.end.answer(Identify("tide", "1.1"))
        assert isinstance(full, Failed)
        assert full.error == "QueueFull"
        assert not owner.registrar._questions


async def test_a_user_is_disconnected_on_all_other_fronts(tmp_path: Path) -> None:
    """The one that asks has closed its own."""
    async with owning(tmp_path) as owner:
        a, b = await front_of(owner), await front_of(owner)
        assert await a.end.reply(Disconnect("tide", "ana", 4009), Done) == Done()
        assert await b.one() == CloseUser("tide", "ana", 4009)
        assert a.heard == []
