"""Eight clients, offline and online, through a bad network and a dying server, end up equal."""

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import WebSocketException

from support.sync.peer import EVENT, MODEL, SECRET, TREE, token
from tidelog.client.backoff import Backoff
from tidelog.client.sync.client import DraftInvalid, SyncClient
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.tree import TreeState
from tidelog.testing.process import ServerProcess

SEEDS = int(os.environ.get("TIDELOG_TEST_SOAK_SEEDS", "10"))
CLIENTS = 8
STEPS = 25
NODES = [f"n{number}" for number in range(12)]
QUICK = Backoff(first=0.02, most=0.1)

Json = dict[str, Any]


class BadNetwork:
    """Between clients and server: repeats and reorders broadcasts, and cuts connections."""

    def __init__(self, rng: random.Random, port: int) -> None:
        self._rng = rng
        self._port = port
        self._server: Any = None
        self.is_bad = True

    async def __aenter__(self) -> Self:
        self._server = await serve(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/sync"

    async def _accept(self, client: ServerConnection) -> None:
        with contextlib.suppress(OSError, WebSocketException, TimeoutError):
            async with connect(f"ws://127.0.0.1:{self._port}/sync") as server:
                onward = asyncio.create_task(self._onward(client, server))
                try:
                    await self._back(client, server)
                finally:
                    onward.cancel()
                    await asyncio.gather(onward, return_exceptions=True)

    async def _onward(self, client: ServerConnection, server: Any) -> None:
        try:
            async for message in client:
                await server.send(message)
        finally:
            await server.close()

    async def _back(self, client: ServerConnection, server: Any) -> None:
        held: str | bytes | None = None
        async for message in server:
            await client.send(message)
            if not self.is_bad or b"event_broadcast" not in message.encode():
                continue
            if held is not None:
                await client.send(held)  # late, and once more: after what came behind it
                held = None
            if self._rng.random() < 0.3:
                held = message
            if self._rng.random() < 0.03:
                await client.close()


def collect(state: Json, event: Json) -> Json:
    """The reducer of the event profile: the last data of each title."""
    if event["type"] != "event":
        return state
    data = event["payload"]["data"]
    return {**state, data["title"]: data["by"]}


class Actor:
    """One client id with its store; online when it has a client."""

    def __init__(self, name: str, profile: str, partitions: list[str], path: Path) -> None:
        self.name = name
        self.profile = profile
        self.partitions = partitions
        self.path = path
        self.drafts = 0
        self.client: SyncClient | None = None

    async def open(self, url: str | None) -> SyncClient:
        """Start the client on its store, with a server or without."""
        await self.close()
        self.client = await SyncClient(
            url,
            client_id=self.name,
            token=token(self.name),
            store=self.path,
            model=model(),
            partitions=self.partitions,
            profile=self.profile,
            reduce=collect,
            backoff=QUICK,
        ).__aenter__()
        return self.client

    async def close(self) -> None:
        """Stop the client; the store stays."""
        if self.client is not None:
            await self.client.__aexit__(None, None, None)
            self.client = None

    async def write(self, rng: random.Random) -> None:
        """A random draft, if the state at hand allows it."""
        assert self.client is not None
        names = rng.sample(self.partitions, rng.randint(1, len(self.partitions)))
        self.drafts += 1
        event = self._note(rng) if self.profile == EVENT else self._tree(rng)
        with contextlib.suppress(DraftInvalid):
            await self.client.submit(partitions=names, event=event, id=f"{self.name}-{self.drafts}")

    def _note(self, rng: random.Random) -> Json:
        data = {"title": f"t{rng.randint(0, 5)}", "by": f"{self.name}-{self.drafts}"}
        return {"type": "event", "payload": {"schema": "any", "data": data}}

    def _tree(self, rng: random.Random) -> Json:
        node, other = rng.sample(NODES, 2)
        position = rng.choice(["first", "last", {"after": other}, {"before": other}])
        parent = rng.choice(["_root", "_root", other])
        action = rng.choice(
            ["treePush"] * 4 + ["treeMove"] * 3 + ["treeUpdate", "treeDelete", "set"]
        )
        payload: Json = {"target": "t"}
        match action:
            case "treePush":
                payload |= {"value": {"id": node}, "options": {"parent": parent}}
            case "treeMove":
                payload |= {"options": {"id": node, "parent": parent, "position": position}}
            case "treeUpdate":
                payload |= {"value": {"by": self.name}, "options": {"id": node}}
            case "treeDelete":
                payload |= {"options": {"id": node}}
            case _:
                payload = {"target": f"v.{node}", "value": {self.name: self.drafts}}
        return {"type": action, "payload": payload}


def model() -> Model:
    """The model of server and clients."""
    return Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])


@pytest.mark.parametrize("seeds", [SEEDS])
async def test_all_views_converge(tmp_path: Path, seeds: int) -> None:
    """At rest every view equals the fold of the log; nothing acknowledged is missing from it."""
    (tmp_path / "model.json").write_text(json.dumps(MODEL), encoding="utf-8")
    config = tmp_path / "tidelog.toml"
    config.write_text(
        f'[sync]\njwt_secret = "{SECRET}"\nmodel_file = "{tmp_path / "model.json"}"\n'
        "max_messages_per_second = 10000\n",
        encoding="utf-8",
    )
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--config", str(config))) as server:
        server.start()
        for seed in range(seeds):
            await converge(seed, server, tmp_path)


async def converge(seed: int, server: ServerProcess, directory: Path) -> None:
    """One program of drafts, outages, kills and a bad network, then rest."""
    rng = random.Random(seed)
    partitions = [f"{seed}-{name}" for name in "pqr"]
    actors = [
        Actor(
            f"{seed}-{number}",
            TREE if number % 2 else EVENT,
            rng.sample(partitions, 2),
            directory / f"{seed}-{number}.db",
        )
        for number in range(CLIENTS)
    ]
    async with BadNetwork(rng, server.port) as network:
        for actor in actors:
            await actor.open(network.url if rng.random() < 0.7 else None)
        kill_at = rng.randrange(STEPS) if seed % 5 == 0 else None
        for step in range(STEPS):
            for actor in rng.sample(actors, 5):
                await actor.write(rng)
            if step == kill_at:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            if rng.random() < 0.3:
                actor = rng.choice(actors)
                await actor.open(network.url if rng.random() < 0.6 else None)
            await asyncio.sleep(0.005)
        network.is_bad = False
        for actor in actors:
            client = await actor.open(network.url)
            async with asyncio.timeout(30):
                await client.sync()
                for draft in client.pending():
                    await client.wait(draft.id)
        async with asyncio.timeout(30):
            for actor in actors:
                assert actor.client is not None
                await actor.client.sync()
        await check(actors, partitions, server)
        for actor in actors:
            await actor.close()


async def check(actors: list[Actor], partitions: list[str], server: ServerProcess) -> None:
    """Compare every view with the fold of the log."""
    store = await open_store(
        SCHEMA, str(server.data_dir / "tidelog.db"), log_id="", node="", read_only=True
    )
    trees = {name: TreeState(model()) for name in partitions}
    notes: dict[str, Json] = {name: {} for name in partitions}
    ids: dict[str, int] = {}
    try:
        position = 0
        while page := await store.stream_entries("sync", position):
            position = page[-1].stream_serial
            for entry in page:
                assert entry.body is not None
                body = json.loads(entry.body)
                ids[entry.entity] = entry.committed_id
                for name in set(body["partitions"]) & set(partitions):
                    assert trees[name].check(body["event"]) == []
                    trees[name].apply(body["event"])
                    notes[name] = collect(notes[name], body["event"])
    finally:
        await store.close()
    for tree in trees.values():
        TreeState.load(model(), tree.export())  # raises if an invariant is broken
    for actor in actors:
        assert actor.client is not None
        assert actor.client.pending() == []
        for name in actor.partitions:
            expected = notes[name] if actor.profile == EVENT else trees[name].export()
            assert actor.client.view(name) == expected, f"{actor.name} differs on {name}"
        for number in range(1, actor.drafts + 1):
            with contextlib.suppress(KeyError):
                row = actor.client.row(f"{actor.name}-{number}")
                if row.status == "committed":
                    assert ids[row.id] == row.committed_id
