"""A store with rows of every kind in every table, written by the surfaces themselves."""

import time
from pathlib import Path
from typing import Any

from support.channels.peer import PLAIN, Api, channels_server, ok
from support.mesh.peer import Member, envelope, running_broker, unique
from support.sync.admin import admin
from support.sync.peer import connected, note, push
from tidelog.mesh.protocol.model import DAY_MS
from tidelog.testing.clock import FakeClock

WINDOW_SECONDS = 100
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
COMPLETE = {"ai": {"transport": {"status": "complete"}}}


async def fill(location: str, folder: Path) -> None:
    """Fill the store at `location`; its times are of the last days."""
    clock = FakeClock(time.time_ns() // 1_000_000 - 5 * DAY_MS)
    await _fill_channels(location, folder / "channels", clock)
    await _fill_sync(location, folder / "sync", clock)
    await _fill_mesh(location, folder / "mesh", clock)


async def _fill_channels(location: str, folder: Path, clock: FakeClock) -> None:
    window = {"retention_window_seconds": WINDOW_SECONDS, "purge_interval_seconds": 3600}
    async with channels_server(folder, location, clock=clock, versioned_messages=window) as node:
        api = node.api
        api.now = lambda: clock.now_ms() / 1000
        await api.publish("gone", "wholly")
        old = {
            name: (await api.publish("room", f"{name}: "))["message_serial"]
            for name in ("folded", "folded later", "never folded")
        }
        await api.mutate("append", "room", old["folded"], data="x" * 5000)
        clock.advance(60_000)
        for name, more in (("folded", "y"), ("folded later", "y" * 5000), ("never folded", "y")):
            await api.mutate("append", "room", old[name], data=more)
        clock.advance(60_000)
        await _fill_room(api)
        ok(await api.post("/revocations", {"client_id": "gone"}))
        plain = Api(api.url, api._client, PLAIN)
        plain.now = api.now
        assert (await plain.events("events", data="kept")).status_code == 200
        assert await node.surface.owner.retention.tick() == 5
        for channel, operation in (("reset", "reset"), ("purged", "purge")):
            await api.publish(channel, "before")
            confirmed = {"confirm_channel": channel, "confirm_operation": operation}
            body = {**confirmed, "reason": "test", "mode": "all"}
            ok(await api.post(f"/channels/{channel}/history/{operation}", body))
            await api.publish(channel, "after")


async def _fill_room(api: Api) -> None:
    """Messages in all states, and receipts of all kinds."""
    await api.publish("room", "receipt", message_id="m-1")
    await api.publish("room", "receipt", idempotency_key="k-1")
    batch = [{"channel": "room", "name": "n", "data": str(n)} for n in range(2)]
    ok(await api.post("/batch_events", {"batch": batch, "idempotency_key": "b-1"}))
    opened = await api.publish("room", "", extras=STREAMING)
    await api.mutate("append", "room", opened["message_serial"], data="token ", op_id="o-1")
    ended = await api.publish("room", "", extras=STREAMING)
    await api.mutate("append", "room", ended["message_serial"], data="all", extras=COMPLETE)
    changed = (await api.publish("room", {"a": 1}, tags={"k": "v"}))["message_serial"]
    await api.mutate("update", "room", changed, data={"b": "\u00e9\0"}, description="why")
    await api.mutate("delete", "room", changed, clear_fields=["data"])


async def _fill_sync(location: str, folder: Path, clock: FakeClock) -> None:
    async with (
        admin(folder, store=location, clock=clock) as administrator,
        connected(administrator.node.ws_url, "a") as peer,
        connected(administrator.node.ws_url, "t", "compatibility") as trees,
    ):
        await peer.submit(note("1", "p"), note("2", "p", "q"), note("3\0", "q", data={"x": "\0"}))
        await trees.submit(push("4", "root", "p"))
        through = await administrator.snapshot("p")
        assert await administrator.retain(through) > 0
        clock.advance(1000)
        await peer.submit(note("5", "p"), note("6", "\u00fc/\U0001f30a"))
        await administrator.ok("PUT", "model-version", {"model_version": 7})


async def _fill_mesh(location: str, folder: Path, clock: FakeClock) -> None:
    async with running_broker(folder, location, clock) as broker:
        slug = await broker.mesh(message_retention_days=1)
        assert (await broker.admin("POST", f"/mesh/{slug}/invites")).status_code == 201
        ana, ben, gone = [await broker.member(slug, name) for name in ("ana", "ben", "gone")]
        await ana.topic("alerts")
        await ben.subscribe("alerts")
        assert (await ana.request("POST", "/queues", {"queue": "jobs"})).status_code == 201
        mention: dict[str, Any] = {"meta": {"mentions": [ben.address]}}
        await _post(ana, "topic", "alerts", **mention)
        clock.advance(2 * DAY_MS)
        assert (await broker.owner.periodic._retention.tick())[0] == 1
        hooks = [
            await broker.admin(
                "POST",
                f"/mesh/{slug}/webhooks",
                {"url": "http://127.0.0.1:9/hook", "secret": "a secret of sixteen or more"},
            )
            for _ in range(2)
        ]
        assert [hook.status_code for hook in hooks] == [201, 201]
        await _post(ana, "topic", "alerts", **mention)
        await _post(ana, "dm", ben.address)
        await _post(ana, "dm", gone.address)
        async with ben.connected() as wire:
            first = await wire.until("deliver")
            names = ("broker_message_id", "client_message_id", "claim_id")
            await wire.send({"type": "client_ack", **{name: first[name] for name in names}})
            await wire.until("deliver")
            await wire.ask("history", since_history_id=0, limit=1)
        for number in range(3):
            await _post(ben, "queue", "jobs", f"job {number}")
        await ana.request("POST", "/queues/jobs/claim", {"limit": 1, "lease_ms": 1000})
        clock.advance(1000)
        claimed = (await ana.request("POST", "/queues/jobs/claim", {"limit": 2})).json()
        done = [claimed["items"][0]["broker_message_id"]]
        body = {"claim_id": claimed["claim_id"], "broker_message_ids": done}
        assert (await ana.request("POST", "/queues/jobs/ack", body)).status_code == 200
        removed = hooks[0].json()["id"]
        assert (await broker.admin("DELETE", f"/mesh/{slug}/webhooks/{removed}")).status_code == 200
        answer = await broker.admin("DELETE", f"/mesh/{slug}/members/{gone.address}")
        assert answer.status_code == 200, answer.text


async def _post(sender: Member, kind: str, ref: str, body: str = "hello", **more: Any) -> None:
    answer = await sender.post(unique(), envelope(kind, ref, body, **more))
    assert answer.status_code == 201, answer.text
