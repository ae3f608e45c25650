"""A real server process with an application, and the two Python SDKs configured for it.

The client SDK gets its auth strings from the HTTP SDK, as it would from an application's endpoint.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from sockudo_http_python import AsyncSockudo, PresenceUser, Result
from sockudo_http_python import SockudoOptions as HttpOptions
from sockudo_python import (
    ChannelAuthorizationData,
    ChannelAuthorizationOptions,
    ChannelHistoryOptions,
    SockudoChannel,
    SockudoClient,
    SockudoOptions,
    SockudoTransport,
    UserAuthenticationData,
    UserAuthenticationOptions,
    VersionedMessageOptions,
)

from support.channels.peer import APP
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 60.0
PROXY_TOKEN = "a proxy token of some length"

CONFIG = f"""
[[apps]]
id = "{APP.id}"
key = "{APP.key}"
secret = "{APP.secret}"
enable_client_messages = true
enable_user_authentication = true

[channels]
proxy_enabled = true
proxy_token = "{PROXY_TOKEN}"

[channels.versioned_messages]
enabled = true

[channels.connection_recovery]
max_buffer_size = 500
"""

Heard = list[tuple[str, Any]]
"""Events of a channel with their data, in the order of their callbacks."""


class Listening(Protocol):
    """A server or a relay before one."""

    @property
    def port(self) -> int:
        """Where it listens."""
        ...


def channels_process(
    directory: Path, store: str | None = None, environment: Mapping[str, str] | None = None
) -> ServerProcess:
    """A process, not started, that serves `APP` with versioned messages and the helper proxy."""
    config = directory / "tidelog.toml"
    config.write_text(CONFIG, encoding="utf-8")
    return ServerProcess(
        data_dir=directory / "data",
        store=store,
        environment=environment,
        arguments=("--config", str(config)),
    )


def http_sdk(server: Listening, **options: Any) -> AsyncSockudo:
    """The HTTP SDK."""
    # There is no TLS here, and loading certificates takes longer than most tests.
    whole = HttpOptions(port=server.port, verify_tls=False, **options)
    return AsyncSockudo(APP.id, APP.key, APP.secret, options=whole)


def answer(result: Result) -> Any:
    """The body of a success."""
    assert result.ok, result
    return result.json()


@asynccontextmanager
async def sdk_client(
    server: Listening,
    *,
    user: Mapping[str, Any] | None = None,
    member: PresenceUser | None = None,
    **options: Any,
) -> AsyncIterator[SockudoClient]:
    """A connected client of the client SDK; it is disconnected when the block ends.

    Args:
        server: where to connect to.
        user: `user_data` of a sign-in; `client.signin()` sends it.
        member: who it is on presence channels.
        options: further options of the SDK.
    """
    signer = http_sdk(server)

    async def authorize(request: Any) -> ChannelAuthorizationData:
        is_presence = request.channel_name.startswith("presence-")
        signed = signer.authenticate(
            request.socket_id, request.channel_name, member if is_presence else None
        )
        return ChannelAuthorizationData(**json.loads(signed))

    async def authenticate(request: Any) -> UserAuthenticationData:
        assert user is not None
        return UserAuthenticationData(
            **json.loads(signer.authenticate_user(request.socket_id, user))
        )

    proxy = f"http://127.0.0.1:{server.port}/proxy/{APP.id}"
    headers = {"Authorization": f"Bearer {PROXY_TOKEN}"}
    whole = {
        "cluster": "local",
        "force_tls": False,
        "enabled_transports": [SockudoTransport.WS],
        "ws_host": "127.0.0.1",
        "ws_port": server.port,
        "channel_authorization": ChannelAuthorizationOptions(custom_handler=authorize),
        "user_authentication": UserAuthenticationOptions(custom_handler=authenticate),
        "channel_history": ChannelHistoryOptions(f"{proxy}/history", headers=headers),
        "versioned_messages": VersionedMessageOptions(f"{proxy}/messages", headers=headers),
        **options,
    }
    client = SockudoClient(APP.key, SockudoOptions(**whole))
    connected = asyncio.Event()
    client.bind("connected", lambda *_: connected.set())
    try:
        await client.connect()
        async with asyncio.timeout(WAIT_SECONDS):
            await connected.wait()
        yield client
    finally:
        await client.disconnect()
        await signer.close()


async def subscribed(
    client: SockudoClient, name: str, options: Any = None
) -> tuple[SockudoChannel, Heard]:
    """Subscribe; returns the channel and what it will have heard, but for its own start."""
    heard: Heard = []
    channel = client.subscribe(name, options)
    channel.bind_global(lambda event, data: heard.append((event, data)))
    start = "pusher" if client.options.protocol_version < 2 else "sockudo"
    await until(lambda: bool(heard))
    assert heard.pop(0)[0] == f"{start}:subscription_succeeded"
    return channel, heard


async def until(condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until something becomes true that nothing tells of."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)
