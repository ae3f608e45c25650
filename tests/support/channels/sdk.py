"""The client SDK, configured for a server on the loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sockudo_python import (
    ChannelAuthorizationData,
    ChannelAuthorizationOptions,
    SockudoClient,
    SockudoOptions,
    SockudoTransport,
    UserAuthenticationData,
    UserAuthenticationOptions,
)

from support.channels.peer import APP, WAIT_SECONDS, ChannelsNode, channel_auth, signin_auth


def sdk_options(node: ChannelsNode, user_data: str = "", **options: Any) -> SockudoOptions:
    """Options that sign by themselves, without an endpoint of an application."""

    async def authorize(request: Any) -> ChannelAuthorizationData:
        return ChannelAuthorizationData(channel_auth(request.socket_id, request.channel_name))

    async def authenticate(request: Any) -> UserAuthenticationData:
        return UserAuthenticationData(signin_auth(request.socket_id, user_data), user_data)

    whole = {
        "cluster": "local",
        "force_tls": False,
        "enabled_transports": [SockudoTransport.WS],
        "ws_host": "127.0.0.1",
        "ws_port": node.port,
        "channel_authorization": ChannelAuthorizationOptions(custom_handler=authorize),
        "user_authentication": UserAuthenticationOptions(custom_handler=authenticate),
        **options,
    }
    return SockudoOptions(**whole)


@asynccontextmanager
async def sdk_client(
    node: ChannelsNode, user_data: str = "", **options: Any
) -> AsyncIterator[SockudoClient]:
    """A connected client; it is disconnected when the block ends."""
    client = SockudoClient(APP.key, sdk_options(node, user_data, **options))
    connected = asyncio.Event()
    client.bind("connected", lambda *_: connected.set())
    await client.connect()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await connected.wait()
        yield client
    finally:
        await client.disconnect()
