"""`kill -9` of the real process while it ends streams that nobody writes any more."""

import asyncio
from pathlib import Path

from support.channels.peer import APP, message_path
from support.channels.raw import RawClient
from support.command import tidelog
from tidelog.base.faultpoint import FaultPoint
from tidelog.testing.process import ServerProcess

STREAMING = {"ai": {"transport": {"status": "streaming", "run-id": "r"}}}
CANCELLED = {"status": "cancelled", "error-code": "orphan_timeout", "run-id": "r"}
CHANNEL = "tokens"
COUNT = 8
POINTS = (
    FaultPoint.DECIDED,
    FaultPoint.ENTRIES_WRITTEN,
    FaultPoint.WRITTEN,
    FaultPoint.COMMITTING,
    FaultPoint.COMMITTED,
)
"""The last one leaves something ended that nobody was told of."""


def configure(path: Path, timeout_seconds: float) -> None:
    """The configuration of the next start."""
    path.write_text(
        f"""
[[apps]]
id = "{APP.id}"
key = "{APP.key}"
secret = "{APP.secret}"

[channels.versioned_messages]
enabled = true

[channels.ai_transport]
orphan_timeout_seconds = {timeout_seconds}
""",
        encoding="utf-8",
    )


async def test_a_dead_writers_streams_end_once_whatever_is_killed(
    store_location: str, tmp_path: Path
) -> None:
    """Found again after every kill, and each ended by one version."""
    config = tmp_path / "tidelog.toml"
    configure(config, 86_400)
    with ServerProcess(
        data_dir=tmp_path / "data", store=store_location, arguments=("--config", str(config))
    ) as server:
        server.start()
        client = RawClient(lambda: server.port)
        serials = []
        for number in range(COUNT):
            body = {"name": "ai-token", "channel": CHANNEL, "data": f"{number}"}
            answer = await client.request("POST", "/events", {**body, "extras": STREAMING})
            serials.append(answer.json["channels"][CHANNEL]["message_serial"])
        client.close()
        server.kill()
        configure(config, 0.2)
        for point in POINTS:
            server.start(f"{point}=kill")
            assert await asyncio.to_thread(server.wait, 60) == -9, point
        server.start()
        client = RawClient(lambda: server.port)
        for number, serial in enumerate(serials):
            path = message_path(CHANNEL, serial)
            async with asyncio.timeout(60):
                item = (await client.get(path))["item"]
                while item["extras"]["ai"]["transport"]["status"] == "streaming":
                    await asyncio.sleep(0.02)
                    item = (await client.get(path))["item"]
            assert item["extras"]["ai"]["transport"] == CANCELLED
            assert item["data"] == f"{number}"
            assert len((await client.get(f"{path}/versions"))["items"]) == 2
        client.close()
        assert server.terminate() == 0
    await tidelog("log", "verify", "--store", store_location)
