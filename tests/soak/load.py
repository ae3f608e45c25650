"""The load of a long run: real clients of every surface, at a pace that leaves the machine alone.

All of it is made of what a user would start: publishers, subscribers, sync clients, daemons. Each
writer numbers what it writes, and each reader says how many numbers it missed.
"""

import asyncio
import json
import random
import time
import traceback
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt

from tidelog.channels.protocol.signatures import sign
from tidelog.client import ChannelClient, ChannelPublisher, MeshClient, SyncClient
from tidelog.client.mesh.client import BEGINNING
from tidelog.sync.protocol.profiles import Model

SECRET = "what signs the tokens of a long run: thirty-two bytes"
APP_ID, APP_KEY, APP_SECRET = "soak", "soak-key", "a secret of the soak's application"
MODEL: dict[str, Any] = {
    "model_version": 1,
    "tree_targets": {
        "tasks": {"kind": "tree", "actions": ["treePush", "treeUpdate", "treeDelete"]}
    },
    "schemas": {},
}
ROOMS = 20
PARTITIONS = tuple(f"list-{number}" for number in range(5))
TREE_NODES = 50
"""Of a partition: what is beyond is deleted, so that only the log grows."""
KEPT_SERIALS = 100
"""Messages that may still be changed; the oldest is younger than the retention window."""
TEXT = "x" * 200
WORDS = 6
SETTLE_SECONDS = 30.0


class Load:
    """Everything that is done to one server."""

    def __init__(self, url: str, admin_token: str, home: Path, pace: float) -> None:
        """Prepare.

        Args:
            url: of the server.
            admin_token: of the server.
            home: where sync clients keep their stores.
            pace: 1 for the usual rates, 2 for twice as many of everything.
        """
        self._url = url
        self._admin = {"authorization": f"Bearer {admin_token}"}
        self._home = home
        self._pace = pace
        self._random = random.Random(11)
        self._rooms: Counter[str] = Counter()
        """Numbers that were published in each."""
        self._seen: Counter[str] = Counter()
        """The last number that the watcher saw in each."""
        self._serials: deque[tuple[str, str]] = deque(maxlen=KEPT_SERIALS)
        self._nodes: dict[str, deque[str]] = {name: deque() for name in PARTITIONS}
        self._sent: set[str] = set()
        self._received: Counter[str] = Counter()
        self._cursor = BEGINNING
        self.done: Counter[str] = Counter()
        """By what was done."""
        self.failed: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        """The last failure of each kind, for people."""
        self.lost: Counter[str] = Counter()
        self.health_ms: list[float] = []
        """Of `/healthz`, since somebody last took them."""

    async def run(self, seconds: float, alice: Path, bob: Path) -> None:
        """Work for so long, with the daemons of these directories, then let everything arrive."""
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            http = await enter(httpx.AsyncClient(base_url=self._url, timeout=30, verify=False))
            publisher = await enter(ChannelPublisher(self._url, APP_ID, APP_KEY, APP_SECRET))
            steady = await enter(self._channel_client())
            ada, bo = [await enter(self._sync_client(name)) for name in ("ada", "bo")]
            sender, receiver = MeshClient(alice), MeshClient(bob)
            rates: list[tuple[str, float, Callable[[int], Awaitable[None]]]] = [
                ("news", 4.0, lambda n: self._publish(publisher)),
                ("updates", 1.0, lambda n: self._update(publisher)),
                ("deletes", 0.5, lambda n: self._delete(publisher)),
                ("conversations", 0.5, lambda n: self._converse(publisher, n)),
                ("subscriptions", 1.0, lambda n: self._subscribe(steady, f"lobby-{n % ROOMS}")),
                ("reconnects", 0.5, lambda n: self._visit()),
                ("histories", 0.5, lambda n: self._history(http)),
                ("submits", 2.0, lambda n: self._submit((ada, bo)[n % 2], n)),
                ("sync_reconnects", 0.2, lambda n: self._reopen()),
                ("sync_retention", 1 / 60, lambda n: self._archive(http, (ada, bo))),
                ("sends", 2.0, lambda n: self._send(sender, n)),
                ("inbox_readers", 1 / 30, lambda n: self._read_inbox(receiver, 25.0)),
                ("health", 1.0, lambda n: self._health(http)),
            ]
            for number in range(ROOMS):
                room = f"room-{number}"
                channel = await enter(steady.subscribe(room, limit=200))
                watching = asyncio.create_task(self._watch(room, channel))
                stack.callback(watching.cancel)
            end = time.monotonic() + seconds
            async with asyncio.TaskGroup() as tasks:
                for name, rate, action in rates:
                    tasks.create_task(self._every(name, rate * self._pace, end, action))
            await self._settle(receiver, ada, bo)

    async def _every(
        self, name: str, rate: float, end: float, action: Callable[[int], Awaitable[None]]
    ) -> None:
        """One after the other at a rate; one that is late is not made up for."""
        await asyncio.sleep(self._random.random() / rate)
        while (began := time.monotonic()) < end:
            try:
                async with asyncio.timeout(60):
                    await action(self.done[name])
                self.done[name] += 1
            except Exception:  # noqa: BLE001 - counted and shown: the run goes on
                self.failed[name] += 1
                self.failures[name] = traceback.format_exc(limit=-3)
            await asyncio.sleep(max(0.0, min(end, began + 1 / rate) - time.monotonic()))

    # Channels.

    def _channel_client(self) -> ChannelClient:
        return ChannelClient(self._url.replace("http", "ws"), APP_KEY)

    async def _publish(self, publisher: ChannelPublisher) -> None:
        room = f"room-{self._random.randrange(ROOMS)}"
        self._rooms[room] += 1
        receipt = await publisher.publish(room, "news", f"{self._rooms[room]} {TEXT}")
        if receipt.message_serial is not None:
            self._serials.append((room, receipt.message_serial))

    async def _watch(self, room: str, channel: Any) -> None:
        async for message in channel:
            number = int(str(message.data).partition(" ")[0])
            if number > self._seen[room]:
                self.lost["channels"] += number - self._seen[room] - 1
                self._seen[room] = number

    async def _update(self, publisher: ChannelPublisher) -> None:
        if self._serials:
            room, serial = self._random.choice(self._serials)
            await publisher.update(room, serial, extras={"headers": {"edited": "yes"}})

    async def _delete(self, publisher: ChannelPublisher) -> None:
        if len(self._serials) > KEPT_SERIALS / 2:
            room, serial = self._serials.popleft()
            await publisher.delete(room, serial)

    async def _converse(self, publisher: ChannelPublisher, number: int) -> None:
        """A message that grows in a channel of its own, with a reader, and is never used again."""
        name = f"chat-{number}"
        async with (
            self._channel_client() as client,
            client.subscribe(name) as channel,
            publisher.stream(name, "answer") as stream,
        ):
            for _ in range(WORDS):
                await stream.write("word " + TEXT[:20])
                await asyncio.sleep(0.1)
            self.done["appends"] += WORDS
        del channel

    async def _subscribe(self, client: ChannelClient, name: str) -> None:
        async with client.subscribe(name):
            pass

    async def _visit(self) -> None:
        """A client that comes, reads a little of the past, and goes."""
        room = f"room-{self._random.randrange(ROOMS)}"
        async with self._channel_client() as client, client.subscribe(room, rewind=10):
            pass

    async def _history(self, http: httpx.AsyncClient) -> None:
        path = f"/apps/{APP_ID}/channels/room-{self._random.randrange(ROOMS)}/history"
        query = (
            f"auth_key={APP_KEY}&auth_timestamp={int(time.time())}&auth_version=1.0"
            "&direction=newest_first&limit=100"
        )
        signature = sign(APP_SECRET, f"GET\n{path}\n{query}")
        answer = await http.get(f"{path}?{query}&auth_signature={signature}")
        answer.raise_for_status()

    # Sync.

    @asynccontextmanager
    async def _sync_client(self, name: str) -> AsyncIterator[SyncClient]:
        async def token() -> str:
            claims = {
                "client_id": name,
                "exp": int(time.time()) + 600,
                "allowed_partitions": list(PARTITIONS),
            }
            return jwt.encode(claims, SECRET, "HS256")

        async with SyncClient(
            self._url.replace("http", "ws") + "/sync",
            client_id=name,
            token=token,
            store=self._home / f"{name}.db",
            model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"]),
            partitions=PARTITIONS,
        ) as client:
            yield client

    async def _submit(self, client: SyncClient, number: int) -> None:
        """Add a node; beyond the size of a tree take its oldest away, else change one."""
        partition = PARTITIONS[number % len(PARTITIONS)]
        nodes = self._nodes[partition]
        node = f"n{number}"
        await self._commit(
            client,
            partition,
            "treePush",
            {"value": {"id": node, "text": TEXT}, "options": {"position": "last"}},
        )
        nodes.append(node)
        if len(nodes) > TREE_NODES:
            # Only after the other client has seen it: who submits alternates.
            await client.sync()
            await self._commit(
                client, partition, "treeDelete", {"options": {"id": nodes.popleft()}}
            )

    async def _commit(
        self, client: SyncClient, partition: str, kind: str, payload: dict[str, Any]
    ) -> None:
        event = {"type": kind, "payload": {"target": "tasks", **payload}}
        stored = await client.submit(partitions=[partition], event=event)
        decided = await client.wait(stored.id)
        if decided.status != "committed":
            raise RuntimeError(f"sync refused {kind}: {decided}")

    async def _reopen(self) -> None:
        """A device that is switched on, looks, and is switched off."""
        async with self._sync_client("cy") as client:
            await client.sync()

    async def _archive(self, http: httpx.AsyncClient, clients: tuple[SyncClient, ...]) -> None:
        """Retention of sync: snapshots, and the log's copy of what they contain goes."""
        for partition in PARTITIONS:
            body = {"partition": partition}
            answer = await http.put("/sync/admin/snapshot", json=body, headers=self._admin)
            answer.raise_for_status()
        answer = await http.get("/sync/admin/connections", headers=self._admin)
        through = answer.json()["last_committed_id"]
        answer = await http.post(
            "/sync/admin/retention", json={"through": through}, headers=self._admin
        )
        self.done["sync_archived"] += answer.raise_for_status().json()["archived"]
        for client in clients:
            for partition in PARTITIONS:
                client.save_snapshot(partition)
            self.done["sync_pruned"] += client.prune()

    # Mesh.

    async def _send(self, sender: MeshClient, number: int) -> None:
        to = ("topic:soak", "dm:bob")[number % 2]
        key = f"send-{number}"
        await sender.send(to, TEXT, idempotency_key=key)
        self._sent.add(key)

    async def _read_inbox(self, receiver: MeshClient, seconds: float) -> None:
        """Read on where the last reader stopped."""
        try:
            async with asyncio.timeout(seconds), aclosing(receiver.inbox(self._cursor)) as inbox:
                async for message in inbox:
                    self._cursor = message.cursor
                    self._received[message.client_message_id] += 1
        except TimeoutError:
            pass

    # The server itself.

    async def _health(self, http: httpx.AsyncClient) -> None:
        began = time.perf_counter()
        (await http.get("/healthz")).raise_for_status()
        self.health_ms.append((time.perf_counter() - began) * 1000)

    async def _settle(self, receiver: MeshClient, ada: SyncClient, bo: SyncClient) -> None:
        """Whatever was acknowledged must be there soon, once."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and (
            self._seen != self._rooms or self._sent - set(self._received)
        ):
            await self._read_inbox(receiver, 2.0)
        self.lost["channels"] += sum((self._rooms - self._seen).values())
        self.lost["mesh"] = len(self._sent - set(self._received))
        self.lost["mesh_doubled"] = sum(count - 1 for count in self._received.values())
        await ada.sync()
        await bo.sync()
        for partition, nodes in self._nodes.items():
            views = [json.dumps(client.view(partition), sort_keys=True) for client in (ada, bo)]
            shown = {node["id"] for node in ada.view(partition)["tasks"]["tree"]}
            self.lost["sync"] += len(set(nodes) ^ shown) + (views[0] != views[1])
