"""What channels promised beside messages holds after a `kill -9` of the real process."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from support.channels.peer import APP, Api, ok, refused, token
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 30.0

CONFIG = f"""
[[apps]]
id = "{APP.id}"
key = "{APP.key}"
secret = "{APP.secret}"

[channels.versioned_messages]
enabled = true
"""


@pytest.fixture
def server(store_location: str, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server, started."""
    config = tmp_path / "tidelog.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with ServerProcess(
        data_dir=tmp_path / "data", store=store_location, arguments=("--config", str(config))
    ) as process:
        process.start()
        yield process


async def test_a_repeated_batch_publishes_once(server: ServerProcess) -> None:
    """A part was accepted, the server was killed, and the client tries again."""
    taken = {"name": "taken", "channel": "till", "message_id": "m"}
    batch = [{"name": "pay", "channel": "till", "data": "5"}, {**taken, "name": "bad"}]
    for attempt in range(3):
        async with httpx.AsyncClient(timeout=WAIT_SECONDS, verify=False) as http:
            api = Api(server.url, http)
            ok(await api.post("/events", taken))
            response = await api.post(
                "/batch_events", {"batch": batch}, headers={"X-Idempotency-Key": "k"}
            )
            refused(response, 400, "invalid_input", index=1)
            rows = (await api.history("till"))["items"]
            names = [row["message"]["name"] for row in rows]
            assert names == ["pay", "taken"], f"attempt {attempt}"
        server.kill()
        server.start()


async def test_a_revoked_token_stays_revoked(server: ServerProcess) -> None:
    """By its `jti` or by its client; what was not revoked, or was issued later, opens as before."""
    now = int(time.time())
    revoked = [token("ana", jti="t-ana"), token("bo", iat=now - 5)]
    good = [token("ana", jti="other"), token("bo", iat=now + 20, exp=now + 3600), token("cy")]
    async with httpx.AsyncClient(timeout=WAIT_SECONDS, verify=False) as http:
        api = Api(server.url, http)
        ok(await api.post("/revocations", {"jti": "t-ana"}))
        ok(await api.post("/revocations", {"client_id": "bo"}))
    for _ in range(2):
        server.kill()
        server.start()
        for text in revoked:
            assert await first_event(server, text) == "sockudo:error"
        for text in good:
            assert await first_event(server, text) == "sockudo:connection_established"


async def first_event(server: ServerProcess, text: str) -> str:
    """What a socket with this token is told first."""
    url = f"ws://127.0.0.1:{server.port}/app/{APP.key}?protocol=2&token={text}"
    async with connect(url) as socket, asyncio.timeout(WAIT_SECONDS):
        event: str = json.loads(await socket.recv())["event"]
        return event
