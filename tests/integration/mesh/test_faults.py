"""Faults on the way of an accept: nothing is left, and the same id is a first accept afterwards."""

import pytest

from support.mesh.peer import Broker, envelope, unique
from tidelog.base import faultpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")

RELATIONS = ("client_message_dedupe", "message_history", "delivery_queue", "mention_index")


async def count(broker: Broker, slug: str) -> list[int]:
    """Rows of each kind in a mesh, and the number of the last message."""
    mesh = await broker.service.mesh(slug)
    assert mesh is not None
    found = [
        (await broker.rows(f"SELECT count(*) FROM {{}} WHERE mesh_id = '{mesh.id}'", name))[0][0]
        for name in RELATIONS
    ]
    [(seq,)] = await broker.rows(f"SELECT history_seq FROM {{}} WHERE slug = '{slug}'", "mesh")
    return [*found, seq]


@pytest.mark.parametrize("point", ["K3.message", "K3.dedupe", "K3.delivery", "K3.mention"])
async def test_a_full_disk_inside_the_transaction(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """After any insert: 503, no row of any kind, no number used; the retry is a first accept."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    client_id, fields = unique("fault"), envelope(meta={"mentions": [ben.address]})
    armed = faultpoint._parse(f"{point}=enospc")
    monkeypatch.setattr(faultpoint, "_armed", armed)
    failed = await ana.post(client_id, fields)
    assert (failed.status_code, failed.json()["error"]) == (503, "unavailable")
    assert next(iter(armed.values())).left == 0
    assert await count(broker, slug) == [0, 0, 0, 0, 0]
    retried = await ana.post(client_id, fields)
    assert (retried.status_code, retried.json()["history_id"]) == (201, 1)
    assert await count(broker, slug) == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(("point", "is_kept"), [("K1", False), ("K2", False), ("K4", True)])
async def test_a_failure_between_the_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, point: str, is_kept: bool
) -> None:
    """Before the transaction nothing is kept, after it the retry is a duplicate; never a 429."""
    slug = await broker.mesh(rate_limit=1, rate_window_ms=86_400_000)
    ana = await broker.member(slug)
    await ana.topic("alerts")
    client_id = unique("fault")
    monkeypatch.setattr(faultpoint, "_armed", faultpoint._parse(f"{point}=cut"))
    failed = await ana.post(client_id, envelope())
    assert (failed.status_code, failed.json()["error"]) == (500, "internal")
    retried = await ana.post(client_id, envelope())
    assert retried.status_code == (200 if is_kept else 201)
    assert (await count(broker, slug))[:2] == [1, 1]
