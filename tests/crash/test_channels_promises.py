"""What channels promised beside messages holds after a `kill -9` of the real process."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.channels_peer import APP, Api, ok, refused
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
        async with httpx.AsyncClient(timeout=WAIT_SECONDS) as http:
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
