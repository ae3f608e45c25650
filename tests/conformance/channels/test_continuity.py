"""Checks 57-68 of the channels contract: history, rewind, recovery, and how errors look."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sockudo_http_python import AsyncSockudo, Config
from sockudo_python import ChannelAuthorizationData, ChannelAuthorizationOptions, ConnectionState

from support.channels.peer import (
    APP,
    UUID4,
    Api,
    ChannelsNode,
    Peer,
    channel_auth,
    channel_path,
    channels_server,
    message_path,
    nothing_else,
    ok,
    refused,
    unique,
    until,
)
from support.channels.sdk import sdk_client

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ConnectionClosed:DeprecationWarning"),  # in sockudo-python
]

SpareStore = Callable[[], Awaitable[str]]


def position(frame: dict[str, Any]) -> dict[str, Any]:
    """The recovery position a client remembers of a frame."""
    return {
        "serial": frame["serial"],
        "stream_id": frame["stream_id"],
        "last_message_id": frame["message_id"],
    }


async def resume_failed(peer: Peer, channel: str) -> dict[str, Any]:
    """The data of the next frame, which says that a channel could not be resumed (channels D5)."""
    frame = await peer.expect(":resume_failed", channel)
    assert isinstance(frame["data"], str)
    data: dict[str, Any] = json.loads(frame["data"])
    assert data["channel"] == channel
    assert set(data) == {
        "channel",
        "code",
        "reason",
        "expected_stream_id",
        "current_stream_id",
        "oldest_available_serial",
        "newest_available_serial",
    }
    return data


async def test_check_57_history_shows_the_latest_state(api: Api) -> None:
    """A row per create, at its place, with what became of it."""
    channel = unique()
    a = await api.publish(channel, "a")
    b = await api.publish(channel, "b")
    update = await api.mutate("update", channel, a["message_serial"], data="a2")
    page = await api.history(channel, direction="oldest_first")
    first, second = page["items"]
    assert [first["serial"], second["serial"]] == [1, 2]
    assert first["message"] == await api.item(channel, a["message_serial"])
    assert second["message"] == await api.item(channel, b["message_serial"])
    assert (first["operation_kind"], first["event_name"]) == (
        "message.update",
        "sockudo:message.update",
    )
    assert second["operation_kind"] == "message.create"
    assert (first["message"]["data"], first["message"]["serial"]) == ("a2", 3)
    assert first["message"]["version"]["serial"] == update["version_serial"]
    for row in page["items"]:
        assert set(row) == {
            "stream_id",
            "serial",
            "published_at_ms",
            "message_id",
            "event_name",
            "operation_kind",
            "payload_size_bytes",
            "message",
        }
        assert UUID4.fullmatch(row["stream_id"])
        assert row["payload_size_bytes"] > 0
    # The place and the time are the create's.
    created = int(a["message_serial"].partition(":")[0])
    assert first["published_at_ms"] == created
    stream_id = first["stream_id"]
    assert page["direction"] == "oldest_first"
    assert (page["limit"], page["has_more"], page["next_cursor"]) == (100, False, None)
    names = ("start_serial", "end_serial", "start_time_ms", "end_time_ms")
    assert page["bounds"] == dict.fromkeys(names)
    continuity = page["continuity"]
    assert continuity.pop("retained_bytes") > 0
    assert continuity == {
        "stream_id": stream_id,
        "oldest_available_serial": 1,
        "newest_available_serial": 2,
        "oldest_available_published_at_ms": first["published_at_ms"],
        "newest_available_published_at_ms": second["published_at_ms"],
        "retained_messages": 2,
        "complete": True,
        "truncated_by_retention": False,
    }
    state = page["stream_state"]
    assert set(state) == {
        "stream_id",
        "durable_state",
        "recovery_allowed",
        "reset_required",
        "reason",
        "node_id",
        "last_transition_at_ms",
        "authoritative_source",
        "observed_source",
    }
    assert (state["stream_id"], state["durable_state"]) == (stream_id, "healthy")
    assert (state["recovery_allowed"], state["reset_required"]) == (True, False)


async def test_check_58_pages_of_history(node: ChannelsNode, api: Api) -> None:
    """Cursors page in both directions and are good for nothing else."""
    channel, other = unique(), unique()
    acks = [await api.publish(channel, str(n)) for n in range(5)]
    for n in range(3):
        await api.publish(other, str(n))
    await api.mutate("append", channel, acks[0]["message_serial"], data="!")
    cursors: dict[str, str] = {}
    for direction, expected in (
        ("newest_first", [5, 4, 3, 2, 1]),
        ("oldest_first", [1, 2, 3, 4, 5]),
    ):
        seen: list[int] = []
        params: dict[str, Any] = {"limit": 2, "direction": direction}
        for size, has_more in ((2, True), (2, True), (1, False)):
            page = await api.history(channel, **params)
            assert (len(page["items"]), page["has_more"]) == (size, has_more)
            assert (page["direction"], page["limit"]) == (direction, 2)
            seen += [row["serial"] for row in page["items"]]
            cursors.setdefault(direction, page["next_cursor"])
            params["cursor"] = page["next_cursor"]
            assert (page["next_cursor"] is not None) is has_more
        assert seen == expected
    path = f"{channel_path(channel)}/history"
    good: dict[str, Any] = {
        "limit": 2,
        "direction": "newest_first",
        "cursor": cursors["newest_first"],
    }
    ok(await api.get(path, **good))
    wrong: dict[str, Any]
    for wrong in (
        {**good, "direction": "oldest_first"},
        {**good, "start_serial": 1},
        {**good, "end_serial": 5},
        {**good, "cursor": "garbage"},
        {**good, "cursor": ""},
        {**good, "cursor": cursors["newest_first"][:-2]},
        {**good, "cursor": "e30"},
        {**good, "cursor": "A" * 12_000},
    ):
        refused(await api.get(path, **wrong), 400, "invalid_input")
    response = await api.get(f"{channel_path(other)}/history", **good)
    refused(response, 400, "invalid_input")
    response = await node.plain.get(path, **good)
    refused(response, 400, "invalid_input")
    for wrong in (
        {"limit": 0},
        {"limit": "x"},
        {"limit": -1},
        {"direction": "sideways"},
        {"start_serial": 3, "end_serial": 2},
        {"start_serial": "x"},
        {"start_time_ms": 3, "end_time_ms": 2},
    ):
        refused(await api.get(path, **wrong), 400, "invalid_input")
    assert (await api.history(channel, limit=1000))["limit"] == 100
    for alias in ("backwards", "reverse"):
        assert (await api.history(channel, direction=alias))["items"][0]["serial"] == 5
    for alias in ("forwards", "forward"):
        assert (await api.history(channel, direction=alias))["items"][0]["serial"] == 1
    page = await api.history(channel, start_serial=2, end_serial=4)
    assert [row["serial"] for row in page["items"]] == [4, 3, 2]
    assert (page["bounds"]["start_serial"], page["bounds"]["end_serial"]) == (2, 4)
    times = [row["published_at_ms"] for row in (await api.history(channel))["items"]]
    assert len((await api.history(channel, start=times[-1], end=times[0]))["items"]) == 5
    assert (await api.history(channel, start_time_ms=times[0] + 1))["items"] == []


async def test_check_59_channel_history(node: ChannelsNode, api: Api) -> None:
    """`until_attach` ends where the subscription began; only subscribers of V2 may ask."""
    channel = unique("private-room")
    for n in range(3):
        await api.publish(channel, str(n))
    async with node.v2() as v2, node.v2() as stranger, node.v1() as v1:
        head = await v2.subscribe(channel)
        assert json.loads(head["data"]) == {"attach_serial": 3}
        for n in range(3, 5):
            await api.publish(channel, str(n))
            await v2.receive()
        queries: list[tuple[dict[str, Any], list[int]]] = [
            ({"until_attach": True}, [3, 2, 1]),
            ({"untilAttach": True}, [3, 2, 1]),
            ({}, [5, 4, 3, 2, 1]),
            ({"until_attach": False}, [5, 4, 3, 2, 1]),
            ({"until_attach": True, "limit": 2}, [3, 2]),
            ({"until_attach": True, "direction": "oldest_first"}, [1, 2, 3]),
            ({"until_attach": True, "end_serial": 2}, [2, 1]),
            ({"until_attach": True, "end_serial": 4}, [3, 2, 1]),
            ({"start_serial": 2, "end_serial": 3}, [3, 2]),
        ]
        for query, expected in queries:
            whole = {"channel": channel, **query}
            nested = {"channel": channel, "params": query}
            for data in (whole, json.dumps(whole), nested):  # channels D12
                await v2.send("channel_history", data)
                frame = await v2.expect(":channel_history", channel)
                page = frame["data"]
                assert isinstance(page, dict)
                assert [row["serial"] for row in page["items"]] == expected
                is_until = bool(query.get("until_attach") or query.get("untilAttach"))
                assert page["bounds"]["until_attach"] is is_until
                if is_until:
                    assert page["bounds"]["attach_serial"] == 3
        whole = await api.history(channel)
        await v2.send("channel_history", {"channel": channel})
        page = (await v2.receive())["data"]
        assert page["items"] == whole["items"]
        assert set(page) == set(whole)
        await v2.send("channel_history", {"channel": channel, "limit": 2})
        page = (await v2.receive())["data"]
        cursor = {"channel": channel, "limit": 2, "cursor": page["next_cursor"]}
        await v2.send("channel_history", cursor)
        assert [row["serial"] for row in (await v2.receive())["data"]["items"]] == [3, 2]
        for wrong in ({"limit": 0}, {"direction": "x"}, {"cursor": "x"}, {"limit": "x"}):
            await v2.send("channel_history", {"channel": channel, **wrong})
            assert (await v2.receive())["event"] == "sockudo:error"
        await stranger.send("channel_history", {"channel": channel, "until_attach": True})
        assert (await stranger.receive())["event"] == "sockudo:error"
        await stranger.quiet()
        await v1.subscribe(channel)
        await v1.send("sockudo:channel_history", {"channel": channel})
        await v1.send("ping", {})
        frame = await v1.receive()
        assert frame["event"] in ("pusher:error", "pusher:pong"), "V2 only"
        await v2.quiet()


async def test_check_60_rewind(node: ChannelsNode, api: Api) -> None:
    """One frame per message as it is now (channels D4), oldest first, then `rewind_complete`."""
    channel = unique()
    ack = await api.publish(channel, "a")
    for fragment in "bcd":
        await api.mutate("append", channel, ack["message_serial"], data=fragment)
    item = await api.item(channel, ack["message_serial"])
    complete = {
        "historical_count": 1,
        "live_count": 0,
        "complete": True,
        "truncated_by_retention": False,
        "truncated_by_limit": False,
    }
    for mode in ("delta", "full"):
        for wish in (2, "2", {"count": 2}, {"seconds": 600}, {"duration_seconds": 600}):
            async with node.v2(append_mode=mode) as v2:
                head = await v2.subscribe(channel, rewind=wish)
                assert head["serial"] == 4
                frame = await v2.expect("sockudo:message.append", channel)
                assert (frame["data"], frame["name"]) == ("abcd", "chat.message")
                assert (frame["serial"], frame["stream_id"]) == (4, head["stream_id"])
                assert frame["extras"] == item["extras"]
                done = await v2.expect(":rewind_complete", channel)
                assert done["data"] == complete
                await v2.quiet()
    second = await api.publish(channel, "second")
    await api.mutate("update", channel, second["message_serial"], data="2nd")
    await api.mutate("append", channel, ack["message_serial"], data="e")
    await api.publish(channel, "third")
    async with node.v2() as v2:
        await v2.subscribe(channel, rewind=10)
        frames = [await v2.receive() for _ in range(3)]
        assert [frame["data"] for frame in frames] == ["abcde", "2nd", "third"]
        actions = [f"sockudo:message.{action}" for action in ("append", "update", "create")]
        assert [frame["event"] for frame in frames] == actions, "stored projections (channels D3)"
        assert {frame["name"] for frame in frames} == {"chat.message"}
        assert [frame["serial"] for frame in frames] == [7, 6, 8], "each its own"
        assert (await v2.expect(":rewind_complete", channel))["data"]["historical_count"] == 3
        await nothing_else(api, channel, v2)
    async with node.v2() as v2:
        await v2.subscribe(channel, rewind=2)
        assert [(await v2.receive())["data"] for _ in range(2)] == ["third", "m"]
        done = (await v2.expect(":rewind_complete", channel))["data"]
        assert (done["historical_count"], done["truncated_by_limit"]) == (2, False)
    nothing: Any
    for nothing in (0, "0", {"count": 0}, "x", {}, [], {"other": 1}, None):
        async with node.v2() as v2:
            await v2.subscribe(channel, rewind=nothing)
            await v2.quiet()


async def test_check_61_rewind_on_v1(node: ChannelsNode, api: Api) -> None:
    """It is an error and no subscription."""
    channel = unique()
    await api.publish(channel)
    async with node.v1() as v1, node.v2() as control:
        await v1.attach(channel, rewind=1)
        await v1.expect_denied(channel, 4300)
        await control.subscribe(channel)
        await nothing_else(api, channel, control)
        await v1.quiet()


async def test_check_62_resume(node: ChannelsNode, api: Api) -> None:
    """What was missed comes as it was sent, operation by operation, and then the summary."""
    channel = unique()
    for mode in ("delta", "full"):
        async with node.v2(append_mode=mode) as control:
            await control.subscribe(channel)
            async with node.v2(append_mode=mode) as first:
                await first.subscribe(channel)
                ack = await api.publish(channel, "Hel")
                last = await first.receive()
                assert last == await control.receive()
            serial = ack["message_serial"]
            await api.mutate("append", channel, serial, data="lo", extras={"headers": {"n": 1}})
            await api.mutate("update", channel, serial, data="new")
            await api.mutate("delete", channel, serial)
            live = [await control.receive() for _ in range(3)]
            for subscribed in (False, True):
                async with node.v2(append_mode=mode) as again:
                    if subscribed:
                        await again.subscribe(channel)
                    await again.resume(**{channel: position(last)})
                    replayed = [await again.receive() for _ in range(3)]
                    assert replayed == live
                    [recovered] = (summary := await again.resumed()).pop("recovered")
                    assert summary == {"failed": []}
                    assert recovered.pop("source") in ("hot", "cold")
                    assert recovered == {
                        "channel": channel,
                        "replayed": 3,
                        "position": position(live[-1]),
                    }
                    await again.quiet()
            async with node.v2(append_mode=mode) as current:
                await current.resume(**{channel: position(live[-1])})
                [recovered] = (await current.resumed())["recovered"]
                assert (recovered["replayed"], recovered["position"]) == (0, None)
                await api.publish(channel, "between")
                head = await current.subscribe(channel)
                frame = await current.receive()
                assert frame == await control.receive()
                assert head["serial"] in (frame["serial"], frame["serial"] - 1)
                await nothing_else(api, channel, current, control)


async def test_check_62_a_replayed_create_has_its_live_form(node: ChannelsNode, api: Api) -> None:
    """The published name and the data of then (channels D3), although the message has changed."""
    channel = unique()
    async with node.v2() as control:
        head = await control.subscribe(channel)
        ack = await api.publish(channel, "Hel", tags={"a": "b"}, extras={"headers": {"n": 1}})
        await api.mutate("append", channel, ack["message_serial"], data="lo")
        live = [await control.receive() for _ in range(2)]
        async with node.v2() as again:
            await again.resume(**{channel: {"serial": 0, "stream_id": head["stream_id"]}})
            assert [await again.receive() for _ in range(2)] == live
            assert live[0]["event"] == "chat.message"
            assert (await again.resumed())["recovered"][0]["replayed"] == 2


async def test_check_63_foreign_stream(node: ChannelsNode, api: Api) -> None:
    """`resume_failed` names the channel inside its data, and `resume_success` is still last."""
    channel, good = unique(), unique()
    stranger = "0f6e0000-0000-4000-8000-000000000000"
    async with node.v2() as v2:
        head = await v2.subscribe(channel)
        fine = await v2.subscribe(good)
        await api.publish(channel)
        await v2.receive()
        positions = {
            channel: {"serial": 0, "stream_id": stranger},
            good: {"serial": 0, "stream_id": fine["stream_id"]},
        }
        await v2.resume(**positions)
        data = await resume_failed(v2, channel)
        assert (data["code"], data["reason"]) == ("stream_reset", "stream_id_mismatch")
        assert data["expected_stream_id"] == stranger
        assert data["current_stream_id"] == head["stream_id"], "it is subscribed"
        summary = await v2.resumed()
        [failed] = summary["failed"]
        assert (failed["channel"], failed["code"]) == (channel, "stream_reset")
        [recovered] = summary["recovered"]
        assert (recovered["channel"], recovered["replayed"]) == (good, 0)
        await nothing_else(api, channel, v2)
        async with node.v2() as guess:  # channels D20: strangers are not told the token
            await guess.resume(**{channel: {"serial": 0, "stream_id": stranger}})
            data = await resume_failed(guess, channel)
            assert (data["code"], data["current_stream_id"]) == ("stream_reset", None)
            assert head["stream_id"] not in json.dumps(await guess.resumed())
            await guess.quiet()


async def test_check_64_gap_too_large(tmp_path: Path, spare_store: SpareStore) -> None:
    """One more than the buffer holds is not replayed, however much the store has."""
    small = {"max_buffer_size": 3}
    async with channels_server(tmp_path, await spare_store(), connection_recovery=small) as node:
        api, channel = node.api, unique()
        async with node.v2() as control:
            stream_id = (await control.subscribe(channel))["stream_id"]
            for n in range(4):
                await api.publish(channel, str(n))
            live = [await control.receive() for _ in range(4)]
        for is_subscribed in (False, True):
            async with node.v2() as v2:
                if is_subscribed:
                    await v2.subscribe(channel)
                await v2.resume(**{channel: {"serial": 0, "stream_id": stream_id}})
                data = await resume_failed(v2, channel)
                reason = "recovery_window_exceeded"
                assert (data["code"], data["reason"]) == ("position_expired", reason)
                summary = await v2.resumed()
                assert summary["recovered"] == []
                [failed] = summary["failed"]
                assert (failed["channel"], failed["code"]) == (channel, "position_expired")
                await v2.resume(**{channel: {"serial": 5, "stream_id": stream_id}})
                data = await resume_failed(v2, channel)
                assert data["code"] == "continuity_unverifiable", "ahead of the head"
                assert (await v2.resumed())["recovered"] == []
                await v2.resume(**{channel: {"serial": 1, "stream_id": stream_id}})
                assert [await v2.receive() for _ in range(3)] == live[1:]
                assert (await v2.resumed())["recovered"][0]["replayed"] == 3
                await v2.quiet()


async def test_check_65_sdk_between_resume_and_subscribe(node: ChannelsNode, api: Api) -> None:
    """The SDK resumes, then subscribes; what comes in between reaches it, once (channels D6)."""
    channel = unique("private-room")
    resumed, seen = asyncio.Event(), []
    arrived = asyncio.Event()
    is_second = False

    async def authorize(request: Any) -> ChannelAuthorizationData:
        if is_second:  # the SDK has sent its resume, and waits for us to subscribe
            await resumed.wait()
            await api.publish(channel, "between")
        return ChannelAuthorizationData(channel_auth(request.socket_id, request.channel_name))

    def note(data: Any, _: Any) -> None:
        seen.append(data)
        if data in ("first", "last"):
            arrived.set()

    handler = ChannelAuthorizationOptions(custom_handler=authorize)
    async with (
        asyncio.timeout(10),
        sdk_client(node, channel_authorization=handler, connection_recovery=True) as client,
    ):
        subscribed = asyncio.Event()
        room = client.subscribe(channel)
        room.bind("sockudo:subscription_succeeded", lambda *_: subscribed.set())
        for event in ("chat.message", "sockudo:message.append", "sockudo:message.update"):
            room.bind(event, note)
        client.bind("sockudo:resume_success", lambda *_: resumed.set())
        await subscribed.wait()
        ack = await api.publish(channel, "first")
        await arrived.wait()
        subscribed.clear()
        arrived.clear()
        is_second = True
        await client.disconnect()
        await api.publish(channel, "missed")
        await api.mutate("append", channel, ack["message_serial"], data="fragment")
        await api.mutate("update", channel, ack["message_serial"], data="updated")
        await client.connect()
        await subscribed.wait()
        await api.publish(channel, "last")
        await arrived.wait()
    assert seen == ["first", "missed", "fragment", "updated", "between", "last"]


async def test_check_66_recovery_off_and_no_positions(
    tmp_path: Path, spare_store: SpareStore
) -> None:
    """4301 where recovery is off, 4302 where nothing is asked for."""
    off = {"enabled": False}
    async with channels_server(tmp_path, await spare_store(), connection_recovery=off) as node:
        channel = unique()
        async with node.v2() as v2:
            head = await v2.subscribe(channel)
            assert {"stream_id", "serial"}.isdisjoint(head)
            assert head["data"] == '{"attach_serial":0}'
            await v2.resume(**{channel: {"serial": 0}})
            assert await v2.expect_error(4301) == (
                "Connection recovery is not enabled (setting channels.connection_recovery.enabled)"
            )
            await v2.quiet()


async def test_check_66_empty_positions(node: ChannelsNode) -> None:
    """The second half, with recovery on."""
    async with node.v2() as v2:
        nothing: Any
        for nothing in ({}, {"channel_positions": {}}, {"channel_serials": {}}, "{}"):
            await v2.send("resume", nothing)
            await v2.expect_error(4302)
        await v2.quiet()


async def test_check_67_terminate_and_force_reconnect(node: ChannelsNode) -> None:
    """All sockets of that user and no others; after 4200 the SDK comes back by itself."""
    config = Config(app_id=APP.id, key=APP.key, secret=APP.secret, port=node.port)
    ana, bo = unique("ana"), unique("bo")
    async with AsyncSockudo(config) as server, node.v2() as other:
        await other.signin(bo)
        async with node.v1() as one, node.v2() as two:
            await one.signin(ana)
            await two.signin(ana)
            result = await server.terminate_user_connections(ana)
            assert (result.status_code, result.message) == (200, '{"ok":true}')
            await one.expect_close(4009)
            await two.expect_close(4009)
        async with node.v2() as again:
            await again.signin(ana)
            result = await server.force_reconnect_user(ana)
            assert (result.status_code, result.message) == (200, '{"ok":true}')
            await again.expect_close(4200)
        states: list[str] = []
        hellos: list[Any] = []
        async with asyncio.timeout(10), sdk_client(node, json.dumps({"id": ana})) as client:
            client.bind_global(lambda name, _: states.append(name))
            client.bind("hello", lambda data, _: hellos.append(data))
            await client.signin()
            for greeting in ("before", "after"):  # until the sign-in has subscribed its channel
                while greeting not in hellos:
                    await server.send_to_user(ana, "hello", greeting)
                    await asyncio.sleep(0.01)
                if greeting == "before":
                    socket_id = client.socket_id
                    await server.force_reconnect_user(ana)
                    await until(lambda: "reconnecting" in states and "connected" in states)
                    assert client.socket_id != socket_id
            await server.terminate_user_connections(ana)
            await until(lambda: client.connection_state is ConnectionState.DISCONNECTED)
        await other.quiet()


@pytest.mark.inside
async def test_check_68_errors(node: ChannelsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected failure says nothing of itself; every error is JSON with its status."""
    api, channel = node.api, unique()
    ack = await api.publish(channel)
    service: Any = node.surface.service

    def fail_at_once(*_: object, **__: object) -> None:
        raise RuntimeError("secret internals: /var/lib/x SELECT * FROM entry")

    async def fail(*_: object, **__: object) -> None:
        fail_at_once()

    with monkeypatch.context() as broken:
        for name in ("begin_publish", "begin_mutation"):
            broken.setattr(service, name, fail_at_once)
        for name in ("item", "versions"):
            broken.setattr(service.messages, name, fail)
        broken.setattr(service.history_api, "page", fail)
        responses = [
            await api.get(message_path(channel, ack["message_serial"])),
            await api.get(f"{message_path(channel, ack['message_serial'])}/versions"),
            await api.get(f"{channel_path(channel)}/history"),
            await api.events(channel, data="x"),
            await api.try_mutate("append", channel, ack["message_serial"], data="x"),
        ]
    for response in responses:
        assert refused(response, 500, "internal_error") == "Internal server error"
        assert "secret" not in response.text + str(response.headers)
    base = node.api.url
    for method, path in (
        ("GET", "/no/such/route"),
        ("GET", "/apps/tide/no-such-route?auth_key=x"),
        ("DELETE", "/apps/tide/events?auth_key=x"),
        ("GET", f"/apps/tide/channels/{channel}/messages/x/y/z?auth_key=x"),
        ("POST", "/apps/tide/events"),
        ("POST", "/apps/%ff/events?auth_key=x"),
    ):
        response = await node.client.request(method, base + path)
        assert 400 <= response.status_code < 500
        assert response.headers["content-type"].startswith("application/json")
        body = response.json()
        assert body["status"] == response.status_code
        assert isinstance(body["error"], str)
        assert isinstance(body["code"], str)
