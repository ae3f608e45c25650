"""What a page is told: entries as they are committed, filtered, bounded and without a gap."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest_asyncio

from support.dashboard.feed_peer import Desk, Json, desk, draft
from tidelog.client import ChannelPublisher
from tidelog.dashboard.feed import MAX_PUSHED, MAX_WATCHED, POLICY_VIOLATION

STREAM = "channels/app-id/room"


@pytest_asyncio.fixture
async def here(tmp_path: Path, store_location: str) -> AsyncIterator[Desk]:
    """A server on either engine."""
    async with desk(tmp_path / "data", store=store_location) as made:
        yield made


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Desk]:
    """A server on SQLite, for what has nothing to do with the store."""
    async with desk(tmp_path / "data") as made:
        yield made


async def test_entries_arrive_in_order_after_the_past(here: Desk) -> None:
    """A page gets what is there, then what comes, each once and in the order of the log."""
    await here.write(*(draft() for _ in range(3)))
    async with here.feed() as page:
        assert (await page.heard("hello"))["position"] == 3
        await page.say("follow", tag=7)
        past = await page.heard("page")
        assert [entry["id"] for entry in past["entries"]] == [1, 2, 3]
        assert (past["low"], past["through"], past["tag"]) == (0, 3, 7)
        await here.write(draft("mesh/m", "send.topic"), draft("channels/a/b", "event"))
        await here.write(draft())
        found = await page.entries(3)
        assert [entry["id"] for entry in found] == [4, 5, 6]
        assert [entry["surface"] for entry in found] == ["mesh", "channels", "sync"]


async def test_a_page_that_was_away_gets_what_it_missed(here: Desk) -> None:
    """After a reconnect a page asks for what is after its last position and gets no entry twice."""
    await here.write(*(draft() for _ in range(5)))
    async with here.feed() as page:
        await page.say("follow", since=2)
        past = await page.heard("page")
        assert [entry["id"] for entry in past["entries"]] == [3, 4, 5]
        assert (past["after"], past["low"]) == (2, 2)


async def test_a_page_that_missed_too_much_is_told_so(here: Desk) -> None:
    """Beyond the limit the newest entries come, and where they begin is said."""
    await here.write(*(draft() for _ in range(MAX_PUSHED + 50)))
    async with here.feed() as page:
        await page.say("follow", since=10)
        past = await page.heard("page")
        assert len(past["entries"]) == MAX_PUSHED
        assert past["entries"][0]["id"] == past["low"] + 1
        assert past["low"] > past["after"] == 10
        older = await here.get("log", before=past["low"] + 1)
        assert [entry["id"] for entry in older["entries"]] == list(range(1, past["low"] + 1))


FILTERS: tuple[tuple[dict[str, str], set[int]], ...] = (
    ({"surface": "mesh"}, {2, 6}),
    ({"stream": "channels/app/"}, {3, 4, 7}),
    ({"kind": "message."}, {3, 4, 5, 7}),
    ({"actor": "an"}, {1, 3, 7}),
    ({"surface": "channels", "kind": "message.create", "actor": "ben"}, {4}),
    ({"stream": "channels/app/%"}, set()),
    ({"surface": "mes"}, set()),
    ({}, {1, 2, 3, 4, 5, 6, 7}),
)


async def test_filters_hold_for_past_and_future(here: Desk) -> None:
    """The query over the past and the judgement of new entries let the same ones through."""
    async with AsyncExitStack() as stack:
        pages = []
        for wanted, _ in FILTERS:
            page = await stack.enter_async_context(here.feed())
            await page.say("follow", filter=wanted)
            assert (await page.heard("page"))["entries"] == []
            pages.append(page)
        await here.write(
            draft(actor="ana"),
            draft("mesh/m", "send.topic", "carl"),
            draft("channels/app/room", "message.create", "ana"),
            draft("channels/app/hall", "message.create", "ben"),
            draft("channels/other/room", "message.append", "ben"),
            draft("mesh/n", "send.dm", "b"),
            draft("channels/app/end", "message.end", "an end"),
        )
        for page, (wanted, kept) in zip(pages, FILTERS, strict=True):
            position, seen = 0, set()
            while position < 7:
                told = await page.heard("entries")
                position = told["position"]
                seen |= {entry["id"] for entry in told["entries"]}
            listed = {entry["id"] for entry in (await here.get("log", **wanted))["entries"]}
            assert seen == kept, wanted
            assert listed == kept, wanted


async def test_a_flood_is_counted_not_sent(alone: Desk) -> None:
    """A flush lists a bounded number of entries and says how many more there were."""
    async with alone.feed() as page:
        await page.say("follow")
        await page.heard("page")
        await alone.write(*(draft() for _ in range(400)))
        listed: list[Json] = []
        more = 0
        while len(listed) + more < 400:
            message = await page.heard("entries")
            assert len(message["entries"]) <= MAX_PUSHED
            listed += message["entries"]
            more += message["more"]
        assert len(listed) + more == 400
        assert listed[-1]["id"] == 400
        assert more >= 400 - 4 * MAX_PUSHED


async def test_an_idle_page_gets_no_entries(alone: Desk) -> None:
    """Until it follows, and after it rests, a page is only told how much was written walone."""
    async with alone.feed() as page:
        await page.heard("hello")
        await alone.write(draft(), draft("mesh/m"))
        told = await page.heard("entries")
        assert (told["entries"], told["more"]) == ([], 0)
        assert told["written"] == {"sync": 1, "mesh": 1}
        await page.say("follow")
        await page.heard("page")
        await page.say("rest")
        await alone.write(draft())
        assert (await page.heard("entries"))["entries"] == []


async def test_a_watched_channel_comes_with_its_content(here: Desk) -> None:
    """Every version of the watched channel comes with its body, of no other channel any."""
    app = ("app-id", "app-key", "app-secret")
    async with ChannelPublisher(here.server.url, *app) as publisher, here.feed() as page:
        await page.say("watch", stream=STREAM)
        assert (await page.heard("watching"))["stream"] == STREAM
        await publisher.publish("other", "chat", "not this")
        async with publisher.stream("room", "answer") as answer:
            for word in ("High ", "water."):
                await answer.write(word)
        text = ""
        while not text.endswith("water."):
            for version in (await page.heard("watched"))["versions"]:
                assert version["stream"] == STREAM
                text += version["body"].get("data", "")
        assert text == "High water."
        found = await here.get("messages", stream=STREAM)
        assert [message["text"] for message in found["messages"]] == ["High water."]


async def test_too_much_of_a_watched_channel_is_read_anew(alone: Desk) -> None:
    """Beyond the limit a page is told to read the channel instead of being sent all of it."""
    async with alone.feed() as page:
        await page.say("watch", stream="channels/a/b")
        await page.heard("watching")
        await alone.write(*(draft("channels/a/b", "event") for _ in range(MAX_WATCHED + 1)))
        assert (await page.heard("watching"))["position"] == MAX_WATCHED + 1


async def test_figures_come_when_they_change(alone: Desk) -> None:
    """A sample follows a commit; a page that shows charts gets one every second."""
    async with alone.feed() as page:
        await page.say("show", view="overview")
        await page.heard("sample")
        await alone.write(draft(), draft())
        async with asyncio.timeout(60):
            while (await page.heard("sample"))["sample"]["head"] < 2:
                pass


async def test_a_view_is_told_when_it_is_out_of_date(alone: Desk) -> None:
    """The visible view is told of a change, once, and nothing else is."""
    async with alone.feed() as page:
        await page.say("show", view="mesh")
        await page.heard("hello")
        await alone.write(draft("mesh/m"))
        assert (await page.heard("changed"))["view"] == "mesh"


async def test_nonsense_ends_the_conversation(tmp_path: Path) -> None:
    """Whoever sends anything but a message of the page is sent away."""
    nonsense = ("", "[]", "{}", '{"type": "drop"}', '{"type": "follow", "since": "x"}', "x" * 100)
    async with desk(tmp_path) as here:
        for text in nonsense:
            async with here.feed() as page:
                await page.socket.send(text)
                assert await page.ended() == POLICY_VIOLATION, text


async def test_without_pages_the_tail_is_left_alone(tmp_path: Path) -> None:
    """The feed joins the tail with the first page and leaves it with the last."""
    async with desk(tmp_path) as here:
        tail = here.server.committer.tail

        def sinks() -> int:
            return sum(len(each) for each in tail._sinks.values())

        before = sinks()
        async with here.feed() as page:
            await page.heard("hello")
            assert sinks() == before + 3, "one for each surface"
        async with asyncio.timeout(60):
            while sinks() != before:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
