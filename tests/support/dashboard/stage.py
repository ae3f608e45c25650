"""A live server process with traffic on all three surfaces: what the browser tests look at."""

import asyncio
import itertools
import json
import secrets
import shutil
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from support.mesh.daemon_process import DaemonProcess, eventually
from support.pipeline.search_shard import publish
from tidelog.client import ChannelClient, ChannelPublisher, SyncClient
from tidelog.config.settings import DEVELOPMENT_ADMIN_TOKEN
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.pipeline.search.index import Shard, index_root
from tidelog.pipeline.search.shard import ShardWriter
from tidelog.pipeline.tables import BY_NAME
from tidelog.sync.protocol.profiles import Model
from tidelog.testing.process import ServerProcess

SLUG = "harbour"
TOPIC = "tides"
CHANNEL = "assistant-7"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
"""Would change the page's title wherever it was taken for markup."""

SYNC_SECRET = "a secret of more than thirty-two bytes"
_MODEL: dict[str, Any] = {
    "model_version": 1,
    "tree_targets": {"list": {"kind": "tree", "actions": ["treePush", "treeMove", "treeUpdate"]}},
    "schemas": {},
}
ANSWER = (
    "The tide turns because the Moon pulls on the near side of the sea a little more than on the "
    "far side, and the Earth turns under both bulges. That makes two high waters a day."
)


class Stage:
    """The server, a publisher, sync clients, daemons and a lake; `staged` makes one."""

    def __init__(self, directory: Path) -> None:
        # A Unix socket's path may have 107 bytes; pytest's directories are longer.
        self.home = Path(tempfile.mkdtemp(prefix="tdl-"))
        model = directory / "model.json"
        model.write_text(json.dumps(_MODEL), encoding="utf-8")
        self.server = ServerProcess(
            data_dir=directory / "data",
            arguments=("--dev",),
            environment={
                "TIDELOG_TEST_PROBE": "0",
                "XDG_STATE_HOME": str(self.home),
                "TIDELOG_SYNC_JWT_SECRET": SYNC_SECRET,
                "TIDELOG_SYNC_MODEL_FILE": str(model),
            },
        )
        self._directory = directory
        self._pushed = 0
        self.publisher: ChannelPublisher
        self.sync_clients: dict[str, SyncClient] = {}
        self.daemons: dict[str, DaemonProcess] = {}

    @property
    def url(self) -> str:
        """Of the dashboard."""
        return f"{self.server.url}/dashboard"

    # Channels.

    async def say(self, channel: str, event: str, data: Any) -> None:
        """Publish."""
        await self.publisher.publish(channel, event, data)

    async def stream_answer(self, text: str = ANSWER, pause_s: float = 0.0) -> None:
        """An assistant's answer, word by word."""
        async with self.publisher.stream(CHANNEL, "answer") as answer:
            for word in text.split(" "):
                await answer.write(f"{word} ")
                await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Bursts of messages while the block lasts, for charts that have something to show."""

        async def chat() -> None:
            for number in itertools.count():
                for _ in range(1 + 5 * (number % 4 == 0)):
                    await self.say("lobby", "chat.message", {"text": f"wave {number}"})
                await self.push_node("ana")
                await asyncio.sleep(0.3)

        chatting = asyncio.create_task(chat())
        try:
            yield
        finally:
            chatting.cancel()
            await asyncio.gather(chatting, return_exceptions=True)

    # Sync.

    async def open_sync(self, stack: AsyncExitStack, client_id: str) -> None:
        """Connect a client to its list."""
        claims = {
            "client_id": client_id,
            "exp": int(time.time()) + 3600,
            "allowed_partition_prefixes": [""],
        }
        client = SyncClient(
            self.server.url.replace("http", "ws") + "/sync",
            client_id=client_id,
            store=self._directory / f"client-{len(self.sync_clients)}.db",
            model=Model.parse(_MODEL["tree_targets"], {}, 1),
            token=jwt.encode(claims, SYNC_SECRET, "HS256"),
            partitions=["list-1"],
        )
        self.sync_clients[client_id] = await stack.enter_async_context(client)
        async with asyncio.timeout(60):
            await client.sync()

    async def push_node(self, client_id: str) -> None:
        """Append to the list."""
        self._pushed += 1
        client = self.sync_clients[client_id]
        payload = {"target": "list", "value": {"id": f"n{self._pushed}"}, "options": {}}
        row = await client.submit(
            partitions=["list-1"], event={"type": "treePush", "payload": payload}
        )
        async with asyncio.timeout(60):
            await client.wait(row.id)

    # Mesh.

    def call(self, method: str, path: str, body: object, token: str) -> Any:
        """One HTTP request to the broker."""
        request = urllib.request.Request(
            self.server.url + path,
            data=json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def join(self, name: str) -> MemberKey:
        """A new member, subscribed to the topic."""
        key = new_key()
        path = f"/mesh/{SLUG}"
        invite = self.call("POST", f"{path}/invites", {}, DEVELOPMENT_ADMIN_TOKEN)["invite"]
        request = {
            "invite": invite,
            "member_pubkey": key.public_hex,
            "name": name,
            "signature": key.sign_join(SLUG, invite, name),
        }
        self.call("POST", f"{path}/members", request, "")
        self.subscribe(key, TOPIC)
        return key

    def subscribe(self, key: MemberKey, topic: str) -> None:
        """Make sure that there is a topic and that a member receives it."""
        path = f"/mesh/{SLUG}/topics"
        self.call("POST", path, {"topic": topic}, self._token(key))
        self.call("PUT", f"{path}/{topic}/subscription", {}, self._token(key))

    def _token(self, key: MemberKey) -> str:
        return key.token(SLUG, unix_now=time.time(), jti=secrets.token_hex(8))

    def launch_daemon(self, name: str) -> DaemonProcess:
        """A daemon where the server's user looks for daemons."""
        place = self.home / "tidelog" / "mesh" / name
        place.mkdir(parents=True, mode=0o700)
        key = self.join(name)
        daemon = DaemonProcess(self.server.url, slug=SLUG, key=key, data_dir=place)
        daemon.start()
        self.daemons[name] = daemon
        return daemon

    # The lake.

    def write_lake(self, through: int) -> None:
        """Three tables and an index as the pipeline leaves them, without a JVM."""
        root = self.server.data_dir / "lake"
        at = datetime.now(UTC)
        verdicts = {
            "check": ["continuity", "digest", "orphans"],
            "ran_at": pa.array([at] * 3, pa.timestamp("us", tz="UTC")),
            "through": [through] * 3,
            "examined": [through, through, 12],
            "findings": [0, 0, 2],
            "first": [[], [], ["message 4 has no delivery", HOSTILE]],
            "ranges": [[f"1 to {through}"]] * 3,
            "subjects": pa.array([[]] * 3, pa.list_(pa.string())),
            "seed": [7] * 3,
            "sound_through": [through, through, 0],
            "covered": [through, through, 0],
            "log_id": ["log"] * 3,
            "incarnation": ["first"] * 3,
            "digest": ["00"] * 3,
        }
        _write(root / "product" / "verdict", verdicts, through)
        table = BY_NAME["mention"]
        mentions = {column.name: _one(column.kind, at) for column in table.columns}
        _write(root / table.layer / table.name, mentions, max(0, through - 3))
        index = index_root(root)
        index.mkdir(parents=True)
        writer = ShardWriter(index, 0, None)
        for number, text in enumerate((ANSWER, f"Rotterdam \U0001f30a {HOSTILE}"), start=1):
            writer.put(
                {
                    "app_id": "app-id",
                    "channel": CHANNEL,
                    "message_serial": f"serial-{number}",
                    "name": "answer",
                    "data": json.dumps(text),
                    "committed_id": number,
                    "updated_at": int(at.timestamp() * 1000),
                    "is_searchable": True,
                    "is_erased": False,
                }
            )
        shard = writer.finish()
        assert isinstance(shard, Shard)
        publish(index, shard, through)


def _one(kind: str, at: datetime) -> pa.Array:
    """A column of one value."""
    if kind == "timestamp":
        return pa.array([at], pa.timestamp("us", tz="UTC"))
    return pa.array([1], pa.int64()) if kind == "bigint" else pa.array(["one"], pa.string())


def _write(path: Path, columns: dict[str, Any], through: int) -> None:
    transaction = CommitProperties(app_transactions=[Transaction("tidelog", through)])
    write_deltalake(path, pa.table(columns), commit_properties=transaction)


@asynccontextmanager
async def staged(directory: Path) -> AsyncIterator[Stage]:
    """A stage on which everything has happened once; it goes on when tests make it."""
    stage = Stage(directory)
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, stage.home, ignore_errors=True)
        stack.enter_context(stage.server)
        stage.server.start()
        stage.call("POST", "/mesh", {"slug": SLUG}, DEVELOPMENT_ADMIN_TOKEN)
        for name in ("lighthouse", "pilot"):
            stack.enter_context(stage.launch_daemon(name))
        stage.join("<b>mallory</b>")
        app = ("app-id", "app-key", "app-secret")
        stage.publisher = await stack.enter_async_context(ChannelPublisher(stage.server.url, *app))
        client = ChannelClient(stage.server.url.replace("http", "ws"), "app-key")
        await stack.enter_async_context(client)
        await stack.enter_async_context(client.subscribe(CHANNEL))
        for client_id in ("ana", "<i>ben</i>"):
            await stage.open_sync(stack, client_id)
            await stage.push_node(client_id)
        await stage.say("lobby", "chat.message", {"text": HOSTILE, "from": "ana"})
        await stage.say(CHANNEL, HOSTILE, HOSTILE)
        await stage.stream_answer()
        pilot = stage.daemons["pilot"]
        pilot.send(f"topic:{TOPIC}", "High water at 14:02.", "high-water-1")
        pilot.send("topic:fog", "Fog in the channel.", "fog-1")
        eventually(lambda: pilot.outbox("fog-1")["status"] == "dead")
        eventually(lambda: pilot.outbox("high-water-1")["status"] == "done")
        stage.write_lake(through=9)
        yield stage
