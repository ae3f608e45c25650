"""A member token counts once, whatever happens to the process (mesh 9.5)."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

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


async def test_a_used_token_stays_used_while_a_body_is_on_its_way(
    store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds a body back until a use is forgotten; one that is late by little is taken."""
    monkeypatch.setattr("tidelog.mesh.upkeep.used_tokens.FORGET_EVERY", 1)
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker, AsyncExitStack() as stack:
        slug = await broker.mesh()
        ana = await broker.member(slug)
        await ana.topic("alerts")
        used, body = ana.token(), json.dumps(envelope()).encode()
        assert (await ana.request("GET", "/topics", token=used)).status_code == 200
        address, peers = urlsplit(broker.url), []
        for token in (used, ana.token(), used, ana.token()):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            stack.callback(writer.close)
            head = (
                f"POST /mesh/{slug}/messages HTTP/1.1\r\nhost: broker\r\nexpect: 100-continue\r\n"
                f"authorization: Bearer {token}\r\nidempotency-key: {unique()}\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode())
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            peers.append((reader, writer))
        answers = []
        for passed_ms in (310_000, 90_000):  # a token is good for 300 s
            clock.advance(passed_ms)
            assert (await ana.request("GET", "/topics")).status_code == 200
            for reader, writer in (peers.pop(0), peers.pop(0)):
                writer.write(body)
                answers.append(int((await reader.readuntil(b"\r\n\r\n")).split()[1]))
        assert answers == [401, 201, 401, 401]


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
