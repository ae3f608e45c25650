"""Sync is the same to its clients whatever connects its halves."""

from pathlib import Path

import pytest

from support.sync import insieme_peer
from support.sync.admin import admin
from support.sync.peer import TREE, connected, note, outcome, push
from tidelog.base.settings.limits import Limits
from tidelog.link.choice import VARIABLE


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
