"""Erasing by the server's administration, by its command, and with several nodes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.channels.peer import (
    ChannelsNode,
    channels_server,
    message_path,
    refused,
    unique,
    until,
)
from support.cli.command import tidelog
from tidelog.channels.upkeep import erasing

TOKEN = "an admin token of some length"
PATH = "/channels/admin/forget"
SECRET = "the moon is made of gruyere"


async def administer(
    node: ChannelsNode, method: str, token: str = TOKEN, **request: Any
) -> tuple[int, Any]:
    """Status and body of an administrator's request."""
    headers = {"authorization": f"Bearer {token}"}
    answer = await node.client.request(method, node.api.url + PATH, headers=headers, **request)
    return answer.status_code, answer.json()


async def test_the_administration_erases(tmp_path: Path) -> None:
    """Of any app, with the admin token only."""
    async with channels_server(tmp_path, admin_token=TOKEN) as node:
        channel = unique()
        ack = await node.api.publish(channel, SECRET)
        target = {"app_id": "tide", "channel": channel, "message_serial": ack["message_serial"]}
        order = {**target, "reason": "asked for", "requested_by": "ada"}
        assert (await administer(node, "POST", "another token", json=order))[0] == 401
        assert (await administer(node, "GET", "another token", params=target))[0] == 401
        for wrong in (
            {},
            {**order, "app_id": ""},
            {**order, "app_id": "a/b"},
            {**order, "reason": ""},
            {**order, "actor": "ana"},
            {"app_id": "tide", "reason": "r", "actor": "tide"},
        ):
            assert (await administer(node, "POST", json=wrong))[0] == 400
        assert (await administer(node, "GET", params=target))[0] == 404
        assert (await administer(node, "POST", json={**order, "app_id": "plain"}))[0] == 404
        assert (await node.api.item(channel, ack["message_serial"]))["data"] == SECRET
        assert await administer(node, "POST", json=order) == (200, {"ok": True, "complete": True})
        assert await administer(node, "GET", params=target) == (200, {"ok": True, "complete": True})
        refused(await node.api.get(message_path(channel, ack["message_serial"])), 404, "not_found")


async def test_the_command_waits_until_it_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidelog channels forget`, of a message, of an actor and of a channel."""
    monkeypatch.setattr(erasing, "ANSWER_SECONDS", 0.0)
    async with channels_server(tmp_path, admin_token=TOKEN) as node, node.v2() as ana:
        await ana.signin("ana")
        config = tmp_path / "tidelog.toml"
        config.write_text(f'admin_token = "{TOKEN}"\n', encoding="utf-8")
        api, channel = node.api, unique()
        place = ("channels", "forget", "--app", "tide", "--yes", "--config", str(config))
        serials = [
            (await api.publish(channel, SECRET, **who))["message_serial"]
            for who in ({}, {"socket_id": ana.socket_id}, {})
        ]
        gone: list[str] = []
        orders = (("--channel", channel, "--message", serials[0]), ("--actor", "ana"))
        for wanted, serial in zip((*orders, ("--channel", channel)), serials, strict=True):
            assert await tidelog(*place, "--url", api.url, *wanted) == {
                "ok": True,
                "complete": True,
            }
            gone.append(serial)
            for each in serials:
                answer = await api.get(message_path(channel, each))
                assert answer.status_code == (404 if each in gone else 200)


async def test_other_nodes_serve_it_no_more(tmp_path: Path, postgresql_url: str) -> None:
    """Not from their memory either: states, texts, hot buffers and last events."""
    async with (
        channels_server(tmp_path / "a", postgresql_url) as a,
        channels_server(tmp_path / "b", postgresql_url) as b,
        b.v2(append_mode="full") as reader,
        a.v2() as ana,
    ):
        await ana.signin("ana", {"message_append_own": ["*"]})
        for how in ("message", "actor", "channel"):
            channel, live = unique("cache-room"), unique("cache-live")
            head = await reader.subscribe(channel)
            await reader.expect(":cache_miss", channel)
            own = {"socket_id": ana.socket_id} if how == "actor" else {}
            ack = await a.api.publish(channel, SECRET, **own)
            serial = ack["message_serial"]
            await b.api.mutate("append", channel, serial, data="!")
            kept = await b.api.publish(channel, "kept")
            await a.api.events(live, data=SECRET, extras={"ephemeral": True}, **own)
            last = kept["delivery_serial"]
            while (await reader.receive()).get("serial") != last:
                pass
            hot = b.surface.service._delivery._hot
            assert hot is not None
            stream = f"channels/tide/{channel}"
            assert hot.after(stream, 0, last, kept_now(b)) is not None
            target: dict[str, Any] = {"channel": channel, "message_serial": serial}
            if how != "message":
                target = {"actor": "ana"} if how == "actor" else {"channel": channel}
            body = {"reason": "r", **target}
            answer = (await a.api.post("/forget", body)).json()
            assert answer == {"ok": True, "complete": True}
            for path in ("", "/versions", "/summary"):
                where = message_path(channel, serial) + path
                refused(await b.api.get(where), 404, "not_found")
            response = await b.api.try_mutate("append", channel, serial, data="?")
            refused(response, 404, "not_found")
            assert SECRET not in json.dumps(await b.api.history(channel))
            states = b.surface.owner.states
            await until(lambda s=stream, n=last, h=hot: h.after(s, n - 1, n, kept_now(b)) is None)
            assert states.peek(int(serial[-20:])) is None
            async with b.v2() as late:
                await late.resume(**{channel: {"serial": 0, "stream_id": head["stream_id"]}})
                failed = json.loads((await late.expect(":resume_failed", channel))["data"])
                assert failed["code"] == "position_expired"
                await late.resumed()
                if how == "actor":
                    await late.subscribe(live)
                    await late.expect(":cache_miss", live)


async def test_postgresql_keeps_no_sample_of_it(tmp_path: Path, postgresql_url: str) -> None:
    """Its statistics hold values of rows, which VACUUM leaves alone; transient frames are none."""
    async with channels_server(tmp_path, postgresql_url) as node:
        server = await asyncpg.connect(postgresql_url)

        async def sampled() -> set[str]:
            """Where a value of a row can be read that has the secret in it."""
            rows = await server.fetch(
                "SELECT tablename || '.' || attname AS name, "
                "concat(most_common_vals::text, histogram_bounds::text) AS sample "
                "FROM pg_stats WHERE schemaname = 'tidelog'"
            )
            looks = (SECRET, SECRET.encode().hex())
            return {row["name"] for row in rows if any(look in row["sample"] for look in looks)}

        try:
            # As in a store that was analysed before tidelog kept statistics small.
            await server.execute("ALTER TABLE tidelog.log ALTER COLUMN body SET STATISTICS 100")
            channel = unique()
            for n in range(5):
                await node.api.publish(channel, f"{SECRET} {n}", message_id=f"{SECRET} {n}")
                await node.api.events(unique(), data=f"{SECRET} {n}", extras={"ephemeral": True})
            await server.execute("ANALYZE")
            assert await sampled() == {"log.body", "dedupe.key"}
            await node.api.publish(unique(), "another")
            body = {"reason": "r", "channel": channel}
            assert (await node.api.post("/forget", body)).json()["complete"] is True
            assert await sampled() == set()
        finally:
            await server.close()


def kept_now(node: ChannelsNode) -> int:
    """The time by that node's clock."""
    return node.surface.service.clock.now_ms()


async def test_a_node_that_died_leaves_it_to_another(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks next goes on."""
    monkeypatch.setattr(erasing, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(erasing, "LOOK_SECONDS", 0.1)
    async with channels_server(tmp_path / "b", postgresql_url) as b:
        channel = unique()
        async with channels_server(tmp_path / "a", postgresql_url) as a:
            await a.api.publish(channel, SECRET)
            for node in (a, b):
                task = node.surface.owner.erasing._task
                assert task is not None
                task.cancel()
            await asyncio.sleep(0)
            order = {"reason": "r", "channel": channel}
            assert (await a.api.post("/forget", order)).json()["complete"] is False
        b.surface.owner.erasing.start()
        while not (await b.api.get("/forget", channel=channel)).json()["complete"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        entries = await b.surface.service.store.stream_entries(f"channels/tide/{channel}", 0)
        assert [entry.body for entry in entries] == [None]
