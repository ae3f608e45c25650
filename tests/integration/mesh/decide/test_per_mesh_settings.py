"""The settings of a mesh are read and changed, and hold from then on (mesh 6.3, 6.4, 9.4)."""

from pathlib import Path
from typing import Any

import pytest

from support.mesh.peer import Broker, Wire, envelope, running_broker, unique
from tidelog.mesh.protocol.model import DAY_MS
from tidelog.mesh.protocol.slug import is_slug
from tidelog.mesh.upkeep.orphan_check import find_orphans
from tidelog.testing.clock import FakeClock

DEFAULTS = {
    "dedupe_retention_mode": "retention_scoped",
    "dedupe_retention_days": 365,
    "message_retention_days": None,
    "echo_to_sender": False,
    "clone_concurrency_policy": "prefer_newest",
    "rate_limit": 6000,
    "rate_window_ms": 60_000,
}


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_named_changes_and_the_rest_stays(broker: Broker) -> None:
    """An administrator reads the settings and changes some; saying the same again is no change."""
    slug = await broker.mesh()
    first = (await broker.admin("GET", f"/mesh/{slug}")).json()
    assert {name: first[name] for name in DEFAULTS} == DEFAULTS
    change = {"rate_limit": 7, "message_retention_days": 30, "echo_to_sender": True}
    for _ in range(2):
        answer = await broker.admin("PATCH", f"/mesh/{slug}", change)
        assert (answer.status_code, answer.json()) == (200, {**first, **change})
    back = await broker.admin("PATCH", f"/mesh/{slug}", {"message_retention_days": None})
    expected = {**first, **change, "message_retention_days": None}
    assert back.json() == (await broker.admin("GET", f"/mesh/{slug}")).json() == expected
    stored = await broker.rows(
        f"SELECT dedupe_retention_days, message_retention_days FROM {{}} WHERE slug = '{slug}'",
        "mesh",
    )
    assert stored == [(365, None)]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"slug": "another"},
        {"dedupe_retention_days": 6},
        {"dedupe_retention_days": None},
        {"dedupe_retention_mode": "windowed"},
        {"message_retention_days": 0},
        {"echo_to_sender": 1},
        {"clone_concurrency_policy": "prefer_mine"},
        {"clone_concurrency_policy": None},
        {"rate_limit": True},
        {"rate_window_ms": 99},
    ],
)
async def test_a_change_that_cannot_be(broker: Broker, change: dict[str, Any]) -> None:
    """It is refused whole, also where it names something that could be."""
    slug = await broker.mesh()
    before = (await broker.admin("GET", f"/mesh/{slug}")).json()
    if change and "slug" not in change:
        change = {"rate_limit": 5, **change}
    answer = await broker.admin("PATCH", f"/mesh/{slug}", change)
    assert (answer.status_code, answer.json()["error"]) == (400, "schema_invalid")
    assert (await broker.admin("GET", f"/mesh/{slug}")).json() == before


@pytest.mark.asyncio(loop_scope="module")
async def test_only_an_administrator_changes_settings(broker: Broker) -> None:
    """A member's token is not enough, and an unknown mesh has no settings."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    for method in ("GET", "PATCH"):
        assert (await ana.request(method, "", {"rate_limit": 1})).status_code == 401
        nowhere = await broker.admin(method, "/mesh/nowhere", {"rate_limit": 1})
        assert nowhere.status_code == 404


@pytest.mark.asyncio(loop_scope="module")
async def test_a_change_holds_at_once(broker: Broker) -> None:
    """The limiter, the echo and the window of new ids follow; ids that are there keep theirs."""
    slug = await broker.mesh(dedupe_retention_days=30)
    ana = await broker.member(slug)
    await ana.topic("alerts")
    old, new = unique("old"), unique("new")
    assert (await ana.post(old, envelope())).status_code == 201
    change = {"dedupe_retention_days": 7, "echo_to_sender": True, "rate_limit": 2}
    await broker.admin("PATCH", f"/mesh/{slug}", {**change, "rate_window_ms": 86_400_000})
    assert (await ana.post(new, envelope())).status_code == 201
    assert (await ana.post(unique(), envelope())).status_code == 201
    assert (await ana.post(unique(), envelope())).status_code == 429
    kept = await broker.database.run(
        f"SELECT key, (expires_at - first_seen_at) / {DAY_MS} FROM dedupe "
        f"WHERE key IN ('{old}', '{new}') ORDER BY committed_id"
    )
    assert kept == [(old, 30), (new, 7)]
    rows = await broker.rows(
        f"SELECT count(*) FROM {{}} WHERE recipient_pubkey = '{ana.address}'", "delivery_queue"
    )
    assert rows == [(2,)]


@pytest.mark.asyncio(loop_scope="module")
async def test_whoever_is_connected_negotiates_anew(broker: Broker) -> None:
    """A daemon must not live by a window that is no longer kept."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    async with ana.connected() as wire, Wire.open(ana) as greeted:
        await greeted.greeting()
        await broker.admin("PATCH", f"/mesh/{slug}", {"dedupe_retention_days": 9})
        assert await wire.close_code() == 1013
        signed = ana.key.sign_hello(slug, greeted.challenge)
        await greeted.send({"type": "hello", "member_pubkey": ana.address, "signature": signed})
        assert await greeted.close_code() == 1013
    async with Wire.open(ana) as wire:
        await wire.hello()
        params = (await wire.negotiate())["supported"]["client_message_id_dedupe"]["params"]
        assert params["dedupe_retention_days"] == 9


async def test_a_longer_window_makes_no_orphans(store_location: str, tmp_path: Path) -> None:
    """Messages whose ids expired under the shorter window are no findings under the longer one."""
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker:
        slug = await broker.mesh(dedupe_retention_days=7)
        ana = await broker.member(slug)
        await ana.topic("alerts")
        assert (await ana.post(unique(), envelope())).status_code == 201
        clock.advance(8 * DAY_MS)
        # By these or by the broker's own first one, which is still at it on a busy machine.
        while await broker.rows("SELECT key FROM dedupe WHERE scope LIKE 'mesh/%'"):
            await broker.owner.periodic._retention.tick()
        for change in ({"dedupe_retention_days": 365}, {"dedupe_retention_mode": "permanent"}):
            assert (await broker.admin("PATCH", f"/mesh/{slug}", change)).status_code == 200
            found = find_orphans(broker.server.store, clock.now_ms())
            assert [finding async for finding in found] == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "slug", ["Harbour", "-harbour", "_h", "h" * 64, "h\u00e4fen", "", "a b", "a/b"]
)
async def test_a_slug_that_no_daemon_takes(broker: Broker, slug: str) -> None:
    """The broker makes no mesh that cannot be joined."""
    assert not is_slug(slug)
    answer = await broker.admin("POST", "/mesh", {"slug": slug})
    assert (answer.status_code, answer.json()["error"]) == (400, "schema_invalid")
