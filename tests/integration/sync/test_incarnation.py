"""A log that was taken back to a backup and went on: clients end with the history that there is.

Real processes on both engines. Position 3 is backed up, the log goes on to 8, and is restored; then
others write seven more. Whoever had seen 4 to 8 must lose them, and get what is there now.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.store.backups import command
from support.sync.peer import EVENT, MODEL, SECRET, connected, envelope, note, token, write_model
from tidelog.client import SyncClient
from tidelog.client.backoff import Backoff
from tidelog.client.sync.changes import Change
from tidelog.sync.protocol.profiles import Model
from tidelog.testing.postgresql import create_database, drop_database
from tidelog.testing.process import ServerProcess

SHARED, LOST, NEW = 3, 5, 7
PAGE = 2
"""Events of a page: catching up takes several."""

WAIT_SECONDS = 60


@pytest.fixture
async def other_location(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[str]:
    """Where a backup is restored to: a store of the same engine that has nothing yet."""
    if engine == "sqlite":
        yield str(tmp_path / "restored" / "tidelog.db")
        return
    url = await create_database(request.getfixturevalue("postgresql_server"))
    yield url
    await drop_database(url)


class World:
    """A server that can be stopped and go on with another store at the same address."""

    def __init__(self, folder: Path, location: str) -> None:
        self._folder = folder
        config = folder / "tidelog.toml"
        config.write_text(
            f"[sync]\njwt_secret = {json.dumps(SECRET)}\nsync_limit_min = {PAGE}\n"
            f"sync_limit_max = {PAGE}\nmodel_file = {json.dumps(write_model(folder))}\n",
            encoding="utf-8",
        )
        self._config = str(config)
        self.server = self._process(location)

    def _process(self, location: str) -> ServerProcess:
        return ServerProcess(
            data_dir=self._folder / "data", store=location, arguments=("--config", self._config)
        )

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"ws://127.0.0.1:{self.server.port}/sync"

    async def goes_on_with(self, location: str) -> None:
        """Stop the server, and start one on another store in its place."""
        port = self.server.port
        await asyncio.to_thread(self.server.terminate)
        self.server = self._process(location)
        self.server.port = port
        await asyncio.to_thread(self.server.start)

    async def write(self, kind: str, count: int) -> None:
        """Commit events of somebody else."""
        async with connected(self.url, "writer") as writer:
            for number in range(1, count + 1):
                [result] = await writer.submit(note(f"{kind}{number}", "p", data=kind))
                assert result["status"] == "committed", result

    async def history(self) -> list[tuple[int, str]]:
        """The whole log as it is now: places and ids."""
        async with connected(self.url, "reader") as reader:
            events = await reader.whole("p")
        return [(event["committed_id"], event["id"]) for event in events]

    def client(self, name: str, *, online: bool = True, **settings: Any) -> SyncClient:
        """A client with the file of that name."""
        return SyncClient(
            self.url if online else None,
            client_id=name,
            **{"token": token(name), **settings},
            store=self._folder / f"{name}.db",
            model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"]),
            profile=EVENT,
            partitions=["p"],
            reduce=count_kinds,
            backoff=Backoff(first=0.02, most=0.2),
        )


def count_kinds(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """How many events there are of each kind."""
    kind = event["payload"]["data"]
    return {**state, kind: state.get(kind, 0) + 1}


def places(client: SyncClient) -> list[tuple[int, str]]:
    """What a client holds of the log: places and ids."""
    rows = client._core.store.rows()
    return [(row.committed_id, row.id) for row in rows if row.committed_id is not None]


async def draft(client: SyncClient, event_id: str) -> None:
    """Write something; whether the server hears of it is another matter."""
    event = note("", data="draft")["event"]
    await client.submit(partitions=["p"], event=event, id=event_id)


async def told(client: SyncClient, name: str, wait: Callable[[], Any]) -> list[Change]:
    """The changes of a name while something is waited for."""
    changes = client.changes()
    await wait()
    return [change for change in list(changes._waiting) if change.name == name]


@asynccontextmanager
async def restored(
    tmp_path: Path, location: str, other_location: str, *, holders: Callable[[World], Any]
) -> AsyncIterator[World]:
    """A world after the restore; `holders` is called when the log is at 8."""
    world = World(tmp_path, location)
    try:
        await asyncio.to_thread(world.server.start)
        await world.write("shared", SHARED)
        backup = str(tmp_path / "backup.db")
        await asyncio.to_thread(
            command, "backup", backup, "--store", location, "--data-dir", str(tmp_path / "data")
        )
        await world.write("lost", LOST)
        await holders(world)
        await asyncio.to_thread(
            command, "restore", backup, "--store", other_location, "--data-dir", str(tmp_path / "r")
        )
        await world.goes_on_with(other_location)
        yield world
    finally:
        if world.server.is_running:
            await asyncio.to_thread(world.server.kill)


async def test_clients_end_with_the_history_that_there_is(
    tmp_path: Path, store_location: str, other_location: str
) -> None:
    """At 8, at 8 with a snapshot and nothing else, in the middle of catching up, and not at all."""

    async def holders(world: World) -> None:
        for name in ("ada", "pruned"):
            async with world.client(name) as client:
                await client.sync()
                assert client.view("p") == {"shared": SHARED, "lost": LOST}
                if name == "pruned":
                    assert client.save_snapshot("p") == SHARED + LOST
                    assert client.prune() == SHARED + LOST
        async with world.client("late") as client:
            async for change in client.changes():
                if change.name == "sync_page" and change.data["through"] > SHARED:
                    break
        for name in ("ada", "pruned", "late", "new"):
            async with world.client(name, online=False) as client:
                await draft(client, f"draft of {name}")
        async with world.client("late", online=False) as client:
            assert SHARED < client._core.last_committed_id("p") < SHARED + LOST

    async with (
        asyncio.timeout(WAIT_SECONDS),
        restored(tmp_path, store_location, other_location, holders=holders) as world,
    ):
        await world.write("new", NEW)
        resets: dict[str, list[Change]] = {}
        for name in ("ada", "pruned", "late", "new"):
            async with world.client(name) as client:
                decided = partial(client.wait, f"draft of {name}")
                resets[name] = await told(client, "history_reset", decided)
        expected = await world.history()
        assert [event_id for _, event_id in expected[: SHARED + NEW]] == [
            *(f"shared{number}" for number in range(1, SHARED + 1)),
            *(f"new{number}" for number in range(1, NEW + 1)),
        ]
        assert sorted(event_id for _, event_id in expected[SHARED + NEW :]) == [
            f"draft of {name}" for name in ("ada", "late", "new", "pruned")
        ]
        for name in ("ada", "pruned", "late", "new"):
            async with world.client(name) as client:
                again = await told(client, "history_reset", client.sync)
                assert places(client) == expected
                assert client.view("p") == {"shared": SHARED, "new": NEW, "draft": 4}
                assert client.pending() == []
                assert again == []
        assert {name: len(changes) for name, changes in resets.items()} == {
            "ada": 1,
            "pruned": 1,
            "late": 1,
            "new": 0,
        }
        assert {change.data["began"] for [change] in filter(None, resets.values())} == {SHARED}
        assert resets["ada"][0].data["dropped"] == LOST


async def test_a_client_beyond_the_head_keeps_what_is_shared(
    tmp_path: Path, store_location: str, other_location: str
) -> None:
    """Nothing was written yet; what follows reaches the client while it is connected."""

    async def holders(world: World) -> None:
        async with world.client("ada") as client:
            await client.sync()

    async with (
        asyncio.timeout(WAIT_SECONDS),
        restored(tmp_path, store_location, other_location, holders=holders) as world,
        world.client("ada") as client,
    ):
        [reset] = await told(client, "history_reset", client.sync)
        assert reset.data["began"] == SHARED
        assert client.view("p") == {"shared": SHARED}
        await world.write("new", NEW)
        await draft(client, "mine")
        await client.wait("mine")
        await client.sync()
        assert places(client) == await world.history()
        assert client.view("p") == {"shared": SHARED, "new": NEW, "draft": 1}


async def test_a_client_that_stays_open_notices_when_it_comes_back(
    tmp_path: Path, store_location: str, other_location: str
) -> None:
    """The server went away and another history came back: the same path as a fresh start."""
    may_connect = asyncio.Event()
    may_connect.set()

    async def ticket() -> str:
        await may_connect.wait()
        return token("ada")

    async with asyncio.timeout(WAIT_SECONDS), AsyncExitStack() as stack:
        opened: list[SyncClient] = []

        async def holders(world: World) -> None:
            client = await stack.enter_async_context(world.client("ada", token=ticket))
            opened.append(client)
            await client.sync()
            assert client.view("p") == {"shared": SHARED, "lost": LOST}
            may_connect.clear()

        world = await stack.enter_async_context(
            restored(tmp_path, store_location, other_location, holders=holders)
        )
        [client] = opened
        await draft(client, "mine")
        await world.write("new", NEW)

        async def comes_back() -> None:
            may_connect.set()
            await client.wait("mine")

        [reset] = await told(client, "history_reset", comes_back)
        assert reset.data["began"] == SHARED
        await client.sync()
        assert places(client) == await world.history()
        assert client.view("p") == {"shared": SHARED, "new": NEW, "draft": 1}


async def test_another_log_is_another_history(
    tmp_path: Path, store_location: str, other_location: str
) -> None:
    """A file that meets a log it has nothing in common with keeps its drafts, and only them."""
    world = World(tmp_path, store_location)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.to_thread(world.server.start)
            await world.write("old", 3)
            async with world.client("ada") as client:
                await client.sync()
                assert client.view("p") == {"old": 3}
            async with world.client("ada", online=False) as client:
                await draft(client, "mine")
            await world.goes_on_with(other_location)
            await world.write("other", 5)
            async with world.client("ada") as client:
                [reset] = await told(client, "history_reset", lambda: client.wait("mine"))
                assert (reset.data["began"], reset.data["dropped"]) == (0, 3)
                await client.sync()
                assert places(client) == await world.history()
                assert client.view("p") == {"other": 5, "draft": 1}
    finally:
        if world.server.is_running:
            await asyncio.to_thread(world.server.kill)


async def test_the_wire_tells_which_history_it_is(
    tmp_path: Path, store_location: str, other_location: str
) -> None:
    """Over a socket in `connected`, over HTTP in every page; who names none is not disturbed."""
    named: list[str] = []

    async def handshake(world: World, **fields: Any) -> dict[str, Any]:
        async with connected(world.url, "raw", **fields) as peer:
            payload: dict[str, Any] = peer.received[0]["payload"]
            return payload

    async def page(world: World, since: int, **fields: Any) -> dict[str, Any]:
        payload = {"partitions": ["p"], "since_committed_id": since, **fields}
        async with httpx.AsyncClient(verify=False) as http:
            answer = await http.post(
                f"{world.server.url}/sync/v1/sync",
                content=envelope("sync", payload),
                headers={"authorization": f"Bearer {token('raw')}", "x-sync-profile": EVENT},
            )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["payload"]
        return found

    async def holders(world: World) -> None:
        shaken, fetched = await handshake(world), await page(world, 0)
        assert shaken["incarnation"] == fetched["incarnation"]
        named.append(shaken["incarnation"])
        assert await page(world, 0, incarnation=named[0]) == fetched | {"began": 8}

    async with (
        asyncio.timeout(WAIT_SECONDS),
        restored(tmp_path, store_location, other_location, holders=holders) as world,
    ):
        await world.write("new", NEW)
        [old] = named
        unnamed = await handshake(world)
        assert unnamed["incarnation"] != old
        assert unnamed["began"] == 0
        shaken = await handshake(world, incarnation=old)
        assert (shaken["incarnation"], shaken["began"]) == (unnamed["incarnation"], SHARED)
        same = await handshake(world, incarnation=unnamed["incarnation"])
        assert same["began"] == SHARED + NEW
        unknown = await handshake(world, incarnation="never heard of")
        assert unknown["began"] == 0
        # A page for a cursor of the lost history starts where both histories part.
        fetched = await page(world, 8, incarnation=old, sync_to_committed_id=8)
        assert (fetched["incarnation"], fetched["began"]) == (unnamed["incarnation"], SHARED)
        assert [event["id"] for event in fetched["events"]] == ["new1", "new2"]
        assert fetched["sync_to_committed_id"] == SHARED + NEW
        fetched = await page(world, 2, incarnation=old)
        assert [event["id"] for event in fetched["events"]] == ["shared3", "new1"]
        # Whoever names none gets what there is after its cursor, as ever: it cannot notice.
        fetched = await page(world, 8)
        assert [event["committed_id"] for event in fetched["events"]] == [9, 10]
