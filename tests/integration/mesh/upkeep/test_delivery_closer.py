"""What waits for somebody who is gone is closed (mesh 7.1)."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from support.mesh.peer import Broker, Member, envelope, running_broker, unique
from tidelog.base.sql import sqlitefile
from tidelog.cli.verification import verify_store
from tidelog.config.schema import SCHEMA
from tidelog.mesh.upkeep import delivery_closer

BEFORE = 10
"""Migrations of the version that left such deliveries open."""


@pytest_asyncio.fixture
async def broker(store_location: str, tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker that looks often."""
    async with running_broker(tmp_path, store_location, reaper_interval_ms=20) as running:
        yield running


async def deliveries(broker: Broker, member: Member) -> list[tuple[str, str | None]]:
    """Status and error of what was to be delivered to somebody."""
    query = "SELECT status, last_error FROM {} WHERE recipient_pubkey = '%s' ORDER BY created_at"
    return [(row[0], row[1]) for row in await broker.rows(query % member.address, "delivery_queue")]


async def until(broker: Broker, member: Member, *wanted: tuple[str, str | None]) -> None:
    """Wait until that is so."""
    async with asyncio.timeout(60):
        while (found := await deliveries(broker, member)) != list(wanted):
            assert len(found) == len(wanted)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("error", ["member_revoked", "member_left"])
async def test_what_waits_for_a_former_member_is_closed(
    broker: Broker, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it is, step by step, and nobody else's; every check still holds."""
    monkeypatch.setattr(delivery_closer, "STEP_ROWS", 2)
    slug = await broker.mesh()
    ana, ben, cleo = [await broker.member(slug) for _ in range(3)]
    await ana.topic("alerts")
    for reader in (ben, cleo):
        await reader.subscribe("alerts")
    for number in range(4):
        assert (await ana.post(unique(), envelope(body=str(number)))).status_code == 201
    assert (await ana.post(unique(), envelope("dm", ben.address))).status_code == 201
    async with ben.connected() as wire:
        delivered = await wire.until("deliver")
        await wire.send(
            {
                "type": "client_ack",
                **{name: delivered[name] for name in ("broker_message_id", "claim_id")},
                "client_message_id": delivered["client_message_id"],
            }
        )
        await wire.ask("topics")
        if error == "member_left":
            await ben.request("DELETE", "/membership")
        else:
            await broker.admin("DELETE", f"/mesh/{slug}/members/{ben.address}")
    await until(broker, ben, ("delivered", None), *[("dead", error)] * 4)
    assert await deliveries(broker, cleo) == [("pending", None)] * 4
    assert await broker.owner.periodic.check() == 0
    assert (await verify_store(broker.service.store)).is_sound
    async with asyncio.timeout(60):
        while await broker.service.store.rows("mesh_ended_recipients", (10,)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_what_an_earlier_version_left_open_is_closed(tmp_path: Path) -> None:
    """The migration notes everybody who is gone, and seals topics with their creators."""
    path = tmp_path / "tidelog.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        sqlitefile.migrate(store, path, SCHEMA.migrations("sqlite")[:BEFORE])
        for key, revoked_at in (("aa", None), ("bb", 7)):
            store.execute(
                "INSERT INTO mesh_member (id, mesh_id, member_pubkey, name, created_at, revoked_at)"
                " VALUES (?, 'm', ?, 'x' || ?, 1, ?)",
                (key, key, key, revoked_at),
            )
        for name, sealed in (("right", "right"), ("changed", "other")):
            store.execute(
                "INSERT INTO mesh_topic (mesh_id, name, created_at, seal)"
                " VALUES ('m', ?, 1, seal('m', ?, 1))",
                (name, sealed),
            )
        sqlitefile.migrate(store, path, SCHEMA.migrations("sqlite"))
        sound = "SELECT name FROM mesh_topic WHERE seal = seal(mesh_id, name, created_at, NULL)"
        assert store.execute(sound).fetchall() == [("right",)], "what was changed still shows it"
        rows = store.execute("SELECT mesh_id, recipient_pubkey, reason FROM mesh_ended_recipient")
        assert rows.fetchall() == [("m", "bb", "member_revoked")]
