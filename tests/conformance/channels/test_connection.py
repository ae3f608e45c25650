"""Checks 1-7 of the channels contract: the handshake, its parameters, and broken frames."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from support.channels.peer import (
    APP,
    CLOSED,
    UUID4,
    V1_QUERY,
    V2_QUERY,
    Api,
    ChannelsNode,
    Peer,
    channels_server,
    unique,
)
from tidelog.channels.settings import App

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOCKET_ID = re.compile(r"(\d+)\.(\d+)")


async def upgrade_status(node: ChannelsNode, query: str) -> int:
    """The status an upgrade is answered with; 101 if it is accepted."""
    try:
        async with connect(node.url(query), compression=None, ping_interval=None):
            return 101
    except InvalidStatus as refusal:
        response = refusal.response
    body = json.loads(response.body)
    assert body.pop("error")
    expected = {"code": "invalid_input", "status": response.status_code}
    if "rollup" in query:
        expected |= {"code": "ai_rollup_window_invalid", "ai_code": 104004}
    assert body == expected
    return response.status_code


async def assert_handshake(peer: Peer) -> str:
    """The first frame is right; returns the socket id."""
    frame = await peer.receive()
    message_id = frame.pop("message_id", None)
    data = frame.pop("data")
    assert frame == {"event": f"{peer.prefix}:connection_established"}
    assert isinstance(data, str)
    content = json.loads(data)
    socket_id: str = content.pop("socket_id")
    assert content == {"activity_timeout": 120}
    assert '"activity_timeout":120}' in data, "a whole number, as pusher-js reads it"
    match = SOCKET_ID.fullmatch(socket_id)
    assert match
    assert all(0 <= int(part) <= 10**10 for part in match.groups())
    if peer.is_v2:
        assert UUID4.fullmatch(message_id or "")
    else:
        assert message_id is None
    return socket_id


async def test_check_01_v1_handshake(node: ChannelsNode) -> None:
    """Name, string data, socket id, timeout of 120 s, no message id; ids are unique."""
    seen = set()
    for query in (V1_QUERY, "", "client=js", "protocol=5", "protocol=1&format=json", V1_QUERY):
        async with node.open(query) as peer:
            seen.add(await assert_handshake(peer))
            await peer.quiet()
    assert len(seen) == 6


async def test_check_02_v2_handshake(node: ChannelsNode) -> None:
    """The same with `sockudo:` and a message id; bare `protocol=2` is enough."""
    seen = set()
    for query in (V2_QUERY, "protocol=2", f"{V2_QUERY}&echo_messages=true&append_mode=delta"):
        async with node.open(query, protocol=2) as peer:
            seen.add(await assert_handshake(peer))
            await peer.quiet()
    assert len(seen) == 3


async def test_check_03_bad_mode_and_format(node: ChannelsNode) -> None:
    """V2 refuses unknown modes and formats before the upgrade, V1 does not read them."""
    for wrong in ("append_mode=snapshot", "format=xml"):
        assert await upgrade_status(node, f"protocol=2&{wrong}") == 400
        assert await upgrade_status(node, f"protocol=7&{wrong}") == 101
    assert await upgrade_status(node, "protocol=2&append_mode=snapshot&format=xml") == 400
    assert await upgrade_status(node, "protocol=7&append_mode=snapshot&format=xml") == 101
    for right in ("append_mode=", "append_mode=full", "append_mode=delta", "format=", "unknown=1"):
        assert await upgrade_status(node, f"protocol=2&{right}") == 101
    for wrong in ("echo_messages=maybe", "echo_messages=1"):
        assert await upgrade_status(node, f"protocol=2&{wrong}") == 400
    assert await upgrade_status(node, "protocol=two") == 400


async def test_check_04_rollup_window(node: ChannelsNode) -> None:
    """Only the windows of the table are accepted."""
    for window in (0, 20, 40, 100, 500):
        assert await upgrade_status(node, f"protocol=2&append_rollup_window={window}") == 101
    for wrong in ("60", "-20", "x", "40.0"):
        assert await upgrade_status(node, f"protocol=2&append_rollup_window={wrong}") == 400
    assert await upgrade_status(node, "protocol=7&append_rollup_window=60") == 101


async def test_check_05_unknown_key(node: ChannelsNode) -> None:
    """The upgrade succeeds, an error frame says 4001, and so does the close (channels D15)."""
    unknown = App(id="x", key="no-such-key", secret="x")
    for app, code in ((unknown, 4001), (CLOSED, 4003)):
        for query, protocol in ((V1_QUERY, 1), (V2_QUERY, 2)):
            async with node.open(query, app, protocol) as peer:
                await peer.expect_error(code)
                assert await peer.closed() == code


async def test_check_06_ping(node: ChannelsNode) -> None:
    """The pong has the protocol's prefix and neither data nor message id."""
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            data: Any
            for event in ("pusher:ping", "sockudo:ping"):
                for data in (None, {}, "{}"):
                    await peer.send(event, data)
                    assert await peer.receive() == {"event": f"{peer.prefix}:pong"}
            await peer.send("pong", {})
            await peer.quiet()


async def test_check_07_broken_frames(node: ChannelsNode, api: Api) -> None:
    """A broken frame is answered with 4000, an unknown event with nothing; both go on."""
    channel = unique()
    async with node.v1() as v1, node.v2() as v2:
        for peer in (v1, v2):
            for broken in ("{", "", "[]", '"x"', '{"data":{}}', '{"event":7}', '{"event":null}'):
                await peer.socket.send(broken)
                await peer.expect_error(4000)
            for event in ("pusher:no_such_event", "sockudo:message.update", "whatever"):
                await peer.send(event, {"channel": channel}, channel=channel)
                await peer.quiet()
            await peer.subscribe(channel)
        await api.publish(channel, "still here")
        assert (await v1.receive())["data"] == "still here"
        assert (await v2.receive())["data"] == "still here"


# Beyond the numbered checks.


async def test_a_message_of_more_than_64_kib_closes_with_1009(node: ChannelsNode) -> None:
    """65536 bytes are read, one more is not."""
    async with node.v1() as peer:
        await peer.socket.send('{"event":"x"}'.ljust(65_536))
        await peer.quiet()
        await peer.socket.send('{"event":"x"}'.ljust(65_537))
        assert await peer.closed() == 1009


@pytest.mark.one_front
async def test_one_connection_too_many_is_closed_with_4004(
    tmp_path: Path,
) -> None:
    """The quota is the app's: another app still connects; a place that is left is free again."""
    small = App(id="small", key="small-key", secret="s", max_connections=1)
    async with channels_server(tmp_path, apps=(small, APP)) as node:
        async with node.v1(small):
            async with node.open(V2_QUERY, small, 2) as second:
                await second.expect_error(4004)
                assert await second.closed() == 4004
            async with node.v1():
                pass
        for _ in range(100):
            async with node.open(V1_QUERY, small) as again:
                if (await again.receive())["event"] == "pusher:connection_established":
                    return
        pytest.fail("the place was never free again")


async def test_heartbeat_of_a_silent_socket(
    tmp_path: Path,
) -> None:
    """V1 is sent `pusher:ping`, V2 a WebSocket ping; an answer keeps them, silence closes 4201."""
    async with channels_server(
        tmp_path, activity_timeout_seconds=0.1, pong_timeout_seconds=0.2
    ) as node:
        async with node.v1() as v1, node.v2() as v2, node.v1() as silent:

            async def answer() -> None:
                for _ in range(2):
                    assert await v1.receive() == {"event": "pusher:ping"}
                    await v1.send("pusher:pong", {})
                await v1.quiet()

            async def say_nothing() -> None:
                assert await silent.receive() == {"event": "pusher:ping"}
                await silent.expect_close(4201)

            # The library of the V2 peer answers the pings by itself.
            await asyncio.gather(answer(), say_nothing())
            await v2.quiet()
        async with node.v2() as deaf:
            deaf.socket.transport.pause_reading()
            await asyncio.sleep(0.6)
            deaf.socket.transport.resume_reading()
            await deaf.expect_close(4201)


@pytest.mark.inside
async def test_an_orderly_stop_asks_sockets_to_come_back(tmp_path: Path) -> None:
    """A server that stops closes with 4200: at 1001 some SDKs never come back."""
    async with channels_server(tmp_path) as node, node.v1() as v1, node.v2() as v2:
        node.server.stop()
        assert (await v1.closed(), await v2.closed()) == (4200, 4200)


async def test_a_plain_request_to_the_socket_path(node: ChannelsNode) -> None:
    """Without an upgrade the answer is an error in JSON, not a socket and not a server error."""
    response = await node.client.get(f"{node.api.url}/app/{APP.key}?{V1_QUERY}")
    assert 400 <= response.status_code < 500
    assert response.json()["status"] == response.status_code


@pytest.mark.one_node
async def test_frames_of_one_app_do_not_reach_another(node: ChannelsNode, api: Api) -> None:
    """Channels of the same name in two apps have nothing in common."""
    channel = unique()
    async with node.v1(node.plain.app) as other, node.v1() as own:
        await other.subscribe(channel)
        await own.subscribe(channel)
        await api.publish(channel, "mine")
        assert (await own.receive())["data"] == "mine"
        await other.quiet()
        ack = await node.plain.publish(channel, "theirs")
        assert (ack["delivery_serial"], ack["subscription_count"]) == (1, 1)
        assert (await other.receive())["data"] == "theirs"
        await own.quiet()
