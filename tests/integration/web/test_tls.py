"""Connections whose TLS handshake is not over: counted, bounded and timed like all others."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvloop

from support.probe.server import running_server
from support.web.certificate import make_certificate
from tidelog.base.errors import ConfigError
from tidelog.base.settings.limits import Limits, PerAddress
from tidelog.config.settings import Settings
from tidelog.serve.server import Server
from tidelog.web import tls
from tidelog.web.tls import TlsListener

WAIT_SECONDS = 60.0


@asynccontextmanager
async def serving(
    folder: Path, limits: Limits | None = None, max_connections: int = 200
) -> AsyncIterator[tuple[Server, ssl.SSLContext]]:
    """A server with TLS for which this machine is an address like any other; and whom to trust."""
    certificate = make_certificate(folder)
    settings = Settings(
        tls_certificate=str(certificate),
        tls_key=str(certificate),
        limits=limits or Limits(),
        per_address=PerAddress(exempt="", max_connections=max_connections),
    )
    async with running_server(folder / "data", settings=settings) as server:
        yield server, ssl.create_default_context(cafile=str(certificate))


class Silent:
    """A peer that connects and sends nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, server: Server) -> AsyncIterator["Silent"]:
        """One for the length of the block."""
        reader, writer = await asyncio.open_connection(*server.listener.getsockname()[:2])
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def ended(self) -> None:
        """Return when the server has closed it."""
        async with asyncio.timeout(WAIT_SECONDS):
            with contextlib.suppress(ConnectionError):
                assert await self.reader.read() == b""


async def until(server: Server, handshakes: int) -> None:
    """Wait until so many are under way."""
    listener = server._server.accepting
    assert isinstance(listener, TlsListener)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(listener._handshakes) != handshakes:  # noqa: ASYNC110 - a set tells nobody
            await asyncio.sleep(0.005)


def refusals(server: Server, reason: str) -> float:
    """How often somebody was sent away for a reason."""
    return float(server.metrics.refusals.labels(reason)._value.get())


async def test_handshakes_under_way_are_connections_of_their_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is one too many is told so in HTTP; of many at once, most are closed."""
    monkeypatch.setattr(tls, "MAX_REFUSING", 2)
    async with serving(tmp_path, max_connections=3) as (server, trust), AsyncExitStack() as held:
        for _ in range(3):
            await held.enter_async_context(Silent.to(server))
        await until(server, 3)
        async with httpx.AsyncClient(base_url=server.url, verify=trust) as http:
            refused = await http.get("/healthz/live")
            assert refused.status_code == 429
            assert "per_address.max_connections" in refused.json()["error"]
        await until(server, 3)
        for number in (4, 5):  # their handshakes are waited for, to tell them
            await held.enter_async_context(Silent.to(server))
            await until(server, number)
        async with Silent.to(server) as one_more:
            await one_more.ended()
        assert refusals(server, "address_connections") == 2
        await held.aclose()
        await until(server, 0)
        async with httpx.AsyncClient(base_url=server.url, verify=trust) as http:
            assert (await http.get("/healthz/live")).status_code == 200


async def test_handshakes_under_way_are_connections_of_the_server(tmp_path: Path) -> None:
    """Beyond `limits.max_connections` nobody gets a handshake."""
    async with (
        serving(tmp_path, Limits(max_connections=1)) as (server, _),
        Silent.to(server),
    ):
        await until(server, 1)
        async with Silent.to(server) as one_more:
            await one_more.ended()
        assert refusals(server, "connections") == 1


async def test_a_handshake_has_an_end(tmp_path: Path) -> None:
    """One that is not over in time, or is none, ends the connection."""
    async with serving(tmp_path, Limits(header_timeout_ms=100)) as (server, _):
        async with Silent.to(server) as silent:
            await silent.ended()
        async with Silent.to(server) as plain:
            plain.writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            await plain.ended()
        await until(server, 0)
        assert refusals(server, "tls_handshake") == 2


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_may_come_with_the_end_of_the_handshake(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """As in TLS 1.3, where a client waits for nothing. `tidelog serve` runs on the second loop."""

    async def ask(server: Server, trust: ssl.SSLContext) -> bytes:
        inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trust.wrap_bio(inbound, outbound, server_hostname="127.0.0.1")
        async with Silent.to(server) as peer, asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    peer.writer.write(outbound.read())
                    inbound.write(await peer.reader.read(65_536))
            client.write(b"GET /healthz/live HTTP/1.1\r\nhost: x\r\n\r\n")
            peer.writer.write(outbound.read())  # the client's last message, and its request
            answer = b""
            while b"live" not in answer:
                inbound.write(await peer.reader.read(65_536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer += client.read(65_536)
            return answer

    async def several() -> list[bytes]:
        async with serving(tmp_path) as (server, trust):
            return [await ask(server, trust) for _ in range(10)]

    with asyncio.Runner(loop_factory=loop) as runner:
        answers = runner.run(several())
    assert [answer[:13] for answer in answers] == [b"HTTP/1.1 200 "] * 10


async def test_a_server_stops_with_handshakes_under_way(tmp_path: Path) -> None:
    """They are ended, not waited for."""
    async with AsyncExitStack() as held:
        async with serving(tmp_path) as (server, _):
            silent = await held.enter_async_context(Silent.to(server))
            await until(server, 1)
        await silent.ended()


async def test_what_is_no_certificate_is_a_wrong_setting(tmp_path: Path) -> None:
    """One line that names it, before anything is opened."""
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    settings = Settings(
        data_dir=str(tmp_path / "data"), tls_certificate=str(garbage), tls_key=str(garbage)
    )
    with pytest.raises(ConfigError, match=r"tls_certificate, tls_key: .*garbage\.pem"):
        await Server.open(settings)
    assert not (tmp_path / "data").exists()
