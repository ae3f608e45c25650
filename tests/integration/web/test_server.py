"""The server as a whole: limits, health, metrics, TLS, and its orderly end."""

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from support.channels import peer as channels_peer
from support.log.storm import HttpClient, read_log
from support.probe.server import running_server
from support.web.certificate import make_certificate
from tidelog.base.errors import ConfigError
from tidelog.base.serving.openapi import document
from tidelog.base.serving.surface import Endpoint, HttpRequest, HttpResponse, Route
from tidelog.base.settings.limits import Limits
from tidelog.cli.serving import _surfaces
from tidelog.config.settings import Settings
from tidelog.serve.server import Node, Server
from tidelog.testing.process import ServerProcess
from tidelog.web import server as web_server
from tidelog.web import serving

PUT = b'{"op":"put","stream":"s","key":"k%d","value":1}'


def port_of(server: Server) -> int:
    """The port a server listens on."""
    return int(server.url.rsplit(":", 1)[1])


async def exchange(port: int, request: bytes, *, wait_seconds: float = 5.0) -> bytes:
    """Send raw bytes and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(wait_seconds):
            return await reader.read()
    finally:
        writer.close()


async def test_health_tells_live_ready_and_the_head(tmp_path: Path) -> None:
    """`/healthz` is 200 with the log's head while the store answers; live has its own route."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        health = (await http.get("/healthz")).json()
        assert (health["live"], health["ready"], health["head"]) == (True, True, 0)
        await http.post("/probe/entries", content=PUT % 1)
        assert (await http.get("/healthz/ready")).json()["head"] == 1
        assert (await http.get("/healthz/live")).json() == {"live": True}
        assert (await http.head("/healthz")).content == b""


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    """`/metrics` shows batches, latency, queue, tail, connections, bytes and refusals by reason."""
    limits = Limits(max_body_bytes=1000)
    async with (
        running_server(tmp_path, limits=limits) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
        connect(server.url.replace("http", "ws") + "/probe/ws"),
    ):
        await http.post("/probe/entries", content=PUT % 1)
        assert (await http.post("/probe/entries", content=b"x" * 1001)).status_code == 413
        lines = (await http.get("/metrics")).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["tidelog_commit_batch_requests_count"] == "1.0"
    assert values["tidelog_commit_seconds_count"] == "1.0"
    assert values["tidelog_commit_queue_depth"] == "0.0"
    assert values["tidelog_tail_position"] == "1.0"
    assert values["tidelog_tail_lag_entries"] == "0.0"
    assert values['tidelog_connections{surface="probe"}'] == "1.0"
    assert float(values["process_resident_memory_bytes"]) > 0
    assert float(values["tidelog_received_bytes_total"]) >= len(PUT % 1)
    assert float(values["tidelog_sent_bytes_total"]) > 0
    assert values['tidelog_refusals_total{reason="body_size"}'] == "1.0"


async def test_unknown_paths_and_methods_are_json_errors(tmp_path: Path) -> None:
    """404 and 405 are JSON; 405 names what is allowed."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        missing = await http.get("/nothing")
        assert (missing.status_code, "error" in missing.json()) == (404, True)
        assert (missing.json()["code"], missing.json()["status"]) == ("not_found", 404)
        wrong = await http.delete("/healthz")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")


async def test_what_is_not_http_is_a_json_error(tmp_path: Path) -> None:
    """Bytes that are no request are answered in the envelope of every other refusal."""
    async with running_server(tmp_path) as server:
        answer = await exchange(port_of(server), b"this is not HTTP\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert b'"code":"invalid_input","status":400' in body


async def test_the_document_of_all_routes_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/openapi.json` describes the server's own routes, itself included; it is made once."""
    made = []

    def noted(*routes: Any, **about: Any) -> Any:
        made.append(about)
        return document(*routes, **about)

    monkeypatch.setattr(serving, "document", noted)
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        described = (await http.get("/openapi.json")).json()
        assert (await http.get("/openapi.json")).json() == described
    assert len(made) == 1
    assert described["openapi"].startswith("3.1.")
    assert described["paths"].keys() >= {"/healthz", "/metrics", "/openapi.json"}


async def test_a_surface_that_fails_answers_500_without_a_word_of_it(tmp_path: Path) -> None:
    """An unexpected failure is a bare 500; the next request is served."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        server.store.rows = None  # type: ignore[method-assign, assignment]  # breaks a handler
        failed = await http.get("/probe/streams/s")
        assert failed.status_code == 500
        envelope = {"error": "Internal server error", "code": "internal_error", "status": 500}
        assert failed.json() == envelope
        assert (await http.get("/healthz/live")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(tmp_path: Path, chunked: bool) -> None:
    """413 for a declared length and for a chunked body that grows beyond the limit."""

    async def chunks() -> object:
        for _ in range(20):
            yield b"x" * 100

    async with (
        running_server(tmp_path, limits=Limits(max_body_bytes=1000)) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        content = chunks() if chunked else b"x" * 1001
        answer = await http.post("/probe/entries", content=content)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert (await http.post("/probe/entries", content=PUT % 1)).status_code == 201


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nlong: " + b"y" * 3000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nnever-ending: " + b"y" * 3000,
        b"GET /healthz?" + b"y" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
    ],
    ids=["long value", "unfinished value", "long path", "many headers"],
)
async def test_headers_over_the_limit_are_refused(tmp_path: Path, head: bytes) -> None:
    """431 for too many bytes or too many headers, complete or not, and the connection ends."""
    async with running_server(tmp_path, limits=Limits(max_header_bytes=2048)) as server:
        answer = await exchange(port_of(server), head)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert server.metrics.refusals.labels("header_size")._value.get() == 1


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nhost:"], ids=["nothing", "half a head"]
)
async def test_a_head_that_does_not_come_is_cut_off(tmp_path: Path, sent: bytes) -> None:
    """A connection without a complete head is ended after `header_timeout_ms`."""
    async with running_server(tmp_path, limits=Limits(header_timeout_ms=200)) as server:
        answer = await exchange(port_of(server), sent)
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_does_not_come_is_cut_off(tmp_path: Path) -> None:
    """A request whose body stops arriving is answered 408 after `idle_timeout_ms`."""
    async with running_server(tmp_path, limits=Limits(idle_timeout_ms=200)) as server:
        request = b"POST /probe/entries HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf"
        answer = await exchange(port_of(server), request)
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_connections_over_the_limit_are_refused(tmp_path: Path) -> None:
    """The connection beyond `max_connections` gets 503; a place that is given back is given out."""
    async with running_server(tmp_path, limits=Limits(max_connections=2)) as server:
        port = port_of(server)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await exchange(port, b"")).startswith(b"HTTP/1.1 503 ")
        held[0][1].close()
        await asyncio.sleep(0.05)
        request = b"GET /healthz/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        assert (await exchange(port, request)).startswith(b"HTTP/1.1 200 ")
        held[1][1].close()


async def test_garbage_is_answered_and_hurts_nobody(tmp_path: Path) -> None:
    """Bytes that are not HTTP get 400; a neighbour on a kept connection notices nothing."""
    async with (
        running_server(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        assert (await http.get("/healthz/live")).status_code == 200
        assert (await exchange(port_of(server), b"\x16\x03\x01\0garbage\r\n\r\n")).startswith(
            b"HTTP/1.1 400 "
        )
        assert (await http.get("/healthz/live")).status_code == 200


async def test_the_orderly_end_finishes_what_was_accepted(tmp_path: Path) -> None:
    """SIGTERM under load: every answered put is stored, sockets close with 1001, the exit is 0."""
    with ServerProcess(data_dir=tmp_path) as server:
        server.start()
        answered: list[str] = []
        codes: list[int | None] = []

        async def write(name: int) -> None:
            async with connect(f"ws://127.0.0.1:{server.port}/probe/ws") as socket:
                try:
                    for number in range(100_000):
                        put = {"op": "put", "stream": "s", "key": f"{name}-{number}", "value": 1}
                        await socket.send(json.dumps(put))
                        result = json.loads(await socket.recv())
                        if result["status"] == "committed":
                            answered.append(result["key"])
                except ConnectionClosed as closed:
                    codes.append(closed.rcvd.code if closed.rcvd else None)

        writers = [asyncio.create_task(write(name)) for name in range(8)]
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(server.terminate) == 0
        await asyncio.gather(*writers)
    assert codes == [1001] * 8
    stored = {entry.entity for entry in await read_log(str(tmp_path / "tidelog.db"))}
    assert stored >= set(answered)
    assert len(answered) > 8


async def test_a_request_that_is_not_whole_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a body: it is told so at once, however long the server would wait for answers."""
    monkeypatch.setattr(web_server, "END_SECONDS", 3600.0)
    async with asyncio.timeout(60), running_server(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        head = b"POST /probe/entries HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
        writer.write(head + b"expect: 100-continue\r\n\r\n{")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        server.stop()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close\r\n" in answer
    assert b'"code":"service_unavailable"' in answer


async def test_a_connection_of_the_last_moment_is_ended(tmp_path: Path) -> None:
    """It was accepted before the end, and begins when all others were told to leave."""
    async with asyncio.timeout(60), running_server(tmp_path) as server:
        ended = server._server
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: ended._http(ended), theirs)
    with ours:
        ours.setblocking(False)
        async with asyncio.timeout(60):
            assert await loop.sock_recv(ours, 1) == b""


async def test_a_taken_port_is_explained(tmp_path: Path) -> None:
    """A port in use is a configuration error that says what to do."""
    async with running_server(tmp_path / "a") as server:
        settings = Settings(data_dir=str(tmp_path / "b"), port=port_of(server))
        with pytest.raises(ConfigError, match="Choose another --host or --port"):
            await Server.open(settings)


async def test_tls_serves_http_and_websocket(tmp_path: Path) -> None:
    """With a certificate and a key, one port speaks https and wss, and plain HTTP is not served."""
    certificate = make_certificate(tmp_path)
    settings = Settings(
        data_dir=str(tmp_path / "data"),
        port=0,
        tls_certificate=str(certificate),
        tls_key=str(certificate),
    )
    server = await Server.open(settings)
    running = asyncio.create_task(server.run())
    trust = ssl.create_default_context(cafile=str(certificate))
    try:
        async with httpx.AsyncClient(base_url=server.url, verify=trust) as http:
            assert (await http.get("/healthz")).json()["ready"] is True
        client = HttpClient(port_of(server))
        with pytest.raises((OSError, EOFError)):
            await client.post("/probe/entries", PUT % 1)
        client.close()
    finally:
        server.stop()
        await running


async def test_tls_tells_when_a_peer_has_taken_everything(tmp_path: Path) -> None:
    """What waits for that goes on: a rewind is complete."""
    certificate = make_certificate(tmp_path)
    settings = Settings(
        apps=[channels_peer.APP],
        tls_certificate=str(certificate),
        tls_key=str(certificate),
    )
    mounts, extensions = _surfaces(settings)
    trust = ssl.create_default_context(cafile=str(certificate))
    async with (
        running_server(
            tmp_path / "data", settings=settings, mounts=mounts, extensions=extensions
        ) as server,
        httpx.AsyncClient(verify=trust) as http,
    ):
        await channels_peer.Api(server.url, http).publish("room")
        url = server.url.replace("http", "ws", 1)
        path = f"/app/{channels_peer.APP.key}?{channels_peer.V2_QUERY}"
        async with connect(url + path, ssl=trust) as socket, asyncio.timeout(10):
            data = {"channel": "room", "rewind": 1}
            await socket.send(json.dumps({"event": "sockudo:subscribe", "data": data}))
            while "rewind_complete" not in str(await socket.recv()):
                pass


async def test_a_pipelined_refusal_does_not_take_an_earlier_answers_place(tmp_path: Path) -> None:
    """A bad request behind a good one: the good one's answer is sent, then the connection ends."""
    body = PUT % 1
    good = b"POST /probe/entries HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with running_server(tmp_path) as server:
        for bad in (
            b"GET /healthz HTTP/1.1\r\nlong: " + b"y" * 40_000 + b"\r\n\r\n",
            b"nonsense\r\n\r\n",
            (
                b"GET /probe/ws HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n"
                b"connection: upgrade\r\nsec-websocket-version: 13\r\n"
                b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            ),
        ):
            answer = await exchange(port_of(server), good + body + bad)
            assert answer.startswith((b"HTTP/1.1 201 ", b"HTTP/1.1 200 "))
            assert answer.count(b"HTTP/1.1 ") == 1


async def test_trailers_and_forwarding_headers_are_not_believed(tmp_path: Path) -> None:
    """What follows a chunked body is no header, and a peer does not choose its own address."""
    seen: list[HttpRequest] = []

    class Listener:
        name = "listener"

        def routes(self) -> list[Route]:
            return [Route("POST", "/hear", self.hear)]

        def endpoints(self) -> list[Endpoint]:
            return []

        async def hear(self, request: HttpRequest) -> HttpResponse:
            seen.append(request)
            return HttpResponse(200)

    async def mount(node: Node) -> Listener:
        del node
        return Listener()

    request = (
        b"POST /hear HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
        b"x-forwarded-for: 6.6.6.6\r\ntrailer: authorization\r\n\r\n"
        b"2\r\nhi\r\n0\r\nauthorization: Bearer stolen\r\n\r\n"
    )
    async with running_server(tmp_path, mounts=(mount,), extensions=()) as server:
        assert (await exchange(port_of(server), request)).startswith(b"HTTP/1.1 200 ")
    assert seen[0].body == b"hi"
    assert seen[0].header(b"authorization") is None
    assert seen[0].peer == "127.0.0.1"


async def test_work_that_hangs_is_given_up_when_the_grace_ends(
    postgresql_url: str, tmp_path: Path
) -> None:
    """The head lock held by another: after the grace callers are answered and the server ends."""
    limits = Limits(shutdown_grace_ms=500)
    holder = await asyncpg.connect(postgresql_url)
    async with running_server(tmp_path, store=postgresql_url, limits=limits) as server:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM tidelog.head FOR UPDATE")
        client = HttpClient(port_of(server))
        waiting = asyncio.create_task(client.post("/probe/entries", PUT % 1))
        await asyncio.sleep(0.2)
        server.stop()
        status, answer = await asyncio.wait_for(waiting, 5)
        assert (status, answer["status"]) == (503, "failed")
        client.close()
    await transaction.rollback()
    await holder.close()


async def test_a_reader_slower_than_the_disk_still_attaches(tmp_path: Path) -> None:
    """Stored pages wait for the socket: far more than the send buffer arrives, and in order."""
    limits = Limits(send_buffer_bytes=200_000, send_buffer_messages=300)
    value = json.dumps("x" * 4000)
    async with running_server(tmp_path, limits=limits) as server:
        port = port_of(server)
        clients = [HttpClient(port) for _ in range(16)]

        async def write(client: HttpClient, numbers: range) -> None:
            for number in numbers:
                put = f'{{"op":"put","stream":"s","key":"{number}","value":{value}}}'
                assert (await client.post("/probe/entries", put.encode()))[0] == 201
            client.close()

        await asyncio.gather(
            *(write(client, range(n, 1600, 16)) for n, client in enumerate(clients))
        )
        async with connect(f"ws://127.0.0.1:{port}/probe/ws", max_queue=1) as socket:
            await socket.send('{"op":"subscribe","stream":"s"}')
            await socket.recv()
            for serial in range(1, 1601):
                assert json.loads(await socket.recv())["stream_serial"] == serial
                if serial % 100 == 0:
                    await asyncio.sleep(0.01)
        assert server.metrics.slow_consumers._value.get() == 0
