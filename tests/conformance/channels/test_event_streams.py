"""A channel as server-sent events: checks 69 to 76 of the contract (channels 6.5)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.channels.events import Listener, heard, listening, refusal, target
from support.channels.peer import (
    APP,
    Api,
    ChannelsNode,
    channels_server,
    ok,
    token,
    unique,
    unoccupied,
    until,
)
from tidelog.base.settings.limits import Limits
from tidelog.channels.settings import App
from tidelog.web import event_stream

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SUCCEEDED = "sockudo_internal:subscription_succeeded"


async def change(api: Api, channel: str) -> list[str]:
    """Four operations on a channel; returns their events."""
    ack = await api.publish(channel, "a", name="said")
    serial = ack["message_serial"]
    await api.mutate("append", channel, serial, data="b")
    await api.mutate("update", channel, serial, extras={"headers": {"k": 1}})
    await api.mutate("delete", channel, serial)
    return ["said", *(f"sockudo:message.{verb}" for verb in ("append", "update", "delete"))]


@pytest.mark.one_node
async def test_check_69_events_are_the_frames_of_v2(node: ChannelsNode, api: Api) -> None:
    """To the byte of their JSON, in both append modes, beside sockets on the same channel."""
    for channel, mode in ((unique(), "delta"), (unique("private-x"), "full")):
        async with (
            heard(node.port, channel, append_mode=mode) as listener,
            node.v2(append_mode=mode) as peer,
        ):
            assert listener.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert listener.headers["connection"] == "close"
            assert "content-length" not in listener.headers
            assert listener.headers["cache-control"] == "no-store, no-transform"
            first = await listener.expect("sockudo:connection_established")
            assert listener.retry_ms == event_stream.RETRY_MS
            socket_id = json.loads(first["data"])["socket_id"]
            succeeded = await listener.expect(SUCCEEDED)
            assert listener.last_id == f"{succeeded['stream_id']}:0"
            await peer.subscribe(channel)
            for event in await change(api, channel):
                frame = await listener.expect(event)
                assert frame == await peer.receive()
                assert listener.last_id == f"{frame['stream_id']}:{frame['serial']}"
            await api.events(channel, data="x", extras={"ephemeral": True})
            unkept = await listener.receive()
            assert unkept.id is None
            assert unkept.data == await peer.receive()
            # A connection like any other: it is counted, and can be left out by its id.
            found = ok(await api.get(f"/channels/{channel}", info="subscription_count"))
            assert found["subscription_count"] == 2
            await api.publish(channel, "not for it", socket_id=socket_id)
            await api.publish(channel, "for it", name="marker")
            await listener.expect("marker")
        await unoccupied(api, channel)


async def test_check_70_who_may_listen(node: ChannelsNode, api: Api) -> None:
    """Whoever signs; whoever has a token that says so, and of private channels says `stream`."""
    room, secret = unique(), unique("private-x")
    may: Json = {room: ["subscribe"], secret: ["subscribe"]}
    async with heard(node.port, room, token=token("ana", may)) as listener:
        await listener.subscribed()
    status, code, text = await refusal(node.port, secret, token=token("ana", may))
    assert (status, code) == (401, "auth_failed")
    assert "stream" in text
    may[secret].append("stream")
    async with heard(node.port, secret, token=token("ana", may)) as listener:
        await listener.subscribed()
        await api.publish(secret, "x", name="said")
        await listener.expect("said")
    for capability in ({"other": ["subscribe", "stream"]}, {secret: ["stream"]}):
        given = token("ana", capability)
        assert (await refusal(node.port, secret, token=given))[:2] == (401, "auth_failed")
    # A rewind is reading history.
    assert (await refusal(node.port, room, token=token("ana", may), rewind=1))[0] == 401
    for bad in (token(secret="wrong" * 8), token(exp=1, iat=0), "x.y.z", ""):
        assert (await refusal(node.port, room, token=bad))[:2] == (401, "auth_failed")
    assert (await refusal(node.port, "no spaces", token=token()))[:2] == (400, "invalid_input")
    assert (await refusal(node.port, room, app=App(id=APP.id, key="none", secret="x")))[0] == 404
    wrong = App(id=APP.id, key=APP.key, secret="wrong")
    assert (await refusal(node.port, room, app=wrong))[0] == 401


async def test_check_71_what_was_missed_comes_first(node: ChannelsNode, api: Api) -> None:
    """After a `Last-Event-ID`, in order and once, also where a subscribe is authorized."""
    for channel in (unique(), unique("private-x")):
        await api.publish(channel, "0")
        async with heard(node.port, channel) as listener:
            await listener.subscribed()
            await api.publish(channel, "1", name="seen")
            await listener.expect("seen")
            last_id = listener.last_id
        missed = await change(api, channel)
        for how in ({"last_id": last_id}, {"params": last_id}):
            params = {"last_event_id": how["params"]} if "params" in how else {}
            header = how.get("last_id", "")
            async with heard(node.port, channel, last_id=header, rewind=5, **params) as listener:
                await api.publish(channel, "z", name="live")
                events: list[Json] = []
                while not events or events[-1]["event"] != "live":
                    events.append(await listener.frame())
            shown = [each for each in events if "serial" in each and each["event"] != SUCCEEDED]
            assert [each["event"] for each in shown] == [*missed, *["live"] * len(shown[4:])]
            serials = [each["serial"] for each in shown]
            assert serials == list(range(3, 3 + len(shown)))
            assert listener.last_id.endswith(f":{serials[-1]}")


async def test_check_72_a_rewind_has_no_ids_before_it_is_complete(
    node: ChannelsNode, api: Api
) -> None:
    """States first; whoever is cut off among them begins anew, and then goes on from all."""
    channel = unique()
    first = await api.publish(channel, "a")
    await api.publish(channel, "b")
    await api.mutate("append", channel, first["message_serial"], data="a")
    async with heard(node.port, channel, rewind=10) as listener:
        events = [await listener.receive()]
        while (events[-1].data or {})["event"] != "sockudo:rewind_complete":
            events.append(await listener.receive())
        states = [each.data for each in events if each.data and "extras" in each.data]
        assert [state["data"] for state in states] == ["aa", "b"]
        assert [each.id for each in events[:-1]] == [None] * (len(events) - 1)
        assert (events[-1].id or "").endswith(":3")
    async with heard(node.port, channel, rewind=10, last_id=listener.last_id) as listener:
        assert "extras" not in await listener.subscribed()
        await api.publish(channel, "c", name="said")
        assert (await listener.expect("said"))["serial"] == 4
    assert (await refusal(node.port, channel, rewind="all"))[:2] == (400, "invalid_input")


async def test_check_73_what_cannot_go_on_is_reset(node: ChannelsNode, api: Api) -> None:
    """A foreign or an old position is told, and the channel is rewound; no position is 400."""
    channel = unique()
    await api.publish(channel, "a")
    foreign = "00000000-0000-4000-8000-000000000000:1"
    async with heard(node.port, channel, rewind=1, last_id=foreign) as listener:
        await listener.expect("sockudo:connection_established")
        failed = await listener.expect("sockudo:resume_failed")
        assert json.loads(failed["data"])["code"] == "stream_reset"
        await listener.expect("sockudo:resume_success")
        succeeded = await listener.expect(SUCCEEDED)
        assert (await listener.frame())["data"] == "a"
        assert listener.last_id == foreign  # until the rewind is complete
        await listener.expect("sockudo:rewind_complete")
        assert listener.last_id == f"{succeeded['stream_id']}:1"
    ahead = listener.last_id.replace(":1", ":9")
    async with heard(node.port, channel, last_id=ahead) as listener:
        await listener.expect("sockudo:connection_established")
        failed = await listener.expect("sockudo:resume_failed")
        assert json.loads(failed["data"])["code"] == "continuity_unverifiable"
    for bad in ("x", "x:", ":1", "x:-1", "x:1e3", f"x:{2**63}", "x" * 300 + ":1"):
        assert (await refusal(node.port, channel, last_id=bad))[:2] == (400, "invalid_input")


async def test_check_74_a_presence_channel_is_joined(node: ChannelsNode, api: Api) -> None:
    """As the client of the token, or as whom the app's server says; others are told."""
    lab = unique("presence-lab")
    may = {lab: ["subscribe", "presence", "stream"]}
    async with node.v2() as peer:
        await peer.subscribe(lab, {"user_id": "bo"})
        async with heard(node.port, lab, token=token("ana", may)) as listener:
            succeeded = await listener.subscribed()
            assert json.loads(succeeded["data"])["presence"]["ids"] == ["bo", "ana"]
            added = await peer.expect("_member_added", lab)
            assert json.loads(added["data"])["user_id"] == "ana"
        await peer.expect("_member_removed", lab)
        async with heard(node.port, lab, user_id="cy") as listener:
            await listener.subscribed()
            users = ok(await api.get(f"/channels/{lab}/users"))["users"]
            assert sorted(user["id"] for user in users) == ["bo", "cy"]
    assert "user_id" in (await refusal(node.port, lab))[2]
    for less in (["subscribe", "stream"], ["presence", "stream"]):
        assert (await refusal(node.port, lab, token=token("ana", {lab: less})))[0] == 401


async def test_check_75_it_ends_with_its_token(node: ChannelsNode, api: Api) -> None:
    """At its end and at a revocation, with a frame that says so; then it is 401."""
    channel = unique()
    given = token("ana", {channel: ["subscribe"]}, jti="revoked-one")
    async with heard(node.port, channel, token=given) as listener:
        await listener.subscribed()
        ok(await api.post("/revocations", {"jti": "revoked-one"}))
        [expired] = await listener.ended()
        assert expired["event"] == "sockudo:token_expired"
        assert expired["data"]["reason"] == "revoked"
    assert (await refusal(node.port, channel, token=given))[0] == 401
    async with heard(node.port, channel) as listener:
        await listener.subscribed()
        await api.post("/users/nobody/force_reconnect", {})
        await api.publish(channel, "x", name="still here")
        await listener.expect("still here")


@pytest.mark.inside
async def test_check_76_limits_and_signs_of_life(
    node: ChannelsNode,
    spare_store: Callable[[], Awaitable[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comments while nothing happens; connections of an app count; the server ends them."""
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 0.02)
    small = App(id="small", key="small-key", secret="small secret", max_connections=1)
    quick = Limits(idle_timeout_ms=1000, pong_timeout_ms=100, close_timeout_ms=1000)
    ended: asyncio.Task[list[Json]] | None = None
    async with channels_server(
        tmp_path, await spare_store(), apps=(APP, small), limits=quick
    ) as other:
        channel = unique()
        async with heard(other.port, channel, app=small) as listener:
            await listener.subscribed()
            assert [(await listener.receive()).data for _ in range(3)] == [None] * 3
            status, code, text = await refusal(other.port, channel, app=small)
            assert (status, code) == (503, "backpressure")
            assert "apps.max_connections" in text
        await until(lambda: other.surface.service.hub.count(small.id) == 0)
        stack = listening(other.port, channel, app=small)
        listener = await stack.__aenter__()
        await listener.subscribed()
        ended = asyncio.create_task(listener.ended())
    assert await ended == []
    await stack.__aexit__(None, None, None)


@pytest.mark.inside
async def test_a_slow_reader_is_dropped_alone(
    spare_store: Callable[[], Awaitable[str]], tmp_path: Path
) -> None:
    """Its memory is freed; whoever reads is sent everything."""
    limits = Limits(send_buffer_bytes=200_000, send_buffer_messages=50)
    async with channels_server(tmp_path, await spare_store(), limits=limits) as node:
        channel = unique()
        async with heard(node.port, channel) as slow, heard(node.port, channel) as quick:
            await slow.subscribed()
            await quick.subscribed()
            slow._reader._transport.pause_reading()  # type: ignore[attr-defined]
            hub = node.surface.service.hub
            sent = 0
            while hub.count(APP.id) == 2:
                await node.api.publish(channel, "x" * 90_000)
                sent += 1
                assert len((await quick.frame())["data"]) == 90_000
                assert sent < 500
            await node.api.publish(channel, "end", name="end")
            await quick.expect("end")
            assert node.server.metrics.slow_consumers._value.get() == 1


async def test_other_requests_of_the_connection(node: ChannelsNode, api: Api) -> None:
    """HEAD is answered without a stream; what is pipelined after the request is dropped."""
    channel = unique()
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    head = target(channel, token=token("ana", {channel: ["subscribe"]}))
    lines = f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    writer.write(f"HEAD {lines}GET {lines}GET {lines}".encode())
    listener = Listener(reader, writer)
    await listener.read_head()
    assert (listener.status, listener.headers.get("content-length")) == (200, None)
    await listener.read_head()
    await listener.subscribed()
    await api.publish(channel, "x", name="said")
    await listener.expect("said")
    writer.transport.abort()
    await unoccupied(api, channel)
