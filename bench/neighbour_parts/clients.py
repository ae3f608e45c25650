"""The well-behaved client of each surface: one write after the other, and whether all arrived.

An operation is due at a fixed rate and timed from when it was due, not from when the one before it
let it start: a stall counts for everything that waited.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from channels import APP_ID, KEY, SECRET
from mesh_parts.brokers import TOPIC
from neighbour_parts.place import Place, sync_token
from sync_parts.logs import MODEL
from sync_parts.wire import SCHEMA
from tidelog.client import ChannelClient, ChannelPublisher, MeshClient, SyncClient
from tidelog.client.backoff import Backoff
from tidelog.client.channels.client import Channel
from tidelog.client.mesh.client import BEGINNING
from tidelog.sync.protocol.profiles import CANONICAL, Model

OPERATION_SECONDS = 60.0
"""One that takes longer has failed."""
CHANNEL = "well-behaved"
PARTITION = "well-behaved"
TEXT = "x" * 200


class Client(Protocol):
    """One surface, used as it is meant to be."""

    rate: float
    """Operations a second."""

    async def once(self, number: int) -> None:
        """One operation, until it is known to have happened."""

    async def lost(self) -> int:
        """Acknowledged operations that are missing, doubled or out of order."""


class Paced:
    """Operations of one client at its rate."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._number = 0
        self._failures: list[str] = []

    async def run(self, seconds: float) -> list[float]:
        """For so long; the seconds that each took."""
        taken = []
        began = time.perf_counter()
        for number in range(max(1, round(seconds * self.client.rate))):
            due = began + number / self.client.rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self._number += 1
            try:
                async with asyncio.timeout(OPERATION_SECONDS):
                    await self.client.once(self._number)
            except Exception as error:  # noqa: BLE001 - a failed operation is a figure here
                self._failures.append(f"{type(error).__name__}: {error}"[:200])
            taken.append(time.perf_counter() - due)
        return taken

    def failures(self) -> list[str]:
        """The operations that failed since this was last asked."""
        failures, self._failures = self._failures, []
        return failures


class Arrivals:
    """Numbers that a reader saw, in its order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._news = asyncio.Event()

    def add(self, number: int) -> None:
        """The next one."""
        self.numbers.append(number)
        self._news.set()

    async def wait(self, number: int) -> None:
        """Until this one has come."""
        while not self.numbers or self.numbers[-1] < number:
            self._news.clear()
            await self._news.wait()


def unlike(acknowledged: list[int], arrived: list[int]) -> int:
    """How many are missing, doubled or out of order; more than was acknowledged may have come."""
    missing = len(set(acknowledged) - set(arrived))
    doubled = len(arrived) - len(set(arrived))
    disordered = sum(a > b for a, b in itertools.pairwise(arrived))
    return missing + doubled + disordered


class Channels:
    """A publish over HTTP until a subscriber has it."""

    rate = 20.0

    def __init__(self, publisher: ChannelPublisher, channel: Channel) -> None:
        self._publisher = publisher
        self._acknowledged: list[int] = []
        self._arrivals = Arrivals()
        self._reading = asyncio.create_task(self._read(channel))

    async def _read(self, channel: Channel) -> None:
        async for message in channel:
            self._arrivals.add(int(str(message.data).partition(" ")[0]))

    async def once(self, number: int) -> None:
        """See `Client`."""
        await self._publisher.publish(CHANNEL, "number", f"{number} {TEXT}")
        self._acknowledged.append(number)
        await self._arrivals.wait(number)

    async def lost(self) -> int:
        """See `Client`."""
        return unlike(self._acknowledged, self._arrivals.numbers)


class Sync:
    """A submit until its result; another client reads everything in the end."""

    rate = 10.0

    def __init__(self, client: SyncClient, reader: Callable[[], Any]) -> None:
        self._client = client
        self._reader = reader
        self._acknowledged: list[int] = []

    async def once(self, number: int) -> None:
        """See `Client`."""
        data = {"number": number, "text": TEXT}
        event = {"type": "event", "payload": {"schema": SCHEMA, "data": data}}
        stored = await self._client.submit(partitions=[PARTITION], event=event)
        decided = await self._client.wait(stored.id)
        if decided.status != "committed":
            raise RuntimeError(f"refused: {decided}")
        self._acknowledged.append(number)

    async def lost(self) -> int:
        """See `Client`."""
        async with self._reader() as reader:
            await reader.sync()
            return unlike(self._acknowledged, reader.view(PARTITION)["numbers"])


class Mesh:
    """A send to a daemon until it is in another daemon's inbox."""

    rate = 10.0

    def __init__(self, sender: MeshClient, receiver: MeshClient) -> None:
        self._sender = sender
        self._acknowledged: list[int] = []
        self._arrivals = Arrivals()
        self._reading = asyncio.create_task(self._read(receiver))

    async def _read(self, receiver: MeshClient) -> None:
        async with aclosing(receiver.inbox(BEGINNING)) as inbox:
            async for message in inbox:
                self._arrivals.add(int(message.body.partition(" ")[0]))

    async def once(self, number: int) -> None:
        """See `Client`."""
        await self._sender.send(f"topic:{TOPIC}", f"{number} {TEXT}")
        self._acknowledged.append(number)
        await self._arrivals.wait(number)

    async def lost(self) -> int:
        """See `Client`."""
        return unlike(self._acknowledged, self._arrivals.numbers)


class Health:
    """`GET /healthz`, as a load balancer asks; anything but 200 is a failure."""

    rate = 20.0

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def once(self, number: int) -> None:
        """See `Client`; the server may have closed a connection that was idle."""
        del number
        for is_last in (False, True):
            try:
                status = await self._ask()
            except (OSError, EOFError):
                self._streams = None
                if is_last:
                    raise
            else:
                if status != b"200":
                    raise RuntimeError(f"/healthz said {status!r}")
                return

    async def _ask(self) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await reader.readexactly(size)
        return head.split(b" ")[1]

    async def lost(self) -> int:
        """See `Client`: nothing is written."""
        return 0


@asynccontextmanager
async def clients(place: Place, home: Path) -> AsyncIterator[dict[str, Client]]:
    """All of them, connected."""
    model = Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])
    url, socket_url = place.server.url, place.server.url.replace("http", "ws")

    def sync_client(name: str) -> SyncClient:
        return SyncClient(
            f"{socket_url}/sync",
            client_id=name,
            token=sync_token(name),
            store=home / f"{name}.db",
            model=model,
            profile=CANONICAL,
            partitions=[PARTITION],
            reduce=_collect,
            backoff=Backoff(first=0.05, most=1.0),
        )

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        publisher = await enter(ChannelPublisher(url, APP_ID, KEY, SECRET))
        subscriber = await enter(ChannelClient(socket_url, KEY))
        channel = await enter(subscriber.subscribe(CHANNEL))
        writer = await enter(sync_client("writer"))
        await writer.sync()
        alice, bob = MeshClient(place.alice.home), MeshClient(place.bob.home)
        found: dict[str, Client] = {
            "channels": Channels(publisher, channel),
            "sync": Sync(writer, lambda: sync_client("reader")),
            "mesh": Mesh(alice, bob),
            "healthz": Health(place.server.port),
        }
        try:
            yield found
        finally:
            for client in found.values():
                reading = getattr(client, "_reading", None)
                if reading is not None:
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reading


def _collect(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    return {"numbers": [*state.get("numbers", ()), event["payload"]["data"]["number"]]}
