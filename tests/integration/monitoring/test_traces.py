"""Traces of the real server, received by a collector that decodes them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect

from support.channels import peer as channels
from support.monitoring.collector import Collector, Seen
from tidelog.channels.settings import App
from tidelog.client import ChannelPublisher
from tidelog.testing.process import ServerProcess

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SECRET = "words that nobody else may read"
DEVELOPMENT = App(id="app-id", key="app-key", secret="app-secret")


def server_with(collector_url: str, directory: Path, **settings: str) -> ServerProcess:
    """The development server with tracing."""
    environment = {"TIDELOG_TRACING_ENDPOINT": collector_url, **settings}
    return ServerProcess(data_dir=directory, arguments=("--dev",), environment=environment)


class Workers(ServerProcess):
    """A server that may have several processes: one without surfaces of its own."""

    program = "tidelog"


def put(key: str, value: str = SECRET) -> bytes:
    """An append of the probe."""
    return json.dumps({"op": "put", "stream": "s", "key": key, "value": value}).encode()


async def append(server: ServerProcess, *keys: str, **headers: str) -> list[int]:
    """Appends at the same time; returns their places in the log."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as http:
        answers = await asyncio.gather(
            *(http.post("/probe/entries", content=put(key), headers=headers) for key in keys)
        )
    assert {answer.status_code for answer in answers} == {201}, answers[0].text
    return [answer.json()["committed_id"] for answer in answers]


async def append_at_once(server: ServerProcess, *keys: str) -> list[int]:
    """Appends that a server which stood still reads in one turn; returns their places in the log.

    The connections are there before: those that are accepted late are read late too.
    """
    peers = [await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port) for _ in keys]
    for reader, writer in peers:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await body_of(reader)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for key, (_, writer) in zip(keys, peers, strict=True):
            body = put(key)
            length = f"Content-Length: {len(body)}"
            head = ("POST /probe/entries HTTP/1.1", "Host: localhost", length, "", "")
            writer.write("\r\n".join(head).encode() + body)
            await writer.drain()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    places = [json.loads(await body_of(reader))["committed_id"] for reader, _ in peers]
    for _, writer in peers:
        writer.close()
    return places


async def body_of(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    return await reader.readexactly(int(head.partition("content-length: ")[2].split("\r\n")[0]))


def attributes(span: Seen) -> tuple[object, object]:
    """Entries and place of a span."""
    return span.attributes.get("tidelog.entries"), span.attributes.get("tidelog.committed_id")


async def test_a_request_is_followed_to_its_fan_out(tmp_path: Path) -> None:
    """Request, append, batch, decide, commit, fan-out: one tree in the caller's trace."""
    with Collector() as collector:
        with server_with(collector.url, tmp_path) as server:
            await asyncio.to_thread(server.start)
            [place] = await append(server, "k1", traceparent=f"00-{TRACE}-{CALLER}-01")
            assert await asyncio.to_thread(server.terminate) == 0
        [request] = collector.named("POST /probe/entries")
        assert (request.trace, request.parent) == (TRACE, CALLER)
        assert request.attributes == {
            "http.request.method": "POST",
            "http.route": "/probe/entries",
            "http.response.status_code": 201,
        }
        [append_span] = collector.children(request)
        assert (append_span.name, *attributes(append_span)) == ("tidelog.append", 1, place)
        [batch] = collector.children(append_span)
        assert (batch.name, batch.attributes) == ("tidelog.batch", {"tidelog.requests": 1})
        decide, commit, fan_out = collector.children(batch)
        assert [each.name for each in (decide, commit, fan_out)] == [
            *("tidelog.decide", "tidelog.commit", "tidelog.fan_out"),
        ]
        assert attributes(commit) == attributes(fan_out) == (1, place)
        assert decide.end <= commit.start < commit.end <= fan_out.start
        assert {span.trace for span in (append_span, batch, decide, commit, fan_out)} == {TRACE}


async def test_requests_of_one_batch_are_linked(tmp_path: Path) -> None:
    """Every append has its place; those that share a batch link it and are linked by it."""
    keys = [f"k{number}" for number in range(40)]
    with Collector() as collector:
        with server_with(collector.url, tmp_path) as server:
            await asyncio.to_thread(server.start)
            places = await append_at_once(server, *keys)
            assert await asyncio.to_thread(server.terminate) == 0
        appends = {
            span.id: span
            for span in collector.named("tidelog.append")
            if "tidelog.committed_id" in span.attributes  # not what the first start notes of sync
        }
        assert sorted(span.attributes["tidelog.committed_id"] for span in appends.values()) == (
            sorted(places)
        )
        batches = [batch for batch in collector.named("tidelog.batch") if batch.parent in appends]
        shared = [batch for batch in batches if batch.attributes["tidelog.requests"] > 1]
        assert shared, "forty requests at once never met in a batch"
        covered = [{batch.parent, *batch.links} for batch in batches]
        assert sorted(each for ids in covered for each in ids) == sorted(appends)
        for batch in shared:
            assert len(batch.links) == batch.attributes["tidelog.requests"] - 1
            for linked in batch.links:
                assert batch.id in appends[linked].links


async def test_messages_of_sockets_are_spans(tmp_path: Path) -> None:
    """A frame of a WebSocket peer is a span of its surface, and what it writes is below it."""
    with Collector() as collector:
        with server_with(collector.url, tmp_path) as server:
            await asyncio.to_thread(server.start)
            url = server.url.replace("http", "ws")
            async with asyncio.timeout(60), connect(f"{url}/app/app-key?protocol=7") as socket:
                await socket.recv()
                hello = {"event": "pusher:subscribe", "data": {"channel": "lobby"}}
                await socket.send(json.dumps(hello))
                await socket.recv()
                async with ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as p:
                    await p.publish("lobby", "said", {"text": SECRET})
                assert SECRET in str(await socket.recv())
            assert await asyncio.to_thread(server.terminate) == 0
        [heard] = collector.named("WebSocket /app/{key}")
        assert heard.attributes["tidelog.surface"] == "channels"
        assert heard.attributes["tidelog.bytes"] == len(json.dumps(hello))
        [published] = collector.named("POST /apps/{app_id}/events")
        assert [span.name for span in collector.children(published)] == ["tidelog.append"]
        assert_nothing_secret(collector)


async def test_front_and_owner_are_in_one_trace(tmp_path: Path) -> None:
    """Whichever front takes a request, what the owner does for it is below it, and sampled as it.

    Each question has its own trace, however many cross the link at once.
    """
    with Collector() as collector:
        settings = {
            "TIDELOG_TRACING_ENDPOINT": collector.url,
            "TIDELOG_TRACING_SAMPLE_RATIO": "0",
            "TIDELOG_WORKERS": "2",
        }
        with Workers(data_dir=tmp_path, arguments=("--dev",), environment=settings) as server:
            await asyncio.to_thread(server.start)
            texts = [f"{SECRET} {number}" for number in range(20)]
            async with ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as p:
                await asyncio.gather(*[p.publish("lobby", "said", {"text": t}) for t in texts])
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
            async with httpx.AsyncClient(headers=headers, timeout=20, verify=False) as http:
                api = channels.Api(server.url, http, DEVELOPMENT)
                answers = await asyncio.gather(*[api.events("lobby", data=t) for t in texts])
            assert {answer.status_code for answer in answers} == {200}, answers[0].text
            assert await asyncio.to_thread(server.terminate) == 0
        assert {span.trace for span in collector.spans} == {TRACE}
        requests = collector.named("POST /apps/{app_id}/events")
        assert len(requests) == len(texts)
        for request in requests:
            assert [span.name for span in collector.children(request)] == ["tidelog.append"]
        assert collector.named("tidelog.commit")
        assert_nothing_secret(collector)


async def test_no_word_of_anybody_leaves(tmp_path: Path) -> None:
    """Neither bodies nor keys, names, signatures, queries or error texts are in what is sent."""
    with Collector() as collector:
        with server_with(collector.url, tmp_path) as server:
            await asyncio.to_thread(server.start)
            await append(server, "the-key-of-a-caller")
            async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as http:
                await http.get(f"/apps/app-id/channels/{SECRET}?auth_signature=abcdef")
                await http.post("/probe/entries", content=f'{{"stream": "{SECRET}"'.encode())
            assert await asyncio.to_thread(server.terminate) == 0
        assert len(collector.spans) >= 8
        assert_nothing_secret(collector)


def assert_nothing_secret(collector: Collector) -> None:
    """None of what the tests sent is in the exports, in any form."""
    sent = b"".join(collector.raw)
    for word in (SECRET, "the-key-of-a-caller", "app-secret", "abcdef", "auth_signature", "lobby"):
        assert word.encode() not in sent, word


async def test_a_share_is_sampled(tmp_path: Path) -> None:
    """At ratio 0 nothing is sent, except what a caller's trace asks for."""
    with Collector() as collector:
        with server_with(collector.url, tmp_path, TIDELOG_TRACING_SAMPLE_RATIO="0") as server:
            await asyncio.to_thread(server.start)
            await append(server, "k1")
            await append(server, "k2", traceparent=f"00-{TRACE}-{CALLER}-01")
            assert await asyncio.to_thread(server.terminate) == 0
        assert {span.trace for span in collector.spans} == {TRACE}
        assert len(collector.named("tidelog.commit")) == 1


async def test_a_dead_collector_costs_nothing_but_the_spans(tmp_path: Path) -> None:
    """Requests are answered, and the server ends in good order, though nobody takes its spans."""
    with server_with("http://127.0.0.1:1", tmp_path) as server:
        await asyncio.to_thread(server.start)
        assert await append(server, "k1", "k2")
        assert await asyncio.to_thread(server.terminate) == 0


def test_without_an_endpoint_nothing_is_loaded(tmp_path: Path) -> None:
    """A server without tracing imports no OpenTelemetry and has the plain committer."""
    program = """
import asyncio, sys
from pathlib import Path
from urllib.parse import urlsplit
from tidelog.log.committer import Committer
from tidelog.testing.server import running_server

async def main():
    async with running_server(Path(sys.argv[1])) as server:
        print(type(server.committer) is Committer)

asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "tidelog.web.tracing"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["True", "[]"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"TIDELOG_TRACING_ENDPOINT": "collector:4318"}, "tracing.endpoint"),
        ({"TIDELOG_TRACING_SAMPLE_RATIO": "2"}, "tracing.sample_ratio"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    """The server does not start, and names the key."""
    server = ServerProcess(data_dir=tmp_path, arguments=("--dev",), environment=settings)
    with pytest.raises(RuntimeError, match=why):
        server.start()
    assert server.wait() == 2
