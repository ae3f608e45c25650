"""The owner's half of sync and several fronts, over a link that only data can cross."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.link.listening_front import ListeningFront
from support.log.nodes import Node, running_node
from support.sync.peer import MODEL, note, push
from tidelog.base.clock import SystemClock
from tidelog.base.errors import ConfigError, StoreUnavailable
from tidelog.base.settings.limits import Limits
from tidelog.link.message import Failed
from tidelog.sync.messages import (
    VOCABULARY,
    Attach,
    Attached,
    Detach,
    Events,
    Evict,
    Hello,
    Join,
    Joined,
    Left,
    NotTaken,
    Submit,
    Submitted,
    Welcome,
)
from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY, Model
from tidelog.sync.protocol.wire import Committed
from tidelog.sync.settings import SyncSettings
from tidelog.sync.upkeep.owner import SyncOwner

RULES = Model.parse(MODEL["tree_targets"], MODEL["schemas"], 3)


class Front(ListeningFront):
    """A front that only listens, and asks what the tests ask."""

    def __init__(self, owner: SyncOwner) -> None:
        super().__init__(owner, VOCABULARY)

    def submit(
        self,
        *items: dict[str, Any],
        connection: int = 1,
        round_: int = 0,
        follows: bool = True,
    ) -> None:
        """Submit; the answer is heard."""
        prepared = tuple(map(ready, items))
        self.end.ask(Submit(prepared, 10, False, connection, round_, follows), self.hear)

    async def results(self) -> list[str]:
        """The ids of the next submit, all committed, and the event of each."""
        [submitted, events] = await self.next(2)
        assert isinstance(submitted, Submitted)
        assert isinstance(events, Events)
        committed = [each for each in submitted.results if isinstance(each, Committed)]
        assert len(committed) == len(submitted.results)
        assert events.position == committed[-1].committed_id
        return [each.id for each in committed]


def ready(item: dict[str, Any]) -> PreparedItem:
    """A submit item, prepared."""
    profile = CANONICAL if item["event"]["type"] == "event" else COMPATIBILITY
    return prepare(
        item,
        msgspec.json.encode(item["event"]),
        client_id="c",
        profile=profile,
        model=RULES,
        allows=lambda _: True,
    )


@asynccontextmanager
async def owning(tmp_path: Path, **limits: Any) -> AsyncIterator[tuple[SyncOwner, Node]]:
    """An owner's half on a store of its own."""
    location = str(tmp_path / "tidelog.db")
    async with running_node(location, clock=SystemClock(), limits=Limits(**limits)) as node:
        settings = SyncSettings()
        yield await SyncOwner.open(node.committer, node.store, settings, RULES, None), node


async def front_of(owner: SyncOwner) -> Front:
    """A front that was let in."""
    front = Front(owner)
    await front.end.reply(Hello(RULES.digest, ""), Welcome)
    return front


async def test_a_front_is_told_what_it_follows_and_how_far_the_log_is(tmp_path: Path) -> None:
    """The answer first, then the events it attached to, and the position in any case."""
    async with owning(tmp_path) as (owner, _):
        a, b = await front_of(owner), await front_of(owner)
        assert await a.end.reply(Attach(("p",)), Attached) == Attached(0)
        await b.end.reply(Attach(("q",), ("project",)), Attached)
        a.submit(note("1", "p"), note("2", "r", "project/x"), note("3", "q", "p"), note("4", "r"))
        submitted, events = await a.next(2)
        assert [each.committed_id for each in submitted.results] == [1, 2, 3, 4]
        assert (events.position, [each.id for each in events.events]) == (4, ["1", "3"])
        [there] = await b.next(1)
        assert (there.position, [each.id for each in there.events]) == (4, ["2", "3"])
        assert there.events[0].partitions == ["project/x", "r"]
        b.end.tell(Detach(("q",), ("project",)))
        assert await b.end.reply(Attach(), Attached) == Attached(4)
        a.submit(note("5", "q", "project/x"))
        assert await b.next(1) == [Events(5, [])]
        late = Front(owner)
        welcome = await late.end.reply(Hello(RULES.digest, ""), Welcome)
        assert (welcome.position, welcome.last_event, welcome.model_version) == (5, 5, 3)
        b.at_owner.lost()
        await a.results()
        a.submit(note("6", "q"))
        assert await late.next(1) == [Events(6, [])]
        await a.results()
        assert b.heard == [], "it is gone"


async def test_events_of_one_turn_are_told_together_but_before_what_relies_on_them(
    tmp_path: Path,
) -> None:
    """The answer to a connection that follows nothing may overtake them; no other message may."""
    async with owning(tmp_path) as (owner, _):
        a, b = await front_of(owner), await front_of(owner)
        for front in (a, b):
            await front.end.reply(Attach(("p",)), Attached)
        for number, follows in enumerate((False, False, True, False)):
            a.submit(note(f"{number}", "p"), connection=number + 1, follows=follows)
        heard = await a.next(6)
        assert [type(each) for each in heard] == [
            *(Submitted, Submitted, Events, Submitted, Submitted, Events),
        ]
        told = [[each.id for each in some.events] for some in (heard[2], heard[5])]
        assert told == [["0", "1"], ["2", "3"]]
        assert await b.next(2) == [heard[2], heard[5]]
        a.submit(note("4", "p"), follows=False)
        await a.next(1)
        heard_before: list[Any] = []
        await b.end.reply(Attach(), Attached, at_once=lambda _: heard_before.extend(b.heard))
        assert [each.position for each in heard_before] == [5]


async def test_a_front_with_other_rules_is_not_let_in(tmp_path: Path) -> None:
    """Its verdicts about items could be others than the owner's; it is told what to do."""
    other = Model.parse(MODEL["tree_targets"], {}, 3)
    async with owning(tmp_path) as (owner, _):
        for hello in (Hello(other.digest, ""), Hello(RULES.digest, "my:Rules")):
            front = Front(owner)
            with pytest.raises(ConfigError, match="start tidelog again"):
                await front.end.reply(hello, Welcome)
            await (await front_of(owner)).end.reply(Attach(), Attached)
            assert front.heard == []


async def test_a_client_has_one_connection_over_all_fronts(tmp_path: Path) -> None:
    """The newer one stays; who left during its handshake, or with its front, displaces nobody."""
    async with owning(tmp_path) as (owner, _):
        a, b = await front_of(owner), await front_of(owner)
        assert await a.end.reply(Join(1, "c"), Joined) == Joined(0, is_latest=True)
        assert await a.end.reply(Join(2, "other"), Joined) == Joined(0, is_latest=True)
        joining = asyncio.ensure_future(b.end.reply(Join(1, "c"), Joined))
        await asyncio.sleep(0)
        b.end.tell(Left(1))
        assert await joining == Joined(0, is_latest=False)
        assert a.heard == []
        assert await b.end.reply(Join(2, "c"), Joined) == Joined(0, is_latest=True)
        assert await a.next(1) == [Evict(1)]
        a.end.tell(Left(1))
        assert await a.end.reply(Join(3, "c"), Joined) == Joined(0, is_latest=True)
        assert await b.next(1) == [Evict(2)], "the former one has left, and not in its place"
        a.at_owner.lost()
        assert await b.end.reply(Join(3, "c"), Joined) == Joined(0, is_latest=True)
        assert await b.end.reply(Join(4, "other"), Joined) == Joined(0, is_latest=True)
        assert (a.heard, b.heard) == ([], [])


async def test_submits_of_a_connection_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a state holds up those after it, and nobody else's."""
    async with owning(tmp_path) as (owner, node):
        front = await front_of(owner)
        rows, gate = node.store.rows, asyncio.Event()

        async def held(query: str, key: Any) -> Any:
            if query == "sync_snapshot":
                await gate.wait()
            return await rows(query, key)

        monkeypatch.setattr(node.store, "rows", held)
        front.submit(push("cold", "n"))
        front.submit(note("after it"))
        front.submit(push("below", "m", parent="n"), note("last"))
        front.submit(note("another's"), connection=2)
        front.submit(note("nobody's"), connection=0)
        assert [await front.results() for _ in range(2)] == [["another's"], ["nobody's"]]
        gate.set()
        came = [await front.results() for _ in range(3)]
        assert came == [["cold"], ["after it"], ["below", "last"]]
        assert all(state.pins == 0 for state in owner.states._states.values())


async def test_what_follows_a_submit_without_room_is_not_taken_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the front has heard of it; others' are taken as soon as there is room."""
    limits = {"commit_queue_requests": 1, "commit_batch_requests": 1}
    async with owning(tmp_path, **limits) as (owner, node):
        front = await front_of(owner)
        writer, gate, begun = node.store.writer, asyncio.Event(), asyncio.Event()
        begin = writer.begin

        async def held(*arguments: Any) -> Any:
            begun.set()
            await gate.wait()
            return await begin(*arguments)

        monkeypatch.setattr(writer, "begin", held)
        front.submit(note("1"))
        await begun.wait()
        front.submit(note("2"))
        front.submit(note("3"))
        front.submit(push("4", "n"))
        full, cold = await front.next(2)
        assert (type(full), full.error) == (type(cold), cold.error) == (NotTaken, "QueueFull")
        gate.set()
        assert [await front.results() for _ in range(2)] == [["1"], ["2"]]
        front.submit(note("5"))
        assert [type(each) for each in await front.next(1)] == [NotTaken], "3 is still missing"
        front.submit(note("6"), connection=2)
        assert await front.results() == ["6"]
        front.submit(note("3"), round_=1)
        assert await front.results() == ["3"]
        assert all(state.pins == 0 for state in owner.states._states.values())


async def test_what_follows_a_submit_that_failed_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its commit failed or a state could not be loaded for it (sync D9)."""
    async with owning(tmp_path) as (owner, node):
        front = await front_of(owner)
        writer, gate, begun = node.store.writer, asyncio.Event(), asyncio.Event()
        begin, rows = writer.begin, node.store.rows

        async def failing(*arguments: Any) -> Any:
            begun.set()
            await gate.wait()
            monkeypatch.setattr(writer, "begin", begin)
            raise StoreUnavailable("injected")

        monkeypatch.setattr(writer, "begin", failing)
        front.submit(note("1"))
        await begun.wait()
        front.submit(note("2"))
        front.submit(note("3"), connection=2)
        await front.end.reply(Attach(), Attached)
        gate.set()
        came = await front.next(4)
        assert [type(each) for each in came] == [Failed, Failed, Submitted, Events]
        assert came[2].results[0].committed_id == 1

        async def unreadable(query: str, key: Any) -> Any:
            raise StoreUnavailable("injected")

        monkeypatch.setattr(node.store, "rows", unreadable)
        front.submit(push("4", "n"), connection=3)
        front.submit(note("5"), connection=3)
        assert [type(each) for each in await front.next(2)] == [Failed, Failed]
        monkeypatch.setattr(node.store, "rows", rows)
        front.submit(note("6"), connection=4)
        assert await front.results() == ["6"]
        assert (await node.store.head()).committed_id == 2
