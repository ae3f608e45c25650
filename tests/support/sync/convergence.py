"""Programs of drafts, outages and kills after which every client must have the same."""

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any, NamedTuple, Self

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import WebSocketException

from support.sync.peer import EVENT, MODEL, SECRET, token
from tidelog.client.backoff import Backoff
from tidelog.client.sync.client import DraftInvalid, SyncClient
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.tree import TreeState
from tidelog.testing.process import ServerProcess

NODES = [f"n{number}" for number in range(12)]
QUICK = Backoff(first=0.02, most=0.1)

Json = dict[str, Any]


def converging_server(directory: Path) -> ServerProcess:
    """A server with the model of the tests, and no limit that a program would meet."""
    (directory / "model.json").write_text(json.dumps(MODEL), encoding="utf-8")
    config = directory / "tidelog.toml"
    config.write_text(
        f'[sync]\njwt_secret = "{SECRET}"\nmodel_file = "{directory / "model.json"}"\n'
        "max_messages_per_second = 10000\n",
        encoding="utf-8",
    )
    return ServerProcess(data_dir=directory / "data", arguments=("--config", str(config)))


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
        make = random_note if self.profile == EVENT else random_action
        event = make(rng, self.name, self.drafts)
        with contextlib.suppress(DraftInvalid):
            await self.client.submit(partitions=names, event=event, id=f"{self.name}-{self.drafts}")


def random_note(rng: random.Random, author: str, number: int) -> Json:
    """An event of the event profile."""
    data = {"title": f"t{rng.randint(0, 5)}", "by": f"{author}-{number}"}
    return {"type": "event", "payload": {"schema": "any", "data": data}}


def random_action(rng: random.Random, author: str, number: int) -> Json:
    """An event of the tree profile; the state may not allow it."""
    node, other = rng.sample(NODES, 2)
    position = rng.choice(["first", "last", {"after": other}, {"before": other}])
    parent = rng.choice(["_root", "_root", other])
    action = rng.choice(["treePush"] * 4 + ["treeMove"] * 3 + ["treeUpdate", "treeDelete", "set"])
    payload: Json = {"target": "t"}
    match action:
        case "treePush":
            payload |= {"value": {"id": node}, "options": {"parent": parent}}
        case "treeMove":
            payload |= {"options": {"id": node, "parent": parent, "position": position}}
        case "treeUpdate":
            payload |= {"value": {"by": author}, "options": {"id": node}}
        case "treeDelete":
            payload |= {"options": {"id": node}}
        case _:
            payload = {"target": f"v.{node}", "value": {author: number}}
    return {"type": action, "payload": payload}


def model() -> Model:
    """The model of server and clients."""
    return Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])


class Folded(NamedTuple):
    """What the log makes of partitions."""

    trees: dict[str, TreeState]
    notes: dict[str, Json]
    ids: dict[str, int]
    """Position of every event by its id."""
    bodies: dict[int, Json]
    """What was stored of each event of the partitions, by its position."""


async def fold(server: ServerProcess, partitions: list[str]) -> Folded:
    """Read the log of a server and fold it."""
    store = await open_store(
        SCHEMA, str(server.data_dir / "tidelog.db"), log_id="", node="", read_only=True
    )
    folded = Folded(
        {name: TreeState(model()) for name in partitions},
        {name: {} for name in partitions},
        {},
        {},
    )
    try:
        position = 0
        while page := await store.stream_entries("sync", position):
            position = page[-1].stream_serial
            for entry in page:
                assert entry.body is not None
                body = json.loads(entry.body)
                folded.ids[entry.entity] = entry.committed_id
                for name in set(body["partitions"]) & set(partitions):
                    folded.bodies[entry.committed_id] = body
                    assert folded.trees[name].check(body["event"]) == []
                    folded.trees[name].apply(body["event"])
                    folded.notes[name] = collect(folded.notes[name], body["event"])
    finally:
        await store.close()
    for tree in folded.trees.values():
        TreeState.load(model(), tree.export())  # raises if an invariant is broken
    return folded


def check_view(actor: Actor, folded: Folded) -> None:
    """Compare every view of a client with the fold of the log."""
    assert actor.client is not None
    assert actor.client.pending() == []
    for name in actor.partitions:
        expected = folded.notes[name] if actor.profile == EVENT else folded.trees[name].export()
        assert actor.client.view(name) == expected, f"{actor.name} differs on {name}"
    for number in range(1, actor.drafts + 1):
        with contextlib.suppress(KeyError):
            row = actor.client.row(f"{actor.name}-{number}")
            if row.status == "committed":
                assert folded.ids[row.id] == row.committed_id
