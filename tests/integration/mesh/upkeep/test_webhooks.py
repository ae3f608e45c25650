"""Endpoints over HTTP: signed, tried again, buried, and kept out of the server's own network."""

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.docs.markdown import Document
from support.mesh.peer import Broker, Json, Member, envelope, running_broker, unique
from support.mesh.webhook_receiver import CLOSE, OK, receiving
from support.web.certificate import make_certificate
from tidelog.base.net import tls
from tidelog.mesh.decide.webhook_posts import MAX_ATTEMPTS, post_backoff_ms
from tidelog.mesh.front.webhook_client import PostFailed, WebhookClient, is_public
from tidelog.mesh.upkeep.webhooks import Webhooks
from tidelog.testing.clock import FakeClock

SECRET = "a secret of sixteen or more"


class Endpoint:
    """A small HTTP server that answers what it is told to."""

    def __init__(self) -> None:
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((headers, body))
        writer.write(self.answer)
        await writer.drain()
        writer.close()

    def will_answer(self, status: int, *headers: str) -> None:
        """From now on."""
        lines = [f"HTTP/1.1 {status} X", "Content-Length: 0", *headers]
        self.answer = "\r\n".join(lines).encode() + b"\r\n\r\n"


@asynccontextmanager
async def listening() -> AsyncIterator[Endpoint]:
    """An endpoint on this machine."""
    endpoint = Endpoint()
    async with await asyncio.start_server(endpoint.handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint.url = f"http://127.0.0.1:{port}/hook?x=1"
        yield endpoint


class Scene:
    """A mesh with a topic, on a broker whose clock stands still, and an endpoint."""

    def __init__(self, broker: Broker, clock: FakeClock, ana: Member, endpoint: Endpoint) -> None:
        self.broker = broker
        self.clock = clock
        self.ana = ana
        self.endpoint = endpoint

    @property
    def webhooks(self) -> Webhooks:
        """What is tested."""
        return self.broker.owner.periodic._webhooks

    async def add(self, **fields: Any) -> str:
        """Add the endpoint; returns its id."""
        body = {"url": self.endpoint.url, "secret": SECRET, **fields}
        answer = await self.broker.admin("POST", f"/mesh/{self.ana.slug}/webhooks", body)
        assert answer.status_code == 201, answer.text
        endpoint_id: str = answer.json()["id"]
        return endpoint_id

    async def post(self, topic: str = "alerts", body: str = "hello") -> str:
        """Ana posts; returns the message's id."""
        answer = await self.ana.post(unique(), envelope("topic", topic, body))
        assert answer.status_code == 201, answer.text
        message: str = answer.json()["broker_message_id"]
        return message

    async def work(self) -> None:
        """Everything that is due now is tried."""
        await self.webhooks.look()
        await self.webhooks.settled()

    def counted(self, step: str) -> float:
        """Posts that came to this."""
        return self.broker.metric("tidelog_broker_deliveries_total", step=step)

    async def rows(self) -> list[tuple[Any, ...]]:
        """Status, attempts and error of the deliveries to endpoints."""
        return await self.broker.rows(
            "SELECT status, attempts, last_error FROM {} WHERE channel = 'webhook' "
            "ORDER BY history_id",
            "delivery_queue",
        )


@pytest_asyncio.fixture
async def scene(
    store_location: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    """A broker of the test's own; with the marker's argument also for private targets."""
    is_allowed = getattr(request, "param", True)
    clock = FakeClock()
    async with (
        listening() as endpoint,
        running_broker(
            tmp_path,
            store_location,
            clock,
            webhook_allow_private=is_allowed,
            webhook_timeout_ms=1000,
        ) as broker,
    ):
        ana = await broker.member(await broker.mesh())
        await ana.topic("alerts")
        yield Scene(broker, clock, ana, endpoint)


async def test_a_message_is_posted_and_signed(scene: Scene) -> None:
    """The envelope of the contract, an idempotency key, and a signature over the raw body."""
    endpoint_id = await scene.add(topic="alerts")
    message = await scene.post(body="disk 91%")
    await scene.work()
    [(headers, body)] = scene.endpoint.requests
    fields: Json = json.loads(body)
    assert (fields["broker_message_id"], fields["body"]) == (message, "disk 91%")
    assert (fields["mesh"], fields["topic"]) == (scene.ana.slug, "alerts")
    assert headers["idempotency-key"] == f"{message}:{endpoint_id}"
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-tidelog-signature"] == f"sha256={signature}"
    timestamp = str(scene.clock.now_ms() // 1000)
    assert headers["x-tidelog-timestamp"] == timestamp
    signed = timestamp.encode() + b"." + body
    signature = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["x-tidelog-signature-2"] == f"sha256={signature}"
    assert await scene.rows() == [("delivered", 1, None)]
    assert scene.counted("webhook_delivered") == 1


async def test_posts_over_https_share_a_connection(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake costs the event loop more than the post; the connection ends with the broker."""
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls._context.cache_clear()
    async with receiving(certificate) as receiver:
        await scene.add(url=receiver.url)
        for _ in range(3):
            await scene.post()
            await scene.work()
        assert len(receiver.bodies) == 3
        assert await scene.rows() == [("delivered", 1, None)] * 3
        assert receiver.opened == 1
        scene.webhooks.stop()
        await receiver.has_open(0)
    tls._context.cache_clear()


async def test_a_closed_connection_costs_no_attempt(scene: Scene) -> None:
    """The post that is made again on a new connection is the same attempt."""
    async with receiving() as receiver:
        receiver.answers = [OK, CLOSE]
        await scene.add(url=receiver.url)
        for _ in range(2):
            await scene.post()
            await scene.work()
        assert await scene.rows() == [("delivered", 1, None)] * 2
        assert len(receiver.bodies) == 3


async def test_a_receiver_verifies_as_printed(scene: Scene) -> None:
    """The snippet of mesh 7.4: a post is genuine as it came, and for five minutes."""
    [snippet] = [text for text in Document("protocol/mesh.md").blocks("7.4") if "def " in text]
    written: Json = {}
    exec(snippet, written)
    written["time"] = SimpleNamespace(time=lambda: scene.clock.now_ms() / 1000)
    await scene.add()
    await scene.post(body="disk 91%")
    scene.endpoint.will_answer(500)
    await scene.work()
    scene.endpoint.will_answer(200)
    scene.clock.advance(2000)
    await scene.work()
    (first, body), (second, _) = [
        (httpx.Headers(headers), body) for headers, body in scene.endpoint.requests
    ]
    assert first["x-tidelog-signature-2"] != second["x-tidelog-signature-2"]
    assert first["x-tidelog-signature"] == second["x-tidelog-signature"]

    def is_genuine(headers: httpx.Headers, body: bytes = body, secret: str = SECRET) -> bool:
        return bool(written["is_genuine"](headers, body, secret))

    assert is_genuine(first)
    assert is_genuine(second)
    assert not is_genuine(first, body + b" ")
    assert not is_genuine(first, secret=SECRET + "x")
    assert not is_genuine(httpx.Headers())
    moved = str(int(first["x-tidelog-timestamp"]) + 1)
    assert not is_genuine(httpx.Headers({**first, "x-tidelog-timestamp": moved}))
    assert not is_genuine(httpx.Headers({**first, "x-tidelog-signature-2": "sha256="}))
    scene.clock.advance(299_000)
    assert not is_genuine(first)
    assert is_genuine(second)
    scene.clock.advance(2000)
    assert not is_genuine(second)


async def test_only_endpoints_of_the_topic_or_of_the_mesh(scene: Scene) -> None:
    """An endpoint of another topic gets nothing, one of the whole mesh everything."""
    await scene.ana.topic("other")
    await scene.add(topic="other")
    await scene.add()
    await scene.post("alerts")
    await scene.work()
    assert len(scene.endpoint.requests) == 1


async def test_a_failing_endpoint_is_tried_again_and_then_buried(scene: Scene) -> None:
    """Pauses of 1, 2, 4 ... 300 s between twelve attempts; then the row is dead."""
    await scene.add()
    scene.endpoint.will_answer(500)
    await scene.post()
    for attempt in range(1, MAX_ATTEMPTS):
        await scene.work()
        assert await scene.rows() == [("pending", attempt, "status_500")]
        scene.clock.advance(post_backoff_ms(attempt) - 1)
        await scene.work()
        assert len(scene.endpoint.requests) == attempt
        scene.clock.advance(1)
    await scene.work()
    assert await scene.rows() == [("dead", MAX_ATTEMPTS, "status_500")]
    scene.clock.advance(10**9)
    await scene.work()
    assert len(scene.endpoint.requests) == MAX_ATTEMPTS
    assert scene.counted("webhook_pending") == MAX_ATTEMPTS - 1
    assert scene.counted("webhook_dead") == 1


def test_pauses() -> None:
    """They double from a second and end at five minutes."""
    assert [post_backoff_ms(n) for n in (1, 2, 3, 9, 10, 12)] == [
        1000,
        2000,
        4000,
        256_000,
        300_000,
        300_000,
    ]


async def test_an_endpoint_that_is_gone_is_disabled(scene: Scene) -> None:
    """410: no further attempt, no further row, and what waits for it is dead."""
    await scene.add()
    scene.endpoint.will_answer(500)
    await scene.post()
    await scene.work()
    scene.endpoint.will_answer(410)
    await scene.post()
    await scene.work()
    assert await scene.rows() == [
        ("dead", 1, "endpoint_disabled"),
        ("dead", 1, "endpoint_gone"),
    ]
    listed = await scene.broker.admin("GET", f"/mesh/{scene.ana.slug}/webhooks")
    assert [each["disabled"] for each in listed.json()["webhooks"]] == [True]
    await scene.post()
    await scene.work()
    assert len(scene.endpoint.requests) == 2


async def test_a_redirection_is_not_followed(scene: Scene) -> None:
    """It is a status that is not 2xx, wherever it points."""
    await scene.add()
    scene.endpoint.will_answer(302, f"Location: {scene.endpoint.url}")
    await scene.post()
    await scene.work()
    assert await scene.rows() == [("pending", 1, "status_302")]
    assert len(scene.endpoint.requests) == 1


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000]
)
async def test_an_answer_that_is_none(scene: Scene, answer: bytes) -> None:
    """Not HTTP, nothing at all, or a head without end: a failed attempt like any other."""
    await scene.add()
    scene.endpoint.answer = answer
    await scene.post()
    await scene.work()
    assert await scene.rows() == [("pending", 1, "answer_invalid")]


@pytest.mark.parametrize("scene", [False], indirect=True)
async def test_the_servers_own_network_is_out_of_reach(scene: Scene) -> None:
    """Without the setting a private target is never connected to."""
    await scene.add()
    await scene.add(url=scene.endpoint.url.replace("127.0.0.1", "localhost"))
    await scene.post()
    await scene.work()
    assert await scene.rows() == [("pending", 1, "target_not_allowed")] * 2
    assert scene.endpoint.requests == []


async def test_a_crash_during_the_last_attempt(scene: Scene) -> None:
    """A row that was leased twelve times and never reported is buried, not tried again."""
    await scene.add()
    await scene.post()
    await scene.work()
    await scene.broker.database.run(
        "UPDATE mesh_delivery_queue SET status = 'claimed', attempts = 12, claim_id = 'dead', "
        "claim_expires_at = 1, next_attempt_at = 1"
    )
    await scene.work()
    assert await scene.rows() == [("dead", 12, "attempts_exhausted")]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("::7f00:1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
    ],
)
def test_public_addresses(address: str, expected: bool) -> None:
    """However an address of this machine or its network is written, it is recognised."""
    assert is_public(ipaddress.ip_address(address)) is expected


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.com/", "url_invalid"),
        ("http://user@example.com/", "url_invalid"),
        ("http://127.0.0.1:1/", "connection_failed"),
        ("http://127.0.0.1:99999/", "connection_failed"),
    ],
)
async def test_urls_that_lead_nowhere(url: str, code: str) -> None:
    """Each has a word of its own, which is safe to store."""
    with pytest.raises(PostFailed, match=code):
        await WebhookClient(timeout_s=2, may_be_private=True).post(url, {}, b"")
