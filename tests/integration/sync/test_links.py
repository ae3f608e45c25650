"""Sync is the same to its clients whatever connects its halves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.sync import insieme_peer
from support.sync.admin import admin
from support.sync.peer import EVENT, TREE, connected, envelope, note, outcome, push, token
from tidelog.base.settings.limits import Limits
from tidelog.link import bounds
from tidelog.link.choice import VARIABLE
from tidelog.sync.messages import Events
from tidelog.sync.upkeep import owner


@pytest.fixture(params=["encoded", "apart"])
def link(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The links that only data can cross."""
    chosen: str = request.param
    monkeypatch.setenv(VARIABLE, chosen)
    return chosen


async def test_everything_that_sync_does_crosses_the_link(link: str, tmp_path: Path) -> None:
    """Both dialects, both profiles, pages, broadcasts, eviction and administration."""
    del link
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "a", TREE) as a,
        connected(administrator.node.ws_url, "b") as b,
        insieme_peer.connected(administrator.node.ws_url, "tab") as tab,
    ):
        node = administrator.node
        await a.subscribe("p/tasks")
        await b.subscribe("p/tasks", "q")
        results = await a.submit(
            push("1", "n", "p/tasks"), push("2", "n", "p/tasks"), push("3", "m", "q", parent="n")
        )
        assert outcome(results) == [
            "committed",
            "validation_failed event.payload.value.id",
            "validation_failed event.payload.options.parent",
        ]
        assert await a.submit(push("1", "n", "p/tasks")) == results[:1], "a replay"
        assert [event["id"] for event in await b.broadcasts(1)] == ["1"]
        assert (await tab.expect("event_broadcast"))["id"] == "1"
        assert outcome(await b.submit(note("4", "q"))) == ["committed"]
        assert (await tab.submit(insieme_peer.task("5")))[0]["status"] == "committed"
        assert [event["id"] for event in await a.broadcasts(1)] == ["5"]
        assert [event["id"] for event in await b.broadcasts(1)] == ["5"]
        assert [event["id"] for event in await b.whole("p/tasks", "q")] == ["1", "4", "5"]
        async with connected(node.ws_url, "b") as newer:
            assert await b.close_code() == 4409
            changed = await administrator.ok("PUT", "model-version", {"model_version": 9})
            assert changed == {"old_model_version": 3, "new_model_version": 9}
            assert (await newer.expect("version_changed"))["new_model_version"] == 9
            assert (await newer.sync("q"))["model_version"] == 9
        for partition in ("p/tasks", "q"):
            assert await administrator.snapshot(partition) > 0
        assert await administrator.retain(2**40) == 3
        assert await a.is_quiet()
        assert node.service._origins == {}


async def test_a_full_queue_does_not_change_the_order_over_any_link(
    link: str, tmp_path: Path
) -> None:
    """What was on its way behind a submit without room is tried again after it."""
    del link
    limits = Limits(commit_queue_requests=2, commit_batch_requests=1)
    names = [f"{number}" for number in range(12)]
    async with (
        admin(tmp_path, limits=limits) as administrator,
        connected(administrator.node.ws_url, "c") as peer,
    ):
        for name in names:
            await peer.send("submit_events", {"events": [note(name)]})
        told = 0
        committed: list[str] = []
        while told < len(names):
            message = await peer.receive()
            told += 1
            if message["type"] == "error":
                assert message["payload"]["code"] == "rate_limited"
            else:
                committed += [each["id"] for each in message["payload"]["results"]]
        assert committed == sorted(committed, key=int)
        assert committed
        assert [event["id"] for event in await peer.whole("p")] == committed


async def test_what_a_token_claims_crosses_whatever_it_is(link: str, tmp_path: Path) -> None:
    """Rules about states are given all claims, also those that only JSON can say."""
    del link
    odd = {"half": "\ud800", "large": 2**70}
    async with (
        admin(tmp_path, plugin="support.sync.application:Rules") as administrator,
        connected(administrator.node.ws_url, "a", TREE, claims=odd) as a,
        connected(administrator.node.ws_url, "b", TREE) as b,
    ):
        for peer, name in ((a, "1"), (b, "2")):
            await peer.send("submit_events", {"events": [push(name, name)]})
        for peer in (a, b):
            results = (await peer.wait_for("submit_events_result"))["results"]
            assert outcome(results) == ["committed"]


async def test_a_submit_that_cannot_be_sent_is_refused_alone(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its turn, and those before and after it are committed; over HTTP likewise."""
    del link
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 4000)
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "c") as peer,
        connected(administrator.node.ws_url, "other") as other,
    ):
        await other.subscribe("p")
        for item in (note("1"), note("2"), note("3", data="x" * 4000), note("4")):
            await peer.send("submit_events", {"events": [item]})
        told = [await peer.receive() for _ in range(4)]
        assert [each["type"] for each in told] == [
            *["submit_events_result"] * 2,
            "error",
            "submit_events_result",
        ]
        problem = told[2]["payload"]
        assert problem["code"] == "bad_request"
        assert "the message was not taken: it is too large" in problem["message"]
        assert [event["id"] for event in await other.broadcasts(3)] == ["1", "2", "4"]
        answer = await administrator.http.post(
            "/sync/v1/submit",
            content=envelope("submit_events", {"events": [note("5", data="x" * 4000)]}),
            headers={"authorization": f"Bearer {token('h')}", "x-sync-profile": "canonical"},
        )
        assert (answer.status_code, answer.json()["payload"]["code"]) == (400, "bad_request")


async def test_many_large_events_at_once_fit_through_the_link(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a front is told of them is divided; subscribers get them all, in order."""
    del link
    monkeypatch.setattr(owner, "MAX_EVENTS_BYTES", 2000)
    names = [f"{number}" for number in range(10)]
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "c") as peer,
        connected(administrator.node.ws_url, "other") as other,
    ):
        await other.subscribe("p")
        told: list[int] = []
        end = administrator.node.service.link
        hear = end.hear

        def count(message: Events) -> None:
            told.append(len(message.events))
            hear(message)

        end.hear = count
        results = await peer.submit(*[note(name, data="x" * 900) for name in names])
        assert outcome(results) == ["committed"] * 10
        assert [event["id"] for event in await other.broadcasts(10)] == names
        assert told == [1] * 10


async def test_a_front_that_ends_answers_what_it_has_accepted(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit after that is refused, as one that found no room; neither takes answers away."""
    del link
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "c") as peer,
    ):
        end = administrator.node.service.link
        send, held = end.send, list[tuple[int, Any]]()
        monkeypatch.setattr(end, "send", lambda *message: held.append(message))
        await peer.send("submit_events", {"events": [note("1")]})
        while not held:  # noqa: ASYNC110 - a list tells nobody
            await asyncio.sleep(0.005)
        ending = asyncio.create_task(end.finish())
        await peer.send("submit_events", {"events": [note("2")]})
        polled = await administrator.http.post(
            "/sync/v1/submit",
            content=envelope("submit_events", {"events": [note("3")]}),
            headers={"authorization": f"Bearer {token('d')}", "x-sync-profile": EVENT},
        )
        assert polled.status_code == 429
        send(*held[0])
        results = (await peer.expect("submit_events_result"))["results"]
        assert [(each["id"], each["status"]) for each in results] == [("1", "committed")]
        assert (await peer.expect("error"))["code"] == "rate_limited"
        await ending
