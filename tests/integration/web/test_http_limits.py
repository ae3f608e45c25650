"""HTTP as peers misuse it: pipelines without end, bodies nobody wants, targets without a path."""

import asyncio
import re
from pathlib import Path

import pytest

from support.probe.server import running_server
from tidelog.serve.server import Server
from tidelog.web.http import MAX_PIPELINED


async def answers_to(server: Server, *parts: bytes, pause: float = 0.0) -> bytes:
    """What comes back until the server closes."""
    port = int(server.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_a_pipeline_is_answered_up_to_its_limit_and_then_ended(tmp_path: Path) -> None:
    """Thousands of requests in one write become a few objects and a few answers, in order."""
    async with running_server(tmp_path) as server:
        got = await answers_to(server, b"GET /healthz/live HTTP/1.1\r\nhost: x\r\n\r\n" * 20_000)
        assert got.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 1
        assert b"connection: close" in got.rpartition(b"HTTP/1.1 200 ")[2]


async def test_what_was_pipelined_before_garbage_is_answered(tmp_path: Path) -> None:
    """Garbage behind two good requests ends the connection after both answers."""
    good = b"GET /healthz/live HTTP/1.1\r\nhost: x\r\n\r\n"
    async with running_server(tmp_path) as server:
        got = await answers_to(server, good + good + b"nonsense\r\n\r\n")
        assert got.count(b"HTTP/1.1 200 ") == 2


async def test_garbage_is_counted_and_writes_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line for each would let anybody fill the disk."""
    garbage = b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n"
    upgrade = (
        b"GET /healthz/live HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\n"
        b"upgrade: h2c\r\n\r\n"
    )
    async with running_server(tmp_path) as server:
        caplog.clear()
        assert (await answers_to(server, garbage)).startswith(b"HTTP/1.1 400 ")
        await answers_to(server, upgrade)
        assert caplog.text == ""
        assert server.metrics.refusals.labels("malformed")._value.get() == 1


async def test_a_target_without_a_path_is_answered(tmp_path: Path) -> None:
    """The absolute form of a bare host means the root, which is a 404 like any other."""
    async with running_server(tmp_path) as server:
        request = b"GET http://x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        assert (await answers_to(server, request)).startswith(b"HTTP/1.1 404 ")


async def test_the_body_of_a_refused_request_is_not_waited_for_in_silence(tmp_path: Path) -> None:
    """A whole body is read before its refusal, and the connection stays good for the next one."""
    refused = b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"
    last = b"GET /healthz/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with running_server(tmp_path) as server:
        got = await answers_to(server, refused + last)
        assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"404", b"200"]


LAST = b"GET /healthz/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["in one write", "body later"])
async def test_what_follows_an_offer_of_another_protocol_is_still_http(
    tmp_path: Path, pause: float
) -> None:
    """The body of a request that offers HTTP/2 is its body: no request, and not dropped."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    head = (
        b"POST /probe/entries HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\n"
        b"upgrade: h2c\r\nhttp2-settings: AA\r\ncontent-length: %d\r\n\r\n" % len(smuggled)
    )
    async with running_server(tmp_path) as server:
        got = await answers_to(server, head, smuggled + LAST, pause=pause)
        assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"400", b"200"]
        assert b"JSON" in got


async def test_a_body_that_is_no_http_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing more can come of it, so nobody waits until its time is over."""
    head = (
        b"POST /probe/entries HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"
    )
    async with running_server(tmp_path) as server:
        got = await answers_to(server, head, b"no size\r\n" + LAST, pause=0.1)
        assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"400"]
        got = await answers_to(server, head + b"no size\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"400"]
