"""npm's insieme, unmodified, in Chromium with its own transport and IndexedDB store."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext

from support.dashboard.browser import WAIT_MS
from support.sync.convergence import (
    Actor,
    BadNetwork,
    Folded,
    check_view,
    collect,
    converging_server,
    fold,
    model,
    random_action,
    random_note,
)
from support.sync.insieme_page import InsiemePage, served
from support.sync.peer import EVENT, TREE, token
from tidelog.client.sync.client import SyncClient
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEEDS = int(os.environ.get("TIDELOG_TEST_SOAK_SEEDS", "1"))
CLIENTS = 6
STEPS = 20
NOWHERE = "ws://127.0.0.1:9/sync"
"""Nobody listens there: whoever connects to it is offline."""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is."""
    with served(tmp_path_factory.mktemp("page")) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """Databases of its own."""
    made = await browser.new_context()
    made.set_default_timeout(WAIT_MS)
    yield made
    await made.close()


async def until(page: InsiemePage, name: str, holds: Callable[[Json], bool]) -> Json:
    """What a client has, once it is as expected."""
    looked: Json = {}
    try:
        async with asyncio.timeout(WAIT_MS / 1000):
            while not holds(looked := await page.look(name)):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{name} has {looked}") from None
    return looked


def titles(rows: list[Json]) -> list[str]:
    """The titles of drafts or of committed events."""
    return [row["payload"]["title"] for row in rows]


def note(title: str, kind: str = "any") -> Json:
    """What the application submits."""
    return {
        "partition": "tasks",
        "type": kind,
        "schemaVersion": 1,
        "payload": {"title": title, "by": title},
    }


async def test_an_application_moves_to_tidelog(
    context: BrowserContext, url: str, tmp_path: Path
) -> None:
    """Drafts outlive their page; rejected ones are rolled back; both kinds of client see all.

    And a server that is killed comes back to clients that have lost nothing.
    """
    with converging_server(tmp_path) as server:
        await asyncio.to_thread(server.start)
        sync_url = f"ws://127.0.0.1:{server.port}/sync"
        await asyncio.to_thread(server.kill)
        who = {"fixed": True, "url": sync_url, "token": token("tab"), "clientId": "tab"}
        page = await InsiemePage.open(context, url)
        await page.start("tab", **who)
        # One at a time, as a user writes: within a batch of the package only ids tell the order.
        for title in ("first", "second"):
            await page.call("submit", "tab", [note(title)])
        await page.call("submit", "tab", [note("wrong", "unknown")])
        await page.call("submit", "tab", [note("third")])
        looked = await page.look("tab")
        assert titles(looked["drafts"]) == ["first", "second", "wrong", "third"]
        assert (looked["committed"], looked["status"]["connected"]) == ([], False)
        await page.page.close()

        await asyncio.to_thread(server.start)
        page = await InsiemePage.open(context, url)
        await page.start("tab", **who)
        looked = await until(page, "tab", lambda each: each["drafts"] == [])
        assert titles(looked["committed"]) == ["first", "second", "third"]

        async with SyncClient(
            sync_url,
            client_id="ours",
            token=token("ours"),
            store=tmp_path / "ours.db",
            model=model(),
            partitions=["harbour/tasks"],
            profile=EVENT,
            reduce=collect,
        ) as ours:
            await ours.sync()
            assert list(ours.view("harbour/tasks")) == ["first", "second", "third"]
            event = {"type": "event", "payload": {"schema": "any", "data": note("ours")["payload"]}}
            draft = await ours.submit(partitions=["harbour/tasks"], event=event)
            await ours.wait(draft.id)
            looked = await until(page, "tab", lambda each: "ours" in titles(each["committed"]))
            assert looked["committed"][-1]["partition"] == "tasks"

            await asyncio.to_thread(server.kill)
            await until(page, "tab", lambda each: not each["status"]["connected"])
            await page.call("submit", "tab", [note("meanwhile")])
            await asyncio.to_thread(server.start)
            looked = await until(page, "tab", lambda each: each["drafts"] == [])
            everything = ["first", "second", "third", "ours", "meanwhile"]
            assert titles(looked["committed"]) == everything
            async with asyncio.timeout(WAIT_MS / 1000):
                while "meanwhile" not in ours.view("harbour/tasks"):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
            await ours.sync()
            assert list(ours.view("harbour/tasks")) == everything


class Tab:
    """One client of the package, with its database; online when it was given the server's URL."""

    def __init__(self, page: InsiemePage, name: str, project: str) -> None:
        self.page = page
        self.name = name
        self.project = project
        self.drafts = 0
        self.is_open = False

    async def open(self, url: str | None) -> None:
        """Start the client on its database."""
        if self.is_open:
            await self.page.call("close", self.name)
        self.is_open = True
        await self.page.start(
            self.name,
            url=url or NOWHERE,
            token=token(self.name),
            clientId=self.name,
            projectId=self.project,
        )

    async def write(self, rng: random.Random) -> None:
        """A random draft of either profile, which the server may reject."""
        self.drafts += 1
        make = random_note if rng.random() < 0.5 else random_action
        event = make(rng, self.name, self.drafts)
        kind, payload = event["type"], event["payload"]
        if kind == "event":
            kind, payload = payload["schema"], payload["data"]
        item = {
            "id": f"{self.name}-{self.drafts}",
            "partition": rng.choice("pqr"),
            "type": kind,
            "schemaVersion": rng.randint(1, 3),
            "payload": payload,
        }
        await self.page.call("submit", self.name, [item])


@pytest.mark.parametrize("seeds", [SEEDS])
async def test_clients_of_both_kinds_converge(
    context: BrowserContext, url: str, tmp_path: Path, seeds: int
) -> None:
    """Half of them are the package, on IndexedDB; through outages, a bad network and a kill."""
    page = await InsiemePage.open(context, url)
    with converging_server(tmp_path) as server:
        await asyncio.to_thread(server.start)
        for seed in range(seeds):
            await converge(seed, server, page, tmp_path)


async def converge(seed: int, server: ServerProcess, page: InsiemePage, directory: Path) -> None:
    """One program, then rest."""
    rng = random.Random(seed)
    project = f"s{seed}"
    partitions = [f"{project}/{name}" for name in "pqr"]
    tabs = [Tab(page, f"{seed}-tab{number}", project) for number in range(CLIENTS // 2)]
    ours = [
        Actor(
            f"{seed}-{number}",
            TREE if number % 2 else EVENT,
            partitions,
            directory / f"{seed}-{number}.db",
        )
        for number in range(CLIENTS // 2)
    ]
    actors: list[Tab | Actor] = [*tabs, *ours]
    async with BadNetwork(rng, server.port) as network:
        for actor in actors:
            await actor.open(network.url if rng.random() < 0.7 else None)
        kill_at = rng.randrange(STEPS)
        for step in range(STEPS):
            for actor in rng.sample(actors, 4):
                await actor.write(rng)
            if step == kill_at:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            if rng.random() < 0.3:
                actor = rng.choice(actors)
                await actor.open(network.url if rng.random() < 0.6 else None)
        network.is_bad = False
        for actor in actors:
            await actor.open(network.url)
        for tab in tabs:
            await until(page, tab.name, lambda each: each["drafts"] == [])
        for each in ours:
            assert each.client is not None
            async with asyncio.timeout(WAIT_MS / 1000):
                await each.client.sync()
                for draft in each.client.pending():
                    await each.client.wait(draft.id)
        for each in ours:
            assert each.client is not None
            await each.client.sync()
        folded = await fold(server, partitions)
        for each in ours:
            check_view(each, folded)
        for tab in tabs:
            await check_tab(tab, folded)
        for actor in ours:
            await actor.close()
        for tab in tabs:
            await page.call("close", tab.name)


async def check_tab(tab: Tab, folded: Folded) -> None:
    """It has every event of the project, once and at its position, and no draft."""
    last = max(folded.bodies)
    looked = await until(
        tab.page,
        tab.name,
        lambda each: bool(each["committed"]) and len(each["committed"]) >= len(folded.bodies),
    )
    assert looked["drafts"] == []
    errors = {each["payload"]["code"] for each in looked["happened"] if each["type"] == "error"}
    assert errors <= {"transport_connect_failed", "transport_disconnected"}, errors
    assert looked["committed"][-1]["committedId"] == last
    for row, (committed_id, body) in zip(
        looked["committed"], sorted(folded.bodies.items()), strict=True
    ):
        event = body["event"]
        kind, payload = event["type"], event["payload"]
        if kind == "event":
            kind, payload = payload["schema"], payload["data"]
        assert (row["committedId"], row["id"]) == (committed_id, body["id"])
        assert (row["type"], row["payload"]) == (kind, payload)
        assert f"{tab.project}/{row['partition']}" == body["partitions"][0]
        assert row["schemaVersion"] == event.get("meta", {}).get("schemaVersion", 1)
