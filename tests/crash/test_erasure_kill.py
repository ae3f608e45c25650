"""`kill -9` at every step of an erasure: what was accepted is erased, whoever finishes it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from support.channels.peer import Api, message_path, ok
from tidelog.base.faultpoint import FaultPoint
from tidelog.channels.settings import App
from tidelog.testing.process import CREDENTIALS, ServerProcess

SECRET = "the moon is made of gruyere"
MESSAGES = 1100
"""More than one step empties."""

APP = App(
    id=CREDENTIALS["TIDELOG_APP_ID"],
    key=CREDENTIALS["TIDELOG_APP_KEY"],
    secret=CREDENTIALS["TIDELOG_APP_SECRET"],
)
ENABLED = {"TIDELOG_CHANNELS_VERSIONED_MESSAGES_ENABLED": "true"}


async def fill(api: Api) -> None:
    """Messages of a channel, ten at a time."""
    event = {"name": "chat.message", "channel": "room", "data": SECRET}
    for _ in range(MESSAGES // 10):
        ok(await api.post("/batch_events", {"batch": [event] * 10}))


async def left(store: str) -> int:
    """Places in the store's files, or rows of it, that still hold the secret."""
    if not store.startswith("postgresql://"):
        path = Path(store)
        files = (path, path.with_name(path.name + "-wal"))
        return sum(f.read_bytes().count(SECRET.encode()) for f in files if f.exists())
    connection = await asyncpg.connect(store)
    try:
        text = "SELECT count(*) FROM tidelog.log WHERE position($1::bytea IN body) > 0"
        count: int = await connection.fetchval(text, SECRET.encode())
        return count
    finally:
        await connection.close()


async def test_an_erasure_survives_every_kill(
    tmp_path: Path, store_location: str, engine: str
) -> None:
    """Nothing of it is served after any of them, and in the end no byte is left."""
    store = store_location if engine == "postgresql" else str(tmp_path / "tidelog.db")
    kills = dict.fromkeys((FaultPoint.WRITTEN, FaultPoint.COMMITTED), 0)
    with ServerProcess(data_dir=tmp_path, store=store, environment=ENABLED) as server:
        await asyncio.to_thread(server.start)
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            api = Api(server.url, client, APP)
            await fill(api)
            ack = await api.publish("room", SECRET)
            kept = await api.publish("other", "kept")
            await asyncio.to_thread(server.terminate)
            assert await left(store) > MESSAGES
            is_complete = False
            while not is_complete:
                # Before the commit every third time: then nothing has happened.
                point = FaultPoint.WRITTEN if sum(kills.values()) % 3 == 1 else FaultPoint.COMMITTED
                try:
                    await asyncio.to_thread(server.start, f"{point}=kill")
                except RuntimeError:  # it died before it was ready
                    kills[point] += 1
                    continue
                try:
                    if not await state(api):
                        await api.post("/forget", {"channel": "room", "reason": "r"})
                    while not is_complete:
                        is_complete = (await state(api))["complete"]
                        path = message_path("room", ack["message_serial"])
                        assert (await api.get(path)).status_code == 404
                        await asyncio.sleep(0.02)
                    await asyncio.to_thread(server.terminate)
                except httpx.HTTPError:
                    await asyncio.to_thread(server.wait)
                    kills[point] += 1
            await asyncio.to_thread(server.start)
            assert await left(store) == 0
            assert (await api.item("other", kept["message_serial"]))["data"] == "kept"
            entries = (await api.history("room"))["items"]
            assert entries == []
            assert await asyncio.to_thread(server.terminate) == 0
    print(f"{engine}: killed {json.dumps(kills)}")  # noqa: T201
    assert kills[FaultPoint.COMMITTED] >= 5, "the order, two steps of emptying, two of noting"
    assert kills[FaultPoint.WRITTEN] >= 2


async def state(api: Api) -> dict[str, Any]:
    """How far it is; empty if it was not accepted."""
    answer = await api.get("/forget", channel="room")
    found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    return found
