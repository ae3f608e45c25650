"""Nobody but the user's own programs gets in, and none of them can take everything (mesh 3.1)."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.daemon.no_uplink import NoUplink
from support.mesh.local_daemon import LocalDaemon, running, until, with_ipc
from tidelog.daemon.ipc import token_file
from tidelog.mesh.protocol.negotiation import REQUIRED

SEND = b'{"to":"topic:alerts","message":"x"}'
POST = b"POST /v1/send HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(SEND)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[LocalDaemon]:
    """A daemon whose patience is short."""
    settings = with_ipc(
        header_timeout_ms=200,
        body_timeout_ms=200,
        keep_alive_timeout_ms=600,
        rate_burst=50,
        rate_per_second=10,
        max_connections=20,
        stream_buffer_bytes=65_536,
    )
    async with running(tmp_path, settings=settings) as started:
        yield started


async def raw(daemon: LocalDaemon, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Everything the daemon says to these bytes until it closes."""
    reader, writer = await asyncio.open_unix_connection(str(daemon.socket))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


def test_the_files_are_private(tmp_path: Path) -> None:
    """The token and the stores are readable by their owner only."""
    LocalDaemon(tmp_path).outbox.close()
    for name in ("token", "outbox.db", "inbox.db"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


async def test_the_socket_is_private(daemon: LocalDaemon) -> None:
    """Its file is the authentication."""
    assert daemon.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]", 200),
        ("[::1]:99", 200),
        ("", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("[::1].evil.example", 403),
        ("[::2]", 403),
    ],
)
async def test_only_this_machine_is_a_host(host: str, status: int, daemon: LocalDaemon) -> None:
    """A name that was made to point here is refused on either transport."""
    for client in (daemon.unix(), daemon.tcp()):
        async with client:
            response = await client.get("/v1/health", headers={"Host": host})
            assert response.status_code == status


async def test_a_browser_gets_nothing(daemon: LocalDaemon) -> None:
    """An Origin and a preflight are refused, and no answer opens itself to pages."""
    async with daemon.unix() as client:
        origin = await client.get("/v1/health", headers={"Origin": "null"})
        preflight = await client.options("/v1/send")
        plain = await client.get("/v1/health")
    assert (origin.status_code, preflight.status_code, plain.status_code) == (403, 403, 200)
    for response in (origin, preflight, plain):
        assert "access-control-allow-origin" not in response.headers


async def test_an_allowed_origin_is_served(tmp_path: Path) -> None:
    """The list is exact."""
    settings = with_ipc(allowed_origins=["http://localhost:3000"])
    async with running(tmp_path, settings=settings) as daemon, daemon.unix() as client:
        good = await client.get("/v1/health", headers={"Origin": "http://localhost:3000"})
        bad = await client.get("/v1/health", headers={"Origin": "http://localhost:30000"})
    assert (good.status_code, bad.status_code) == (200, 403)


@pytest.mark.parametrize("path", ["/v1/health", "/v1/metrics", "/v1/version", "/v1/nothing"])
async def test_every_endpoint_needs_the_token(path: str, daemon: LocalDaemon) -> None:
    """Also those that look harmless, and those that do not exist."""
    async with daemon.tcp("wrong") as client:
        response = await client.get(path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


async def test_health_can_be_public(tmp_path: Path) -> None:
    """That, and nothing else."""
    settings = with_ipc(public_health_check=True)
    async with running(tmp_path, settings=settings) as daemon, daemon.tcp("wrong") as client:
        assert (await client.get("/v1/health")).status_code == 200
        assert (await client.get("/v1/version")).status_code == 401


@pytest.mark.parametrize("query", ["token=secret", "a=1&TOKEN=secret", "%74oken=secret", "token"])
async def test_a_token_in_a_url_is_refused(
    query: str, daemon: LocalDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """On either transport, with a line in the log that does not repeat it."""
    with caplog.at_level(logging.WARNING):
        async with daemon.unix() as client:
            response = await client.get(f"/v1/health?{query}")
    assert (response.status_code, response.json()["error"]) == (400, "token_in_url")
    assert "security" in caplog.text
    assert "secret" not in caplog.text


async def test_a_replaced_token_works_at_once(daemon: LocalDaemon) -> None:
    """The old one goes on for a minute."""
    async with daemon.tcp() as old:
        token_file.rotate(daemon.folder / "token")
        async with daemon.tcp() as new:
            for client in (new, old):
                assert (await client.get("/v1/health")).status_code == 200


async def test_a_slow_head_is_cut_off(daemon: LocalDaemon) -> None:
    """A caller that dribbles a head does not hold a connection for ever."""
    assert b" 408 " in await raw(daemon, b"POST /v1/se", b"nd HTTP/1.1\r\n")


async def test_a_slow_body_is_cut_off(daemon: LocalDaemon) -> None:
    """It would hold one of the requests in flight."""
    assert b" 408 " in await raw(daemon, POST, SEND[:5])
    assert daemon.server.in_flight == 0
    assert daemon.row_count() == 0


async def test_an_idle_connection_is_closed(daemon: LocalDaemon) -> None:
    """Connections are few."""
    assert await raw(daemon) == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 20_000, 431),
        (b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request_ends_the_connection(
    request_bytes: bytes, status: int, daemon: LocalDaemon
) -> None:
    """With one answer that says why."""
    answer = await raw(daemon, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1


async def test_pipelined_requests_are_answered_in_order(daemon: LocalDaemon) -> None:
    """Also when one of them is refused at its head, and its body follows."""
    refused = POST.replace(b"\r\n\r\n", b"\r\nOrigin: x\r\n\r\n")
    last = b"GET /v1/nothing HTTP/1.0\r\n\r\n"
    answer = await raw(daemon, POST + SEND + refused + SEND + POST + SEND + last)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
    assert statuses == [b"202", b"403", b"202", b"404"]


async def test_a_body_may_come_in_chunks_after_a_continue(daemon: LocalDaemon) -> None:
    """As curl sends it."""
    head = b"POST /v1/send HTTP/1.0\r\nConnection: close\r\nExpect: 100-continue\r\n"
    head = head.replace(b"1.0", b"1.1") + b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SEND), SEND)
    answer = await raw(daemon, head, chunks)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 ")


async def test_an_endless_body_is_refused_and_cut_off(daemon: LocalDaemon) -> None:
    """It is answered when it becomes too large, and dropped from then on."""
    reader, writer = await asyncio.open_unix_connection(str(daemon.socket))
    writer.write(b"POST /v1/send HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%s\r\n" % (65_536, b"x" * 65_536)
    answer = asyncio.create_task(reader.readline())
    with suppress(ConnectionError):
        for _ in range(1000):
            writer.write(chunk)
            await writer.drain()
    assert b" 413 " in await answer
    writer.close()
    await until(lambda: not daemon.server.connections)
    assert daemon.server.in_flight == 0


async def test_one_caller_has_a_rate(tmp_path: Path) -> None:
    """Beyond the burst it is told when to come back; the other transport is not affected."""
    settings = with_ipc(rate_burst=5, rate_per_second=1)
    async with (
        running(tmp_path, settings=settings) as daemon,
        daemon.unix() as client,
        daemon.tcp() as other,
    ):
        answers = [await client.get("/v1/version") for _ in range(30)]
        assert (await other.get("/v1/version")).status_code == 200
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert refused[0].json()["error"] == "daemon_busy"
    assert int(refused[0].headers["retry-after"]) >= 1


async def test_connections_are_bounded(daemon: LocalDaemon) -> None:
    """One more is told so and closed."""
    held = [await asyncio.open_unix_connection(str(daemon.socket)) for _ in range(20)]
    await until(lambda: len(daemon.server.connections) == 20)
    assert b" 429 " in await raw(daemon)
    for _, writer in held:
        writer.close()


async def test_unknown_paths_and_methods_are_named(daemon: LocalDaemon) -> None:
    """404 and 405, as JSON."""
    async with daemon.unix() as client:
        missing, wrong = await client.get("/v2/send"), await client.get("/v1/send")
    assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


async def test_a_failure_inside_is_a_500(
    daemon: LocalDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect ends neither the daemon nor the connection."""

    def fail(*_: object) -> None:
        raise RuntimeError("defect")

    async with daemon.unix() as client:
        with monkeypatch.context() as patch:
            patch.setattr(daemon.outbox, "accept", fail)
            response = await client.post("/v1/send", content=SEND)
        assert (response.status_code, response.json()["error"]) == (500, "internal")
        assert (await client.post("/v1/send", content=SEND)).status_code == 202


async def test_about_the_daemon(daemon: LocalDaemon) -> None:
    """Health, version, compatibility and heartbeat have the contract's members."""
    async with daemon.unix() as client:
        await client.post("/v1/send", content=SEND)
        health = (await client.get("/v1/health")).json()
        version = (await client.get("/v1/version")).json()
        compat = (await client.get("/v1/compat")).json()
        heartbeat = (await client.post("/v1/heartbeat")).json()
        metrics = await client.get("/v1/metrics")
    assert {
        *("connected", "lag_ms", "queue_depth", "inflight", "mesh", "member_pubkey", "uptime_s"),
        *("schema_version", "daemon_version", "broker_version", "budget_bytes"),
    } <= set(health)
    assert (health["dead"], health["possibly_lost"], health["kept_bytes"]) == (0, 0, 0)
    assert 512 < health["waiting_bytes"] < 2048
    assert (health["queue_depth"], health["connected"]) == (1, True)
    assert {
        *("daemon_version", "ipc_api", "ipc_features", "schema_version"),
        "broker_features_negotiated",
    } <= set(version)
    assert compat["required_broker_features"] == list(REQUIRED)
    assert heartbeat["connected"] is True
    text = metrics.text
    assert 'tidelog_daemon_outbox_depth{status="pending"} 1.0' in text
    assert 'tidelog_daemon_ipc_request_total{path="/v1/send",status="202"} 1.0' in text
    for stem in (
        *("connected", "outbox_age_seconds", "dedupe_total", "disk_pct", "recv_total"),
        *("dedupe_history_pruned_total", "retry_after_dedupe_expired_total"),
        "invalid_inbound_total",
    ):
        assert f"tidelog_daemon_{stem}" in text


async def test_topics_are_asked_of_the_broker(daemon: LocalDaemon) -> None:
    """Its answers are passed on as they are."""
    async with daemon.unix() as client:
        subscribed = await client.post("/v1/topic/subscribe", json={"topic": "a"})
        missing = await client.post("/v1/topic/unsubscribe", json={"topic": "a"})
        listed = await client.get("/v1/topic/list")
        invalid = await client.post("/v1/topic/subscribe", json={"topic": 5})
    assert subscribed.json() == {"topic": "a"}
    assert (missing.status_code, missing.json()["error"]) == (404, "topic_not_found")
    assert listed.json()["topics"][0]["name"] == "alerts"
    assert invalid.status_code == 400


async def test_topics_need_a_broker(tmp_path: Path) -> None:
    """Without one the answer says so, and sends go on being accepted."""
    async with running(tmp_path, uplink=NoUplink()) as daemon, daemon.unix() as client:
        answers = [
            await client.post("/v1/topic/subscribe", json={"topic": "a"}),
            await client.post("/v1/topic/unsubscribe", json={"topic": "a"}),
            await client.get("/v1/topic/list"),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]) == (503, "broker_unreachable")
            assert "not connected" in answer.json()["detail"]
        send = json.loads(SEND)
        assert (await client.post("/v1/send", json=send)).status_code == 202
