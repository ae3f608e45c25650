"""`EventSource` of a real browser, on a page of another origin, through a kill of the server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from tidelog.client import BlockingChannelPublisher
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n"
LISTEN = """([url]) => {
  window.seen = [];
  window.source = new EventSource(url);
  window.source.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.extras) window.seen.push([frame.serial, frame.data]);
  };
}"""


async def serve_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An empty page of another origin: browsers keep those of a stranger from this machine."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(PAGE)
    await writer.drain()
    writer.close()


async def test_an_event_source_goes_on_by_itself(
    browser: Browser, tmp_path: Path, free_port: int
) -> None:
    """With a token in its address; what came while the server was away is there, once."""
    other = await asyncio.start_server(serve_page, "127.0.0.1", 0)
    with ServerProcess(data_dir=tmp_path, arguments=("--dev",)) as server:
        server.port = free_port
        await asyncio.to_thread(server.start)
        app = BlockingChannelPublisher(server.url, "app-id", "app-key", "app-secret")
        token = app.token("ana", {"private-ana": ["subscribe", "stream", "history"]})
        url = f"{server.url}/apps/app-id/channels/private-ana/stream?rewind=10&token={token}"
        await asyncio.to_thread(app.publish, "private-ana", "said", "0")
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"http://localhost:{other.sockets[0].getsockname()[1]}/")

        async def has_seen(expected: list[Any]) -> None:
            wanted = [[serial, str(serial - 1)] for serial in expected]
            await page.wait_for_function(
                "wanted => JSON.stringify(window.seen) === JSON.stringify(wanted)",
                arg=wanted,
                timeout=60_000,
            )

        await page.evaluate(LISTEN, [url])
        await has_seen([1])
        await asyncio.to_thread(app.publish, "private-ana", "said", "1")
        await has_seen([1, 2])
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        for number in (2, 3):
            await asyncio.to_thread(app.publish, "private-ana", "said", str(number))
        await has_seen([1, 2, 3, 4])
        await context.close()
    other.close()
