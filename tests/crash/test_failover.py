"""PostgreSQL fails over to a streaming replica, under two servers and their clients."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from support.channels.peer import APP, V2_QUERY, Api, Peer, handshake
from support.channels.process import channels_process
from support.cli.command import tidelog
from support.mesh.broker_process import ADMIN_TOKEN, TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import SLUG
from support.store.replica import Copied, Replica, ask
from support.sync.peer import EVENT, MODEL, SECRET, connected, note, token, write_model
from support.web.balancer import Balancer
from tidelog.client import SyncClient
from tidelog.client.backoff import Backoff
from tidelog.client.sync.changes import Change
from tidelog.sync.protocol.profiles import Model
from tidelog.testing.postgresql import Postgresql, create_database
from tidelog.testing.process import ServerProcess
from tidelog.testing.scratch import memory_directory

CHANNEL = "room"
KEPT, SEEN, NEW = 3, 8, 7
SECONDS = 60.0


class Cluster:
    """A primary with a replica, and two servers on them."""

    def __init__(
        self,
        primary: Postgresql,
        replica: Replica,
        balancer: Balancer,
        servers: list[ServerProcess],
        apis: list[Api],
        store: str,
    ) -> None:
        self._primary = primary
        self.replica = replica
        self._balancer = balancer
        self.servers = servers
        self.apis = apis
        self.store = store

    async def fail_over(self) -> None:
        """The primary is gone without a word; the replica, as it is, takes its place."""
        await asyncio.to_thread(self._primary.stop)
        await self.replica.promote()
        self._balancer.upstream = self.replica.port

    async def publish(self, node: int, count: int, text: str) -> list[int]:
        """Publish through a node, trying again until each is acknowledged; their serials."""
        serials = []
        for number in range(count):
            async with asyncio.timeout(SECONDS):
                while True:
                    answer = await self._try_publish(node, f"{text} {number}")
                    if answer is not None:
                        serials.append(answer)
                        break
                    await asyncio.sleep(0.05)
        return serials

    async def _try_publish(self, node: int, data: str) -> int | None:
        try:
            response = await self.apis[node].events(
                CHANNEL, data=data, info="subscription_count", message_id=data
            )
        except httpx.TransportError:
            return None
        if response.status_code != 200:
            assert response.status_code == 503, response.text
            return None
        serial: int = response.json()["channels"][CHANNEL]["delivery_serial"]
        return serial

    async def health(self, node: int) -> dict[str, Any]:
        """What a node says of itself, also while it cannot."""
        try:
            found: dict[str, Any] = (await self.apis[node]._client.get("/healthz")).json()
        except httpx.TransportError:
            return {"ready": False}
        return found

    async def incarnation(self, node: int, after: str) -> str:
        """Wait until a node is ready under another incarnation than that; which it is."""
        async with asyncio.timeout(SECONDS):
            while True:
                health = await self.health(node)
                if health["ready"] and health["incarnation"] != after:
                    return str(health["incarnation"])
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def peer(self, node: int) -> AsyncIterator[Peer]:
        """A V2 socket of a node after its handshake."""
        url = f"ws://127.0.0.1:{self.servers[node].port}/app/{APP.key}?{V2_QUERY}"
        async with connect(url, compression=None, ping_interval=None, close_timeout=2) as socket:
            peer = Peer(socket, APP, 2)
            await handshake(peer)
            yield peer

    async def resume(self, node: int, frame: dict[str, Any]) -> list[dict[str, Any]]:
        """Everything that answers a resume after this frame, `resume_success` last."""
        position = {
            "serial": frame["serial"],
            "stream_id": frame["stream_id"],
            "last_message_id": frame["message_id"],
        }
        async with self.peer(node) as peer:
            await peer.resume(**{CHANNEL: position})
            frames = [await peer.receive()]
            while frames[-1]["event"] != "sockudo:resume_success":
                frames.append(await peer.receive())
            return frames


@pytest.fixture(scope="module")
def empty() -> Iterator[Postgresql]:
    """A server that has ended, with nothing in it."""
    with databases("empty") as home:
        made = Postgresql(home / "empty")
        made.stop()
        yield made


@contextmanager
def databases(*names: str) -> Iterator[Path]:
    """Where servers of PostgreSQL have their data."""
    with tempfile.TemporaryDirectory(
        prefix="tdl-", dir=memory_directory(), ignore_cleanup_errors=True
    ) as name:
        home = Path(name)
        home.chmod(0o755)
        for each in names:
            (home / each).mkdir()
        yield home


@pytest.fixture(params=["one address"])
async def cluster(
    empty: Postgresql, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    """Two servers on a primary that has a replica; nothing is written yet.

    They know one address, which follows the primary, or those of both.
    """
    async with AsyncExitStack() as stack:
        home = stack.enter_context(databases("primary", "replica"))
        primary = await asyncio.to_thread(Copied, empty, home / "primary")
        stack.callback(primary.stop)
        replica = await asyncio.to_thread(Replica, primary, home / "replica")
        stack.callback(replica.stop)
        database = (await create_database(primary.url)).rsplit("/", 1)[1]
        balancer = await stack.enter_async_context(Balancer(primary.port))
        places = f"127.0.0.1:{balancer.port}"
        if request.param == "all addresses":
            places = f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}"
        url = f"postgresql://tidelog@{places}/{database}?target_session_attrs=primary"
        await replica.catch_up()
        servers, apis = [], []
        surfaces = {
            "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN,
            "TIDELOG_SYNC_JWT_SECRET": SECRET,
            "TIDELOG_SYNC_MODEL_FILE": write_model(tmp_path),
        }
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            server = stack.enter_context(channels_process(tmp_path / name, url, surfaces))
            await asyncio.to_thread(server.start)
            client = httpx.AsyncClient(
                base_url=server.url, timeout=10, trust_env=False, verify=False
            )
            servers.append(server)
            apis.append(Api(server.url, await stack.enter_async_context(client)))
        yield Cluster(primary, replica, balancer, servers, apis, url)


def failure(frames: list[dict[str, Any]]) -> tuple[str, str]:
    """Code and reason of a resume of which nothing was sent."""
    [failed, _] = frames
    data = json.loads(failed["data"])
    return data["code"], data["reason"]


@pytest.mark.parametrize("writes", [True, False], ids=["one writes", "both are idle"])
async def test_a_replica_that_lags_is_another_history(cluster: Cluster, *, writes: bool) -> None:
    """Two servers agree on its name, close their connections, and are ready in the same process."""
    assert await cluster.publish(0, KEPT, "kept") == [1, 2, 3]
    await cluster.replica.catch_up()
    await cluster.replica.fall_behind()
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(cluster.peer(node)) for node in (0, 1)]
        kept, _ = [await peer.subscribe(CHANNEL) for peer in peers]
        assert await cluster.publish(0, SEEN - KEPT, "lost") == [4, 5, 6, 7, 8]
        seen, _ = [[await peer.receive() for _ in range(SEEN - KEPT)][-1] for peer in peers]
        assert seen["serial"] == SEEN
        before = (await cluster.health(1))["incarnation"]
        pids = [server.pid for server in cluster.servers]

        await cluster.fail_over()
        if writes:
            assert (await cluster.publish(0, 1, "new"))[0] == KEPT + 1, "as if nothing was lost"
        names = {await cluster.incarnation(node, before) for node in (0, 1)}
        assert len(names) == 1, "they agree"
        for peer in peers:
            assert await peer.closed() == 4200
    more = NEW - 1 if writes else NEW
    assert await cluster.publish(1, more, "more") == list(range(11 - more, 11))

    stats = await tidelog("log", "stats", "--store", cluster.store)
    assert stats["incarnation"]["id"] in names
    assert (stats["incarnation"]["began"], stats["incarnation"]["number"]) == (KEPT, 2)
    for node in (0, 1):
        frames = await cluster.resume(node, seen)
        assert failure(frames) == ("stream_reset", "history_replaced")
        *replayed, success = await cluster.resume(node, kept)
        assert json.loads(success["data"])["failed"] == []
        assert [frame["serial"] for frame in replayed] == list(range(4, 11))
        server = cluster.servers[node]
        assert server.is_running
        assert server.pid == pids[node]
        assert "Traceback" not in server.log_text()
        assert f"The log goes on as incarnation {stats['incarnation']['id']}" in server.log_text()
    assert (await tidelog("log", "verify", "--store", cluster.store))["sound"]
    for server in cluster.servers:
        assert await asyncio.to_thread(server.terminate) == 0


@pytest.mark.parametrize("cluster", ["one address", "all addresses"], indirect=True)
async def test_a_replica_that_has_everything_is_the_same_history(cluster: Cluster) -> None:
    """Nobody is closed or reset: clients do not notice."""
    async with cluster.peer(1) as peer:
        await peer.subscribe(CHANNEL)
        assert await cluster.publish(0, KEPT, "kept") == [1, 2, 3]
        before = (await cluster.health(0))["incarnation"]
        await cluster.replica.catch_up()
        await cluster.fail_over()
        assert (await cluster.publish(0, 2, "more"))[-1] == KEPT + 2
        assert [(await peer.receive())["serial"] for _ in range(KEPT + 2)] == [1, 2, 3, 4, 5]
        await peer.quiet()
    for node in (0, 1):
        assert (await cluster.health(node))["incarnation"] == before
    assert await ask(cluster.store, "SELECT count(*) FROM tidelog.incarnation") == 1


async def test_sync_clients_and_daemons_learn_what_was_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Both go on in their processes: what is gone is told, and what waited is written once."""
    async with AsyncExitStack() as stack:
        ana = await asyncio.to_thread(daemon_of, cluster, tmp_path, stack)
        url = f"ws://127.0.0.1:{cluster.servers[1].port}/sync"
        ada = await stack.enter_async_context(sync_client(url, tmp_path))
        changes = ada.changes()

        async def written(name: str) -> None:
            """An event of somebody else, and a message of the daemon, which the broker has."""
            async with connected(url, "writer") as writer:
                [result] = await writer.submit(note(f"{name}-event", "p"))
            assert result["status"] == "committed"
            await asyncio.to_thread(send, ana, f"{name}-send")
            await asyncio.to_thread(eventually, lambda: is_done(ana, f"{name}-send"))
            await ada.sync()

        await written("kept")
        await cluster.replica.catch_up()
        await cluster.replica.fall_behind()
        await written("lost")
        assert names(ada) == ["kept-event", "lost-event"]
        before = (await cluster.health(1))["incarnation"]

        await cluster.fail_over()
        await ada.submit(partitions=["p"], event=note("", data=1)["event"], id="draft")
        await asyncio.to_thread(send, ana, "waiting-send")
        assert len({await cluster.incarnation(node, before) for node in (0, 1)}) == 1
        async with asyncio.timeout(SECONDS):
            await ada.wait("draft")
            await asyncio.to_thread(eventually, lambda: is_done(ana, "waiting-send"), SECONDS)
        await written("new")
        assert names(ada) == ["kept-event", "draft", "new-event"]
        async with connected(url, "reader") as reader:
            assert [event["id"] for event in await reader.whole("p")] == names(ada)
        assert [change.data["dropped"] for change in told(changes, "history_reset")] == [1]
        lost = (await asyncio.to_thread(ana.ask, "GET", "/v1/outbox?possibly_lost=true"))[1]
        assert [item["client_message_id"] for item in lost["items"]] == ["lost-send"]
    assert (await tidelog("log", "verify", "--store", cluster.store))["sound"]
    assert (await tidelog("mesh", "check", "--store", cluster.store))["sound"]


def daemon_of(cluster: Cluster, folder: Path, stack: AsyncExitStack) -> DaemonProcess:
    """A running daemon whose broker is the first server."""
    mesh = RealMesh(folder / "mesh", cluster.store)
    mesh.server = cluster.servers[0]
    mesh.create(SLUG)
    key = mesh.member("ana", is_followed=False)
    daemon = stack.enter_context(DaemonProcess(mesh.server.url, key=key))
    daemon.start()
    return daemon


def send(daemon: DaemonProcess, name: str) -> None:
    """A message of that id."""
    assert daemon.send(f"topic:{TOPIC}", "text", name)[0] == 202


def is_done(daemon: DaemonProcess, name: str) -> bool:
    """Whether the broker has it."""
    return bool(daemon.outbox(name)["status"] == "done")


def sync_client(url: str, folder: Path) -> SyncClient:
    """A client of the second server."""
    return SyncClient(
        url,
        client_id="ada",
        token=token("ada"),
        store=folder / "ada.db",
        model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"]),
        profile=EVENT,
        partitions=["p"],
        reduce=lambda state, event: {**state, "last": event["payload"]["data"]},
        backoff=Backoff(first=0.02, most=0.2),
    )


def names(client: SyncClient) -> list[str]:
    """Ids of the events that a client holds, in their order."""
    return [row.id for row in client._core.store.rows() if row.committed_id is not None]


def told(changes: Any, name: str) -> list[Change]:
    """The changes of a name that wait to be read."""
    return [change for change in list(changes._waiting) if change.name == name]
