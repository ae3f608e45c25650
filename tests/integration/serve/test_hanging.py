"""A process of a server hangs: it is noticed, others go on without it, and it is started again."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from support.channels import peer as channels
from support.cli.command import run as run_command
from support.serve import processes
from support.serve.clients import until
from support.serve.processes import Processes, is_running, pause, state
from tidelog import __version__
from tidelog.serve.gathering import HANGS

FRONTS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One for all tests."""
    with Processes(tmp_path_factory.mktemp("serve") / "data", FRONTS) as server:
        yield server


@contextlib.asynccontextmanager
async def peer_of(server: Processes, front: int) -> AsyncIterator[channels.Peer]:
    """A socket of channels at a front, after its handshake."""
    url = f"{server.ws_url}/app/{channels.APP.key}?{channels.V1_QUERY}"
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(front):
            opening = connect(url, compression=None, ping_interval=None, close_timeout=2)
            peer = channels.Peer(await stack.enter_async_context(opening), channels.APP, 1)
            await channels.handshake(peer)
        yield peer


async def test_a_front_that_hangs_is_given_up(server: Processes) -> None:
    """Its members leave and its sockets are connected nowhere; then it is started again."""
    first, second = await server.fronts()
    lobby = channels.unique("presence-lobby")
    async with (
        peer_of(server, first) as ana,
        peer_of(server, second) as ben,
        httpx.AsyncClient(timeout=channels.WAIT_SECONDS, verify=False) as http,
    ):
        api = channels.Api(server.url, http)
        async with server.only(first):
            message = (await api.publish("text", "x", message_id="text"))["message_serial"]
        await ana.subscribe(lobby, {"user_id": "ana"})
        await ben.subscribe(lobby, {"user_id": "ben"})
        await ana.expect("_member_added", lobby)
        async with server.nothing_is_started():  # nor killed: it hangs for as long as it takes
            await pause(second)
            assert '"ben"' in (await ana.expect("_member_removed", lobby))["data"]
            named = {"data": "y", "socket_id": ben.socket_id}
            told = await api.try_mutate("append", "text", message, **named)
            assert f"'{ben.socket_id}' is not connected" in told.text
            assert state(second) == "T"
        await until(lambda: not is_running(second))
        assert second not in await server.fronts()
        assert await server.fronts()


async def test_an_owner_that_hangs_is_started_again(server: Processes) -> None:
    """Until then its fronts say so to whoever asks for their health."""
    owner = await server.owner()
    async with httpx.AsyncClient(
        base_url=server.url, timeout=channels.WAIT_SECONDS, verify=False
    ) as http:
        assert (await http.get("/healthz")).json()["ready"]
        async with server.nothing_is_started():
            await pause(owner)
            reason = None
            while reason != HANGS:
                answer = await http.get("/healthz")
                assert answer.status_code == 503 or reason is None
                reason = answer.json().get("reason")
        await until(lambda: not is_running(owner))
    assert await server.owner() != owner
    async with httpx.AsyncClient(timeout=channels.WAIT_SECONDS, verify=False) as http:
        await channels.Api(server.url, http).publish("text", "again", message_id="again")


async def test_an_owner_that_goes_on_in_time_is_left_alone(server: Processes) -> None:
    """With all of its fronts: who stood still itself does not hold it against the others."""
    owner, fronts = await server.owner(), await server.fronts()
    async with httpx.AsyncClient(
        base_url=server.url, timeout=channels.WAIT_SECONDS, verify=False
    ) as http:
        async with server.nothing_is_started():
            await pause(owner)
            while (await http.get("/healthz")).json().get("reason") != HANGS:
                pass
            os.kill(owner, signal.SIGCONT)
            while not (await http.get("/healthz")).json()["ready"]:
                pass
        await channels.Api(server.url, http).publish("text", "still", message_id="still")
    assert (await server.owner(), set(await server.fronts())) == (owner, set(fronts))


def test_processes_of_different_versions_refuse_each_other(tmp_path: Path) -> None:
    """In one line that names both."""
    newer = {"PYTHONPATH": str(Path(processes.__file__).with_name("newer"))}
    arguments = ("serve", "--dev", "--port", "0", "--workers", "2", "--data-dir", str(tmp_path))
    refused = run_command(*arguments, env={**os.environ, **newer})
    assert refused.returncode == 1
    text = f"tidelog: this process is of tidelog 99.0 and its other end of {__version__}: restart"
    assert text in refused.stderr
