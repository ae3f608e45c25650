"""What all processes say together, in one process over links of bytes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.base.errors import TidelogError
from tidelog.link.encoded import connect_apart
from tidelog.serve import gathering
from tidelog.serve.gathering import VOCABULARY, GatheringFront, GatheringOwner, Part

if TYPE_CHECKING:
    from tidelog.link.ends import FrontEnd


class Server:
    """An owner and fronts that answer with their names, or as a test says."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.owner = GatheringOwner({"names": lambda: b"owner"}, lambda: self.problem)
        self.ends: dict[str, FrontEnd] = {}

    def front(self, name: str, say: Callable[[], bytes] | None = None) -> GatheringFront:
        """One more."""
        self.ends[name] = end = connect_apart(self.owner, VOCABULARY)
        return GatheringFront(end, name, {"names": say or name.encode}, lambda: False)


async def test_everybody_hears_what_all_say() -> None:
    """The owner first, then fronts by their names; of what the owner does not know, the fronts."""
    server = Server()
    fronts = [server.front(name) for name in ("front 2", "front 1")]
    wanted = [Part("owner", b"owner"), Part("front 1", b"front 1"), Part("front 2", b"front 2")]
    for front in fronts:
        assert list(await front.gather("names")) == wanted
    fronts[0].add({"more": lambda: b"of one"})
    assert list(await fronts[1].gather("more")) == [Part("front 2", b"of one")]


async def test_who_asks_while_others_wait_hears_what_is_so_since() -> None:
    """And all who ask meanwhile share one question."""
    server = Server()
    asked: list[int] = []

    def say() -> bytes:
        asked.append(len(asked))
        return b"%d" % asked[-1]

    front = server.front("front 1", say)
    await front.gather("names")
    said = await asyncio.gather(*[front.gather("names") for _ in range(10)])
    assert [parts[1].payload for parts in said] == [b"1", *([b"2"] * 9)]
    assert asked == [0, 1, 2]


async def test_who_does_not_answer_is_taken_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has said anything; whoever asks does not wait for it for ever."""
    server = Server()
    asking = server.front("front 1")
    server.front("front 2")
    await asking.gather("names")
    server.front("front 3")
    for name in ("front 2", "front 3"):
        server.ends[name].hear = lambda _: None
    monkeypatch.setattr(gathering, "WAIT_SECONDS", 0.01)
    parts = await asking.gather("names")
    assert [part.process for part in parts] == ["owner", "front 1", "front 2"]


async def test_the_owner_says_how_it_is() -> None:
    """And a front whose owner is gone that it is away."""
    server = Server()
    front = server.front("front 1")
    assert await front.problem() is None
    server.problem = "the disk is full"
    assert await front.problem() == "the disk is full"
    server.ends["front 1"].lost()
    assert await front.problem() == gathering.AWAY
    with pytest.raises(TidelogError, match="is away"):
        await front.metrics()


async def test_strangers_who_ask_at_once_cost_the_owner_two_questions() -> None:
    """Also while it does not answer, and each of them has given up since."""
    server = Server()
    front, end = server.front("front 1"), server.ends["front 1"]
    sent: list[int] = []
    end.send = lambda number, _: sent.append(number)
    strangers = [asyncio.create_task(front.problem()) for _ in range(50)]
    await asyncio.sleep(0)
    for each in strangers:
        each.cancel()
    await asyncio.wait(strangers)
    waiting = [asyncio.create_task(front.problem()) for _ in range(50)]
    await asyncio.sleep(0)
    assert len(sent) == 1
    end.received(sent[0], gathering.Health("before they asked"))
    while len(sent) < 2:  # noqa: ASYNC110 - the next turns of the loop
        await asyncio.sleep(0)
    end.received(sent[1], gathering.Health("now"))
    assert set(await asyncio.gather(*waiting)) == {"now"}
    assert len(sent) == 2


async def test_the_owner_knows_when_all_fronts_have_left() -> None:
    """At once, if there is none."""
    owner = GatheringOwner({}, lambda: None)
    await owner.all_left()
    fronts = [owner.accept(lambda *_: None) for _ in range(2)]
    for front in fronts:
        front.received(0, gathering.Enter("front"))
    waiting = asyncio.create_task(owner.all_left())
    fronts[0].lost()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    fronts[1].lost()
    await waiting
