"""The parts of a daemon that need no broker, running behind a real socket.

As a program (`python tests/support/mesh/local_daemon.py DATA_DIR`) it can be killed.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from msgspec import structs

from support.daemon.no_uplink import NoUplink
from tidelog.base.clock import Clock
from tidelog.daemon.clock import WallClock
from tidelog.daemon.inbox.inbox_db import Inbox
from tidelog.daemon.ipc.api import Api
from tidelog.daemon.ipc.events import Events
from tidelog.daemon.ipc.server import IpcServer
from tidelog.daemon.ipc.token_file import TokenFile
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.outbox.outbox_db import Claim, Outbox, Settlement
from tidelog.daemon.outbox.pressure import Pressure
from tidelog.daemon.settings import DaemonSettings
from tidelog.daemon.uplink.interface import Reply, Uplink
from tidelog.mesh.protocol.wire import Deliver

if TYPE_CHECKING:
    from tidelog.base.errors import StoreError

SETTINGS = DaemonSettings(mesh="ops", broker="ws://broker.invalid")
BOB = "b0" * 32


class FakeUplink(NoUplink):
    """A broker that knows Bob and every topic."""

    connected = True
    broker_version: str | None = "9"
    member_name: str | None = "ana"

    async def resolve(self, name: str) -> str | None:
        """Only Bob has a name."""
        return BOB if name == "bob" else None

    async def peers(self) -> dict[str, str]:
        """Bob."""
        return {BOB: "bob"}

    async def subscribe(self, topic: str) -> Reply:
        """Whatever it is."""
        return Reply(200, {"topic": topic})

    async def unsubscribe(self, topic: str) -> Reply:
        """There is no such topic."""
        return Reply(404, {"error": "topic_not_found", "topic": topic})

    async def topics(self) -> Reply:
        """One topic."""
        return Reply(200, {"topics": [{"name": "alerts", "subscribed": True}]})


class LocalDaemon:
    """Outbox, inbox, events and IPC on a directory."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: DaemonSettings = SETTINGS,
        uplink: Uplink | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = clock or WallClock()
        self.free_bytes = 10**12
        """What the file system claims to have left."""
        self.fatal: list[StoreError] = []
        pressure = Pressure(
            settings.outbox,
            settings.disk,
            folder,
            lambda: time.monotonic_ns() // 1_000_000 * 2000,  # looks at the disk every time
            lambda _: self.free_bytes,
        )
        self.outbox = Outbox(folder / "outbox.db", pressure, self.clock)
        self.inbox = Inbox(
            folder / "inbox.db", self.clock, is_searchable=settings.inbox.full_text_search
        )
        self.events = Events(self.inbox)
        self.metrics = DaemonMetrics()
        self.metrics.outbox_depth = self.outbox.counts
        self.metrics.disk_shares = self.outbox.shares
        self.token = TokenFile(folder / "token", lambda: time.monotonic() * 1000)
        self.api = Api(
            settings=settings,
            outbox=self.outbox,
            inbox=self.inbox,
            events=self.events,
            uplink=uplink or FakeUplink(),
            metrics=self.metrics,
            member_pubkey="aa" * 32,
            on_fatal=self.fatal.append,
        )
        self.server = IpcServer(
            self.api.respond, settings.ipc, self.metrics, self.token, self.api.paths
        )
        self.socket = folder / "daemon.sock"
        self.port = 0

    async def start(self) -> None:
        """Listen on both transports."""
        await self.server.start_unix(self.socket)
        self.port = await self.server.start_tcp(0)

    async def stop(self) -> None:
        """Close everything."""
        await self.server.close()
        self.outbox.close()
        self.inbox.close()

    def unix(self, **options: Any) -> httpx.AsyncClient:
        """A client of the Unix socket."""
        transport = httpx.AsyncHTTPTransport(
            uds=str(self.socket), limits=httpx.Limits(max_connections=200), verify=False
        )
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)

    def tcp(self, token: str | None = None, **options: Any) -> httpx.AsyncClient:
        """A client of the TCP port, with the right token unless another is given."""
        right = (self.folder / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {right if token is None else token}"}
        return httpx.AsyncClient(
            verify=False, base_url=f"http://127.0.0.1:{self.port}", headers=headers, **options
        )

    def row_count(self) -> int:
        """Rows of the outbox."""
        return sum(self.outbox.counts().values())

    def put(self, status: str, client_id: str) -> None:
        """Bring the `pending` row of an id, the only one there is, into a status."""
        if status in ("inflight", "done", "dead"):
            [claim] = self.outbox.claim()
            assert claim.client_message_id == client_id
            if status != "inflight":
                self.settle(claim, status)
        elif status == "aborted":
            self.outbox.drop(self.outbox.inspect(client_id)[0].id)

    def settle(self, claim: Claim, status: Any) -> None:
        """End an attempt."""
        [is_done] = self.outbox.settle(
            [
                Settlement(
                    claim=claim,
                    status=status,
                    broker_message_id="01BROKER" if status == "done" else None,
                    history_id=41 if status == "done" else None,
                    error=None if status == "done" else "403 not_subscribed",
                )
            ]
        )
        assert is_done


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[LocalDaemon]:
    """A daemon that listens."""
    daemon = LocalDaemon(folder, **options)
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def with_ipc(**changes: Any) -> DaemonSettings:
    """Settings with other limits of the IPC."""
    return structs.replace(SETTINGS, ipc=structs.replace(SETTINGS.ipc, **changes))


def delivery(number: int, **changes: Any) -> Deliver:
    """A message that a broker delivers."""
    fields: dict[str, Any] = {
        "broker_message_id": f"01BROKER{number:06}",
        "client_message_id": f"c-{number}",
        "history_id": number,
        "mesh": "ops",
        "topic": "alerts",
        "sender_pubkey": BOB,
        "sender_name": "bob",
        "priority": "next",
        "body": f"body {number}",
        "created_at": "2026-01-01T00:00:00.000Z",
        "claim_id": f"k-{number}",
    }
    return Deliver(**fields | changes)


async def _main(folder: Path) -> None:
    daemon = LocalDaemon(folder)
    daemon.outbox.recover_inflight()
    await daemon.start()
    (folder / "ready").touch()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
