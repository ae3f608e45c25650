"""The client SDK, unmodified, in every way the channels contract says it is used (channels 9)."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from sockudo_http_python import AsyncSockudo, Config, PresenceUser
from sockudo_python import (
    ChannelAuthorizationData,
    ChannelAuthorizationOptions,
    ChannelHistoryOptions,
    ChannelHistoryParams,
    SockudoClient,
    SockudoException,
    SubscriptionOptions,
    SubscriptionRewind,
    VersionedMessageOptions,
)

from support.channels.peer import APP, Api, ChannelsNode, channels_server, token, unique, until
from support.channels.sdk import sdk_client

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ConnectionClosed:DeprecationWarning"),  # in sockudo-python
]

MASTER_KEY = base64.b64encode(bytes(range(32))).decode()
PROXY_TOKEN = "a token only for tests"


def server_sdk(node: ChannelsNode) -> AsyncSockudo:
    """The server SDK with a key for encrypted channels."""
    config = Config(app_id=APP.id, key=APP.key, secret=APP.secret, port=node.port)
    config.encryption_master_key_base64 = MASTER_KEY
    return AsyncSockudo(config)


def authorized_by(server: AsyncSockudo, user: PresenceUser | None = None) -> Any:
    """An application's endpoint, which signs with the server SDK."""

    async def authorize(request: Any) -> ChannelAuthorizationData:
        answer = server.authenticate(request.socket_id, request.channel_name, user)
        return ChannelAuthorizationData(**json.loads(answer))

    return ChannelAuthorizationOptions(custom_handler=authorize)


async def subscribed(client: SockudoClient, channel: str, **options: Any) -> Any:
    """A channel of the SDK that is subscribed."""
    room = client.subscribe(channel, SubscriptionOptions(**options) if options else None)
    await until(lambda: room.is_subscribed)
    return room


@pytest.mark.parametrize("version", [1, 2])
async def test_events_and_client_events(node: ChannelsNode, api: Api, version: int) -> None:
    """Both protocols of the SDK: what is published arrives, what is triggered reaches others."""
    channel = unique("private-room")
    seen: list[Any] = []
    async with (
        sdk_client(node, protocol_version=version) as client,
        node.v1() as other,
    ):
        await other.subscribe(channel)
        room = await subscribed(client, channel)
        room.bind("chat.message", lambda data, _: seen.append(data))
        await api.publish(channel, {"text": "hi"})
        await until(lambda: seen)
        assert seen == [{"text": "hi"}]
        await other.expect("chat.message", channel)
        assert await room.trigger("client-typing", {"on": True})
        frame = await other.expect("client-typing", channel)
        assert frame["data"] == {"on": True}
        await client.unsubscribe(channel)
        await api.publish(channel, "after")
        await other.expect("chat.message", channel)
    assert len(seen) == 1


@pytest.mark.parametrize("version", [1, 2])
async def test_encrypted_channels(node: ChannelsNode, version: int) -> None:
    """The server passes the ciphertext through untouched."""
    channel = unique("private-encrypted-room")
    seen: list[Any] = []
    async with (
        server_sdk(node) as server,
        sdk_client(
            node, protocol_version=version, channel_authorization=authorized_by(server)
        ) as client,
        node.v2() as plain,
    ):
        await plain.subscribe(channel)
        room = await subscribed(client, channel)
        room.bind("secret", lambda data, _: seen.append(data))
        assert (await server.trigger(channel, "secret", {"text": "for you"})).ok
        await until(lambda: seen)
        assert seen == [{"text": "for you"}]
        assert set(json.loads((await plain.receive())["data"])) == {"nonce", "ciphertext"}


@pytest.mark.parametrize("version", [1, 2])
async def test_presence(node: ChannelsNode, version: int) -> None:
    """The SDK's list of members follows who comes and goes."""
    channel = unique("presence-lab")
    me = PresenceUser("ana", {"n": 1})
    async with (
        server_sdk(node) as server,
        sdk_client(
            node, protocol_version=version, channel_authorization=authorized_by(server, me)
        ) as client,
    ):
        room = await subscribed(client, channel)
        assert (room.members.count, room.members.me.id, room.members.me.info) == (
            1,
            "ana",
            {"n": 1},
        )
        async with node.v2() as bo:
            await bo.subscribe(channel, {"user_id": "bo", "user_info": {"n": 2}})
            await until(lambda: room.members.count == 2)
            assert room.members.member("bo").info == {"n": 2}
            if version == 2:
                assert await room.update({"n": 3})
                frame = await bo.expect("_presence_update", channel)
                assert "3" in json.dumps(frame["data"])
                await until(lambda: room.members.member("ana").info == {"n": 3})
        await until(lambda: room.members.count == 1)
        assert room.members.member("bo") is None


async def test_rewind(node: ChannelsNode, api: Api) -> None:
    """Its own way to ask for the past."""
    channel = unique()
    for n in range(3):
        await api.publish(channel, f"m{n}")
    for rewind, expected in (
        (SubscriptionRewind.count_messages(2), ["m1", "m2"]),
        (SubscriptionRewind.seconds_back(600), ["m0", "m1", "m2"]),
    ):
        seen: list[Any] = []
        done: list[Any] = []
        async with sdk_client(node) as client:
            room = client.subscribe(channel, SubscriptionOptions(rewind=rewind))
            room.bind("sockudo:message.create", lambda data, _, seen=seen: seen.append(data))
            room.bind("sockudo:rewind_complete", lambda data, _, done=done: done.append(data))
            await until(lambda done=done: done)
        assert seen == expected
        assert done[0]["historical_count"] == len(expected)


async def test_tokens_are_renewed(tmp_path: Path) -> None:
    """`token_expired` makes the SDK ask its callback and send `sockudo:auth`."""
    made: list[str] = []
    events: list[str] = []
    everything = {"*": ["subscribe"]}

    def callback() -> str:
        life = 1 if not made else 3600
        made.append(token("ana", everything, exp=int(time.time()) + life))
        return made[-1]

    async with (
        channels_server(tmp_path, token_grace_seconds=5) as node,
        asyncio.timeout(10),
        sdk_client(node, auth_callback=callback) as client,
    ):
        client.bind_global(lambda name, _: events.append(name))
        room = await subscribed(client, unique())
        await until(lambda: "sockudo:auth_success" in events)
        assert len(made) >= 2
        seen: list[Any] = []
        room.bind("chat.message", lambda data, _: seen.append(data))
        await node.api.publish(room.name, "still here")
        await until(lambda: seen)


async def test_proxy(tmp_path: Path) -> None:
    """`channel.history()` and `versioned_messages` through the helper of channels 9.2."""
    async with channels_server(tmp_path, proxy_enabled=True, proxy_token=PROXY_TOKEN) as node:
        api, channel = node.api, unique()
        endpoint = f"{node.api.url}/proxy/{APP.id}"
        headers = {"Authorization": f"Bearer {PROXY_TOKEN}"}
        history = ChannelHistoryOptions(f"{endpoint}/history", headers)
        messages = VersionedMessageOptions(f"{endpoint}/messages", headers)
        for n in range(3):
            await api.publish(channel, f"m{n}")
        async with sdk_client(node, channel_history=history, versioned_messages=messages) as client:
            room = await subscribed(client, channel)
            frames: list[Any] = []
            for action in ("append", "update", "delete"):
                room.bind(f"sockudo:message.{action}", lambda data, _: frames.append(data))
            ack = await room.create_versioned_message("chat.message", "Hel")
            serial = ack.raw["message_serial"]
            assert (ack.action, ack.channel, ack.message_id) == ("create", channel, serial)
            assert (ack.history_serial, ack.delivery_serial) == (4, 4)
            ack = await room.append_versioned_message(serial, "lo")
            assert (ack.action, ack.delivery_serial, ack.message_id) == ("append", 5, serial)
            ack = await room.update_versioned_message(serial, "new text")
            assert (ack.action, ack.delivery_serial) == ("update", 6)
            ack = await client.versioned_messages.delete(channel, serial, reason="spam")
            assert (ack.action, ack.delivery_serial, ack.history_serial) == ("delete", 7, 4)
            assert ack.raw["message_serial"] == serial
            await until(lambda: len(frames) == 3)
            assert frames == ["lo", "new text", "new text"]
            item = await api.item(channel, serial)
            assert (item["action"], item["version"]["description"]) == ("delete", "spam")
            page = await room.history(ChannelHistoryParams(until_attach=True, limit=2))
            assert [row["serial"] for row in page.items] == [3, 2]
            assert (page.has_more, page.attach_serial, page.limit) == (True, 3, 2)
            page = await page.next()
            assert [row["serial"] for row in page.items] == [1]
            whole = await room.history(ChannelHistoryParams(direction="oldest_first"))
            assert [row["serial"] for row in whole.items] == [1, 2, 3, 4]
            with pytest.raises(SockudoException, match="400"):
                await client.versioned_messages.append(channel, serial, "")
            client.config.channel_history.headers = {}
            with pytest.raises(SockudoException, match="401"):
                await room.history()
