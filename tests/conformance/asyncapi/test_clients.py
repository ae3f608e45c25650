"""What tidelog's own clients and server really say to each other is what the document describes."""

import asyncio
import json
import shutil
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import jwt

from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.peer import ADMIN_TOKEN, BrokerAt
from support.probe.server import running_server
from support.web import wire_schema
from support.web.overheard import Overheard
from tidelog.cli.serving import _mount_channels, _mount_mesh, _mount_sync
from tidelog.client import ChannelClient, ChannelPublisher, SyncClient
from tidelog.config.settings import Settings
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
TREE: dict[str, Any] = {"list": {"kind": "tree", "actions": ["treePush"]}}
WAIT_SECONDS = 60.0


async def channels(url: str) -> None:
    """A stream is watched from its beginning and by a late joiner."""
    async with (
        ChannelPublisher(url, "app-id", "app-key", "app-secret") as publisher,
        ChannelClient(url.replace("http", "ws"), "app-key") as client,
        client.subscribe("room") as room,
    ):
        await publisher.publish("room", "said", {"text": "hello"})
        async with publisher.stream("room", "answer") as answer:
            for word in ("one ", "two ", "three"):
                await answer.write(word)
        async with (
            ChannelClient(url.replace("http", "ws"), "app-key") as late,
            late.subscribe("room", rewind=10) as again,
        ):
            for watched in (room, again):
                async for message in watched:
                    if message.name == "answer" and message.data == "one two three":
                        break


async def sync(url: str, directory: Path) -> None:
    """Two clients of one list: each submits, and the other is told."""
    async with AsyncExitStack() as stack:
        clients = []
        for name in ("ana", "ben"):
            claims = {
                "client_id": name,
                "exp": int(time.time()) + 600,
                "allowed_partition_prefixes": [""],
            }
            client = SyncClient(
                url.replace("http", "ws") + "/sync",
                client_id=name,
                store=directory / f"{name}.db",
                model=Model.parse(TREE, {}, 1),
                token=jwt.encode(claims, SECRET, "HS256"),
                partitions=["p"],
            )
            clients.append(await stack.enter_async_context(client))
        for client in clients:
            await client.sync()
        for number, client in enumerate(clients):
            payload = {"target": "list", "value": {"id": f"n{number}"}, "options": {}}
            event = {"type": "treePush", "payload": payload}
            row = await client.submit(partitions=["p"], event=event)
            await client.wait(row.id)


async def mesh(url: str, stack: AsyncExitStack) -> None:
    """Two daemons; one posts to a topic and to nobody, the other receives."""
    broker = BrokerAt(url, "")
    stack.push_async_callback(broker.http.aclose)
    slug = await broker.mesh()
    daemons = []
    for name in ("lighthouse", "pilot"):
        member = await broker.member(slug, name)
        await member.topic("tides")
        daemon = DaemonProcess(url, slug=slug, key=member.key)
        stack.callback(shutil.rmtree, daemon.data_dir, ignore_errors=True)
        stack.enter_context(daemon)
        await asyncio.to_thread(daemon.start)
        daemons.append(daemon)
    lighthouse, pilot = daemons

    def send() -> None:
        pilot.send("topic:tides", "High water at 14:02.", "one")
        pilot.send("topic:fog", "Fog in the channel.", "two")
        eventually(lambda: pilot.outbox("one")["status"] == "done")
        eventually(lambda: pilot.outbox("two")["status"] == "dead")
        eventually(lambda: len(lighthouse.inbox()) == 1)
        topic = {"topic": "tides"}
        for verb, is_subscribed in (("unsubscribe", False), ("subscribe", True)):
            answer = pilot.ask("POST", f"/v1/topic/{verb}", topic)
            assert answer == (200, {**topic, "subscribed": is_subscribed})
        status, refused = pilot.ask("POST", "/v1/topic/subscribe", {"topic": "x" * 600})
        assert (status, refused["error"]) == (400, "destination_invalid")
        assert "512 bytes" in refused["detail"]
        topics = [{"name": "tides", "subscribed": True}]
        assert pilot.ask("GET", "/v1/topic/list")[1] == {"topics": topics}

    await asyncio.to_thread(send)


async def test_clients_and_server_say_what_is_described(tmp_path: Path) -> None:
    """Every message of a channel client, a sync client and a daemon, and every answer, fits."""
    model = tmp_path / "model.json"
    model.write_text(json.dumps({"model_version": 1, "tree_targets": TREE, "schemas": {}}))
    served = SyncSettings(jwt_secret=SECRET, model_file=str(model))
    settings = Settings(dev=True, admin_token=ADMIN_TOKEN, sync=served)
    overheard = Overheard()
    mounts = overheard.mounts((_mount_channels, _mount_sync, _mount_mesh))
    async with (
        asyncio.timeout(WAIT_SECONDS),
        AsyncExitStack() as stack,
        running_server(tmp_path / "data", settings=settings, mounts=mounts) as server,
    ):
        await channels(server.url)
        await sync(server.url, tmp_path)
        await mesh(server.url, stack)
    seen = Counter(wire_schema.check(*said, is_ours=True) for said in overheard.said)
    for key in (
        *("channels.client.subscribe", "channels.server.subscription_succeeded"),
        *("channels.server.event", "channels.server.message_change"),
        *("channels.server.connection_established", "channels.server.rewind_complete"),
        *("sync.client.connect", "sync.client.submit_events", "sync.client.sync"),
        *("sync.server.connected", "sync.server.submit_events_result"),
        *("sync.server.sync_response", "sync.server.event_broadcast"),
        *("mesh.client.hello", "mesh.client.feature_negotiation_request", "mesh.client.send"),
        *("mesh.client.client_ack", "mesh.server.hello", "mesh.server.welcome"),
        *("mesh.server.ack", "mesh.server.deliver", "mesh.server.feature_negotiation_response"),
    ):
        assert seen[key], f"nobody said {key}"
