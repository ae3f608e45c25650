"""Limits of one address, on all surfaces, with the errors that each has for them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.channels.events import heard, listening
from support.channels.peer import APP, V2_QUERY
from support.probe.server import running_server
from support.sync.peer import SECRET
from tidelog.base.settings.limits import PerAddress
from tidelog.channels.settings import Channels
from tidelog.cli.serving import _surfaces
from tidelog.config.settings import Pipeline, Settings
from tidelog.serve.server import Server
from tidelog.sync.settings import SyncSettings as Sync

ADMIN = "a token of an administrator"
WRONG = {"authorization": "Bearer wrong"}
WAIT_SECONDS = 60.0


@asynccontextmanager
async def serving(
    data_dir: Path, channels: Channels | None = None, **limits: Any
) -> AsyncIterator[Server]:
    """A server with all surfaces for which this machine is an address like any other."""
    settings = Settings(
        admin_token=ADMIN,
        apps=[APP],
        sync=Sync(jwt_secret=SECRET),
        channels=channels or Channels(),
        pipeline=Pipeline(lake=str(data_dir / "lake")),
        per_address=PerAddress(**{"exempt": "", **limits}),
    )
    mounts, extensions = _surfaces(settings)
    async with running_server(
        data_dir, settings=settings, mounts=mounts, extensions=extensions
    ) as server:
        yield server


def refusals(server: Server, reason: str) -> float:
    """How often somebody was sent away for a reason."""
    return float(server.metrics.refusals.labels(reason)._value.get())


def socket_url(server: Server, path: str) -> str:
    """Of an endpoint."""
    return server.url.replace("http", "ws", 1) + path


CHANNELS = f"/app/{APP.key}?{V2_QUERY}"


async def frame(socket: Any) -> dict[str, Any]:
    """The next frame."""
    async with asyncio.timeout(WAIT_SECONDS):
        found: dict[str, Any] = json.loads(await socket.recv())
    return found


async def close_code(socket: Any) -> int:
    """What the server closes with, whatever it says before."""
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


async def test_connections_of_one_address(tmp_path: Path) -> None:
    """Sockets and HTTP connections count alike; one more is answered 429, and told why."""
    async with serving(tmp_path, max_connections=3) as server:
        async with connect(socket_url(server, CHANNELS)) as first:
            async with (
                connect(socket_url(server, CHANNELS)),
                httpx.AsyncClient(verify=False) as http,
            ):
                assert (await http.get(f"{server.url}/healthz/live")).status_code == 200
                with pytest.raises(InvalidStatus) as refused:
                    await connect(socket_url(server, CHANNELS))
                response = refused.value.response
                assert response.status_code == 429
                assert "per_address.max_connections" in response.body.decode()
                assert "retry-after" in response.headers
                await first.send('{"event":"sockudo:ping"}')  # others are untouched
            assert refusals(server, "address_connections") == 1
        async with asyncio.timeout(WAIT_SECONDS):
            while True:  # until the server has seen them end
                try:
                    async with connect(socket_url(server, CHANNELS)):
                        break
                except InvalidStatus:
                    await asyncio.sleep(0.01)


async def test_event_streams_count_for_their_address(tmp_path: Path) -> None:
    """As connections, and their failures as failures; one that ends is given back."""
    async with serving(
        tmp_path, max_connections=2, max_failed_authentications_per_minute=2
    ) as server:
        port = server.listener.getsockname()[1]
        async with heard(port, "room") as first, heard(port, "room") as second:
            await first.subscribed()
            await second.subscribed()
            async with listening(port, "room") as third:
                assert third.status == 429
            assert refusals(server, "address_connections") == 1
        async with asyncio.timeout(WAIT_SECONDS):
            while (await _status(port, token="wrong")) == 429:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert await _status(port, token="wrong") == 401
        assert await _status(port, token="wrong") == 429
        assert refusals(server, "address_failures") >= 1


async def _status(port: int, **params: str) -> int:
    async with listening(port, "room", **params) as listener:
        return listener.status


async def test_requests_that_prove_nothing(tmp_path: Path) -> None:
    """Beyond the limit nobody of the address is judged, in the words of each surface."""
    async with (
        serving(tmp_path, max_failed_authentications_per_minute=3) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        statuses = [
            (await http.post("/sync/v1/sync", content=b"{}", headers=WRONG)).status_code,
            (await http.get(f"/apps/{APP.id}/channels?auth_key={APP.key}")).status_code,
            (await http.get("/mesh/m", headers=WRONG)).status_code,
        ]
        assert statuses == [401, 401, 401]
        right = {"authorization": f"Bearer {ADMIN}"}
        mesh = await http.get("/mesh/m", headers=right)
        assert (mesh.status_code, mesh.json()["error"]) == (429, "rate_limited")
        assert 0 < int(mesh.headers["retry-after"]) <= 20
        sync = await http.post("/sync/v1/sync", content=b"{}", headers=right)
        assert (sync.status_code, sync.json()["payload"]["code"]) == (429, "rate_limited")
        assert sync.json()["payload"]["details"]["retry_after_ms"] > 0
        channels = await http.get(f"/apps/{APP.id}/channels?auth_key={APP.key}")
        assert (channels.status_code, channels.json()["code"]) == (429, "rate_limited")
        assert "max_failed_authentications_per_minute" in channels.json()["error"]
        assert refusals(server, "address_failures") == 3
        assert (await http.get("/healthz/live")).status_code == 200  # nobody proves anything there
        for path in ("/sync", "/mesh/m/ws"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(socket_url(server, path))
            assert refused.value.response.status_code == 429


async def test_every_route_that_wants_a_proof_has_that_limit(tmp_path: Path) -> None:
    """Whatever `/openapi.json` says needs a proof is judged where failures are counted."""
    async with serving(tmp_path) as server:
        proving = [
            route for route in server._routes if route.operation and route.operation.security
        ]
        assert {"/search", "/mesh/{slug}", "/sync/v1/sync"} <= {route.path for route in proving}
        unjudged = [route.path for route in proving if route.admit is None]
        assert unjudged == ["/dashboard/logout"]  # to whoever is not logged in it does nothing


async def test_guesses_at_the_admin_token(tmp_path: Path) -> None:
    """Wrong logins to the dashboard count; beyond the limit not even the right one is judged."""
    page = "/dashboard/login"
    async with (
        serving(tmp_path, max_failed_authentications_per_minute=3) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        for _ in range(3):
            wrong = await http.post(page, data={"token": "wrong"})
            assert wrong.headers["location"] == f"{page}?wrong"
        right = await http.post(page, data={"token": ADMIN})
        assert (right.status_code, "set-cookie" in right.headers) == (429, False)
        assert 0 < int(right.headers["retry-after"]) <= 20
        assert (await http.get("/mesh/m", headers=WRONG)).status_code == 429


async def test_sockets_that_prove_nothing(tmp_path: Path) -> None:
    """A token, a hello and a signature that are wrong count on their sockets too."""
    async with serving(tmp_path, max_failed_authentications_per_minute=4) as server:
        message = {"type": "connect", "msg_id": "1", "protocol_version": "1.0", "timestamp": 1}
        payload = {"token": "wrong", "client_id": "c"}
        async with connect(socket_url(server, "/sync")) as socket:
            await socket.send(json.dumps({**message, "payload": payload}))
            await close_code(socket)
        async with connect(socket_url(server, f"{CHANNELS}&token=wrong")) as socket:
            assert await close_code(socket) == 4009
        async with connect(socket_url(server, CHANNELS)) as socket:
            await frame(socket)
            wanted = {"channel": "private-x", "auth": f"{APP.key}:00"}
            attempt = json.dumps({"event": "sockudo:subscribe", "data": wanted})
            await socket.send(attempt)
            assert (await frame(socket))["data"]["code"] == 4009
            assert (await frame(socket))["event"] == "sockudo:subscription_error"
            await socket.send(attempt)  # the fourth failure of the address
            assert await close_code(socket) == 4100
        async with connect(socket_url(server, f"{CHANNELS}&token=wrong")) as socket:
            assert await close_code(socket) == 4100
        async with connect(socket_url(server, CHANNELS)) as socket:  # public channels are open
            await frame(socket)
            await socket.send('{"event":"sockudo:subscribe","data":{"channel":"room"}}')
            assert (await frame(socket))["event"] == "sockudo_internal:subscription_succeeded"


async def test_tries_to_join_a_mesh(tmp_path: Path) -> None:
    """So many in a minute, with or without an invite; then 429 without a look at anything."""
    async with (
        serving(tmp_path, max_joins_per_minute=2) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        statuses = [(await http.post("/mesh/m/members", content=b"{}")) for _ in range(3)]
        assert [each.status_code for each in statuses] == [404, 404, 429]
        assert statuses[2].json() == {
            "error": "rate_limited",
            "detail": "too many tries to join from your address "
            "(setting per_address.max_joins_per_minute)",
        }
        assert 0 < int(statuses[2].headers["retry-after"]) <= 30


async def test_subscriptions_of_one_address(tmp_path: Path) -> None:
    """All its sockets together; what ends is given back."""
    async with (
        serving(tmp_path, max_subscriptions=2) as server,
        connect(socket_url(server, CHANNELS)) as one,
        connect(socket_url(server, CHANNELS)) as other,
    ):
        for socket in (one, other):
            await frame(socket)
        assert await subscribed(one, "a")
        assert await subscribed(other, "a")
        assert await subscribed(other, "b", "per_address.max_subscriptions") is False
        assert await subscribed(other, "a")  # again: it has that one
        await one.send('{"event":"sockudo:unsubscribe","data":{"channel":"a"}}')
        await one.send('{"event":"sockudo:ping","data":{}}')
        await frame(one)
        assert await subscribed(other, "b")
        await other.close()
        async with asyncio.timeout(WAIT_SECONDS):  # until the server has seen it end
            while not await subscribed(one, "c", "per_address.max_subscriptions"):
                pass


async def test_channels_of_an_app(tmp_path: Path) -> None:
    """Names are chosen by clients, so there is an end to them; those that there are stay open."""
    channels = Channels(max_channels_per_app=2)
    async with (
        serving(tmp_path, channels, exempt="127.0.0.1") as server,
        connect(socket_url(server, CHANNELS)) as one,
        connect(socket_url(server, CHANNELS)) as other,
    ):
        for socket in (one, other):
            await frame(socket)
        assert await subscribed(one, "a")
        assert await subscribed(one, "b")
        assert await subscribed(one, "c", "channels.max_channels_per_app") is False
        assert await subscribed(other, "b")
        await one.send('{"event":"sockudo:unsubscribe","data":{"channel":"a"}}')
        assert await subscribed(one, "c")


async def subscribed(socket: Any, channel: str, setting: str = "") -> bool:
    """Subscribe; whether it succeeded, or the setting that it was refused for."""
    data = {"channel": channel}
    await socket.send(json.dumps({"event": "sockudo:subscribe", "data": data}))
    answer = await frame(socket)
    if answer["event"] == "sockudo_internal:subscription_succeeded":
        return True
    assert answer["data"]["code"] == 4300
    assert f"(setting {setting})" in answer["data"]["message"]
    error = await frame(socket)
    assert error["event"] == "sockudo:subscription_error"
    return False


async def test_whom_a_trusted_proxy_speaks_for(tmp_path: Path) -> None:
    """Behind one, each client has limits of its own, and the proxy none."""
    limits: dict[str, Any] = {"trusted_proxies": "127.0.0.1", "max_connections": 1}
    async with serving(tmp_path, max_failed_authentications_per_minute=1, **limits) as server:
        ana, bob = ({"x-forwarded-for": f"192.0.2.{number}"} for number in (1, 2))
        async with httpx.AsyncClient(base_url=server.url, verify=False) as http:
            statuses = [
                (await http.get("/mesh/m", headers={**WRONG, **who})).status_code
                for who in (ana, ana, bob)
            ]
        assert statuses == [401, 429, 401]
        url = socket_url(server, CHANNELS)
        async with (
            connect(url, additional_headers=ana),
            connect(url, additional_headers=bob),
            connect(url),
            connect(url),
        ):
            with pytest.raises(InvalidStatus):
                await connect(url, additional_headers=ana)
