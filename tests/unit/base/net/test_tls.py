"""What is trusted is read once, and not on the loop."""

import asyncio
import ssl
import threading
from collections.abc import Iterator

import pytest

from tidelog.base.net import tls
from tidelog.mesh.front.webhook_client import PostFailed, WebhookClient


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The threads in which certificates were read."""
    found: list[int] = []
    create = ssl.create_default_context

    def noted() -> ssl.SSLContext:
        found.append(threading.get_ident())
        return create()

    monkeypatch.setattr(ssl, "create_default_context", noted)
    tls._context.cache_clear()
    yield found
    tls._context.cache_clear()


async def test_attempts_over_https_read_the_certificates_once_and_beside_the_loop(
    readings: list[int],
) -> None:
    """Each attempt at a webhook would hold the loop up for as long as that takes."""

    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"this is no handshake")
        writer.close()

    server = await asyncio.start_server(no_tls, "127.0.0.1", 0)
    url = f"HTTPS://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = WebhookClient(timeout_s=30, may_be_private=True)
    for _ in range(3):
        with pytest.raises(PostFailed, match="tls_failed"):
            await client.post(url, {}, b"")
    server.close()
    assert len(readings) == 1
    assert readings[0] != threading.get_ident()


async def test_a_connection_without_tls_reads_none(readings: list[int]) -> None:
    """Nothing is read for `http` and `ws`."""
    assert await tls.context_for("http://x") is None
    assert await tls.context_for("ws://x") is None
    assert readings == []
