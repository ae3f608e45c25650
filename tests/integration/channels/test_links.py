"""Channels are the same to their clients whatever connects their halves."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import (
    ChannelsNode,
    Peer,
    channel_path,
    channels_server,
    message_path,
    ok,
    refused,
    token,
    until,
)
from tidelog.channels.decide.registry import Departure, Registry
from tidelog.link import bounds
from tidelog.link.choice import VARIABLE

ADMIN = {"authorization": "Bearer secret"}
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
COMPLETE = {"ai": {"transport": {"status": "complete"}}}


@pytest.fixture(params=["encoded", "apart"])
def link(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The links that only data can cross."""
    chosen: str = request.param
    monkeypatch.setenv(VARIABLE, chosen)
    return chosen


async def texts(peer: Peer, count: int) -> list[Any]:
    """The data of the next frames."""
    return [(await peer.receive()).get("data") for _ in range(count)]


async def test_everything_that_channels_do_crosses_the_link(link: str, tmp_path: Path) -> None:
    """Publishes, streams, live events, presence, history, resume, erasure, revocation."""
    del link
    async with (
        channels_server(tmp_path, admin_token="secret") as node,
        node.v2() as peer,
        node.v2(append_mode="full") as full,
        node.v1() as old,
    ):
        api = node.api
        head = await peer.subscribe("room")
        for each in (full, old):
            await each.subscribe("room")
        ack = await api.publish("room", "a", extras=STREAMING)
        assert (ack["history_serial"], ack["delivery_serial"]) == (1, 1)
        serial = ack["message_serial"]
        for text in "bc":
            await api.mutate("append", "room", serial, data=text, op_id=text)
        again = await api.mutate("append", "room", serial, data="c", op_id="c")
        assert again["status"] == "duplicate"
        conflict = await api.try_mutate("append", "room", serial, data="d", op_id="c")
        refused(conflict, 400, "invalid_input")
        await api.mutate("update", "room", serial, extras=COMPLETE)
        assert await texts(peer, 4) == ["a", "b", "c", "abc"]
        assert await texts(full, 4) == ["a", "ab", "abc", "abc"]
        assert await texts(old, 1) == ["a"]
        refused(await api.try_mutate("append", "room", "none", data="x"), 404, "not_found")

        batch = [{"name": "n", "channel": "room", "data": text} for text in "de"]
        first = ok(await api.post("/batch_events", {"batch": batch}))
        assert first == {}
        ok(await api.events("room", data="f", extras={"ephemeral": True}))
        for each in (peer, full, old):
            assert await texts(each, 3) == ["d", "e", "f"]
        ok(await api.post(f"{message_path('room', serial)}/summary", {}))
        for each in (peer, full):
            assert (await each.receive())["event"] == "sockudo:message.summary"

        async with node.v2() as late:
            await late.subscribe("room", rewind=2)
            assert await texts(late, 2) == ["d", "e"]
            await late.expect(":rewind_complete", "room")
            await late.resume(room={"serial": 2, "stream_id": head["stream_id"]})
            assert await texts(late, 4) == ["c", "abc", "d", "e"]
            assert [each["channel"] for each in (await late.resumed())["recovered"]] == ["room"]
        async with node.v2() as ana, node.v2() as bo:
            await ana.subscribe("presence-x", {"user_id": "ana"})
            await bo.subscribe("presence-x", {"user_id": "bo"})
            await ana.expect("_member_added", "presence-x")
            await ana.send("client-wave", {"k": 1}, channel="presence-x")
            assert (await bo.expect("client-wave", "presence-x"))["user_id"] == "ana"
            counted = ok(await api.get(channel_path("presence-x"), info="user_count"))
            assert counted["user_count"] == 2
        async with node.v2(token=token("cy", jti="t")) as revoked:
            answer = ok(await api.post("/revocations", {"jti": "t"}))
            assert answer["closed_connections"] == 1
            await revoked.expect(":token_expired")

        assert [row["serial"] for row in (await api.history("room"))["items"]] == [3, 2, 1]
        open_stream = (await api.publish("room", "open", extras=STREAMING))["message_serial"]
        body = {"app_id": "tide", "channel": "room", "message_serial": open_stream}
        url = f"{node.server.url}/channels/admin/streams"
        closed = await node.client.post(f"{url}/close", json=body, headers=ADMIN)
        assert closed.json() == {"closed": True}
        assert (await node.client.get(url, headers=ADMIN)).json()["streams"] == []
        forget = {"channel": "room", "message_serial": serial, "reason": "r"}
        assert ok(await api.post("/forget", forget)) == {"ok": True, "complete": True}
        refused(await api.get(message_path("room", serial)), 404, "not_found")
        reset = {"confirm_channel": "room", "confirm_operation": "reset", "reason": "r"}
        answer = ok(await api.post(f"{channel_path('room')}/history/reset", reset))
        assert answer["previous_stream_id"] == head["stream_id"]
        await api.publish("room", "last")
        while (frame := await peer.receive()).get("data") != "last":
            pass
        assert frame["stream_id"] == answer["new_stream_id"]


def misregistered(node: ChannelsNode) -> dict[str, Any]:
    """Channels of which the owner's registry says something else than the front has."""
    registry, hub = node.surface.owner.registrar.registry, node.surface.service.hub
    wrong: dict[str, Any] = {}
    for stream in {*registry.streams(""), *(stream for stream, _ in hub.counts())}:
        channel = hub.channel(stream)
        subscriptions = {} if channel is None else channel.subscriptions
        members = {} if channel is None else channel.members
        users = {each.member.user_id for each in subscriptions.values() if each.member is not None}
        here = len(subscriptions), members
        known = registry.count(stream), registry.members(stream)
        if here != known or users != set(members):
            wrong[stream] = here, known, users
    return wrong


async def come_and_go(node: ChannelsNode) -> None:
    """Sockets of three users on channels with members and without, and all of them leave."""
    rooms = [("room", False), ("private-room", False), ("presence-a", True), ("presence-b", True)]
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(node.v2()) for _ in range(6)]
        for round_ in range(3):
            for number, peer in enumerate(peers):
                for room, has_members in rooms[number % 2 :]:
                    user = {"user_id": f"u{number % 3}", "user_info": round_}
                    await peer.attach(room, user if has_members else None)
            for room, has_members in rooms:
                info = {"user_info": f"of {round_}"}
                if has_members:
                    await peers[1].send("presence_update", info, channel=room)
                await peers[round_].send("unsubscribe", {"channel": room})
            for peer in peers:
                await peer.send("ping", {})
                while (await peer.receive())["event"] != "sockudo:pong":
                    pass
    await until(lambda: not node.surface.service.hub.counts())
    ok(await node.api.get("/channels"))  # the owner has heard all of it before this


@pytest.mark.parametrize("link", ["", "encoded", "apart"])
async def test_the_owner_knows_who_is_there(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are there, and when all have left; a stale registry is found out."""
    monkeypatch.setenv(VARIABLE, link)
    async with channels_server(tmp_path) as node:
        await come_and_go(node)
        assert misregistered(node) == {}
        async with node.v2() as ana, node.v2() as bo:
            for peer, user in ((ana, "ana"), (bo, "bo")):
                await peer.subscribe("presence-a", {"user_id": user})
                await peer.subscribe("room")
            await until(lambda: not misregistered(node))
        await until(lambda: not misregistered(node))
        leave = Registry.leave

        def forgetful(registry: Registry[Any], front: Any, stream: str, user_id: str) -> Departure:
            if user_id == "u0":
                return Departure(is_last=False, is_last_here=False)
            return leave(registry, front, stream, user_id)

        monkeypatch.setattr(Registry, "leave", forgetful)
        await come_and_go(node)
        assert misregistered(node)


@pytest.mark.parametrize("has_history", [True, False])
async def test_who_cannot_be_told_of_all_members_is_none(
    link: str, has_history: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message has its bound, and whoever is let in is told of everybody, or is not there."""
    del link
    room, info = "presence-a", "x" * 2000
    async with (
        channels_server(tmp_path, history={"enabled": has_history}) as node,
        node.v2() as ana,
        node.v2() as bo,
    ):
        await ana.subscribe(room, {"user_id": "ana", "user_info": info})
        with monkeypatch.context() as small:
            small.setattr(bounds, "MAX_MESSAGE_BYTES", 4000)
            await bo.attach(room, {"user_id": "bo", "user_info": info})
            await bo.expect_close(4100)
        users = ok(await node.api.get(f"{channel_path(room)}/users"))["users"]
        assert users == [{"id": "ana"}]
        await ana.quiet()
        assert misregistered(node) == {}


async def test_a_channel_that_nobody_is_subscribed_to_is_not_followed(
    link: str, tmp_path: Path
) -> None:
    """The owner holds no state for it, and a front without hot buffers is not sent its entries."""
    del link
    recovery = {"enabled": False}
    async with channels_server(tmp_path, connection_recovery=recovery) as node:
        [front] = node.surface.owner._fronts
        async with node.v2() as peer:
            await peer.subscribe("room")
            await node.api.publish("other", "x")
            await node.api.publish("room", "y")
            assert (await peer.receive())["data"] == "y"
            assert [*front._held] == ["channels/tide/room"]
            await peer.send("unsubscribe", {"channel": "room"})
            await until(lambda: not front._held)
            await node.api.publish("room", "z")
            await peer.subscribe("room")
            await node.api.publish("room", "!")
            assert (await peer.receive())["data"] == "!"
        await until(lambda: not front._held)
        assert node.surface.service.link.position == node.server.committer.tail.position


async def test_a_text_does_not_miss_what_came_while_nobody_was_subscribed(
    tmp_path: Path,
) -> None:
    """A front that was not sent the appends in between does not send the text without them."""
    recovery = {"enabled": False}
    async with (
        channels_server(tmp_path, connection_recovery=recovery) as node,
        node.v2(append_mode="full") as peer,
    ):
        [front] = node.surface.owner._fronts
        await peer.subscribe("room")
        serial = (await node.api.publish("room", "a", extras=STREAMING))["message_serial"]
        await node.api.mutate("append", "room", serial, data="b")
        assert await texts(peer, 2) == ["a", "ab"]
        await peer.send("unsubscribe", {"channel": "room"})
        await until(lambda: not front._held)
        await node.api.mutate("append", "room", serial, data="c")
        await peer.subscribe("room")
        for text in "de":
            await node.api.mutate("append", "room", serial, data=text)
        assert await texts(peer, 2) == ["abcd", "abcde"]


async def test_what_is_held_up_is_told_and_tried_again(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails and a full queue are the same refusals as without a link."""
    from tidelog.base.errors import QueueFull, StoreUnavailable

    del link
    async with channels_server(tmp_path) as node, node.v2() as peer:
        await peer.subscribe("room")
        with monkeypatch.context() as broken:

            def full(request: Any) -> None:
                raise QueueFull(f"no room for {type(request).__name__}")

            broken.setattr(node.server.committer, "submit", full)
            response = await node.api.events("room")
            assert "no room" in refused(response, 503, "backpressure")
        with monkeypatch.context() as broken:

            async def fail(*_: Any) -> None:
                raise StoreUnavailable("injected")

            broken.setattr(node.server.store.writer, "commit", fail)
            refused(await node.api.events("room"), 503, "service_unavailable")
        ok(await node.api.events("room", data="z"))
        assert json.loads(json.dumps((await peer.receive())["data"])) == "z"
        states = node.surface.owner.states
        assert [state.pins for state in states._channels.values()] == [1], "its subscriber's"


async def test_a_request_that_cannot_be_sent_is_refused_alone(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is too large, and nothing of it is done."""
    del link
    monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 4000)
    async with channels_server(tmp_path) as node:
        refusal = refused(await node.api.events("room", data="x" * 4000), 413, "payload_too_large")
        assert refusal.startswith("the request was not taken: it is too large")
        serial = (await node.api.publish("room", "a"))["message_serial"]
        large = await node.api.try_mutate("append", "room", serial, data="x" * 4000)
        refused(large, 413, "payload_too_large")
        assert len((await node.api.history("room"))["items"]) == 1
