"""A member token counts once, whatever happens to the process (mesh 9.5)."""

from pathlib import Path

import pytest

from support.mesh.peer import envelope, running_broker, unique
from tidelog.testing.clock import FakeClock


async def test_a_used_token_stays_used_after_a_restart(store_location: str, tmp_path: Path) -> None:
    """What was overheard before a restart opens nothing after it."""
    async with running_broker(tmp_path, store_location) as broker:
        slug = await broker.mesh()
        ana = await broker.member(slug)
        await ana.topic("alerts")
        token = ana.token()
        assert (await ana.request("GET", "/topics", token=token)).status_code == 200
    async with running_broker(tmp_path, store_location) as broker:
        ana.broker = broker
        replayed = await ana.post(unique(), envelope(), token=token)
        assert (replayed.status_code, replayed.json()["error"]) == (401, "unauthenticated")
        assert await broker.rows("SELECT * FROM {}", "message_history") == []
        assert (await ana.post(unique(), envelope())).status_code == 201


async def test_expired_tokens_are_forgotten(
    store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be used anyway takes no room."""
    monkeypatch.setattr("tidelog.mesh.upkeep.used_tokens.FORGET_EVERY", 2)
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker:
        slug = await broker.mesh()
        ana = await broker.member(slug)
        for _ in range(4):
            assert (await ana.request("GET", "/topics")).status_code == 200
        clock.advance(400_000)
        for _ in range(2):
            assert (await ana.request("GET", "/topics")).status_code == 200
        [(count,)] = await broker.database.run("SELECT count(*) FROM mesh_used_token")
        assert count <= 2
