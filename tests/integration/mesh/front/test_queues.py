"""Consumers of queues over HTTP: leases, fencing and what may be asked for (mesh 7.1, 7.3)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from support.mesh.peer import Broker, Json, Member, envelope, running_broker, unique
from tidelog.testing.clock import FakeClock


class Scene(NamedTuple):
    """A queue `thumbs` and two consumers, on a broker whose clock stands still."""

    broker: Broker
    clock: FakeClock
    ana: Member
    ben: Member

    async def enqueue(self, *texts: str) -> None:
        """Ana sends to the queue."""
        for text in texts:
            answer = await self.ana.post(unique("job"), envelope("queue", "thumbs", text))
            assert answer.status_code == 201

    async def statuses(self) -> list[str]:
        """Of all deliveries, in the order of the history."""
        rows = await self.broker.rows("SELECT status FROM {} ORDER BY history_id", "delivery_queue")
        return [status for (status,) in rows]


@pytest_asyncio.fixture
async def scene(store_location: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """A broker of the test's own."""
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker:
        slug = await broker.mesh()
        ana, ben = await broker.member(slug), await broker.member(slug)
        assert (await ana.request("POST", "/queues", {"queue": "thumbs"})).status_code == 201
        yield Scene(broker, clock, ana, ben)


async def claim(member: Member, queue: str = "thumbs", **fields: Any) -> Json:
    """Lease messages."""
    answer = await member.request("POST", f"/queues/{queue}/claim", fields)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


async def complete(member: Member, claimed: Json, *ids: str) -> httpx.Response:
    """Messages of a lease are done."""
    done = list(ids) or [item["broker_message_id"] for item in claimed["items"]]
    body = {"claim_id": claimed["claim_id"], "broker_message_ids": done}
    return await member.request("POST", "/queues/thumbs/ack", body)


async def test_consumers_get_different_messages_in_order(scene: Scene) -> None:
    """Each message goes to one consumer; what is completed never comes again."""
    await scene.enqueue("1", "2", "3")
    his, hers = await claim(scene.ben, limit=2), await claim(scene.ana, limit=2)
    assert [item["body"] for item in his["items"]] == ["1", "2"]
    assert [item["body"] for item in hers["items"]] == ["3"]
    assert (await claim(scene.ben))["items"] == []
    assert (await complete(scene.ben, his)).json()["lost"] == []
    assert await scene.statuses() == ["delivered", "delivered", "claimed"]
    assert (await complete(scene.ben, his)).status_code == 200  # a retry of the same answer
    assert (await complete(scene.ana, hers)).status_code == 200


async def test_a_lapsed_lease_goes_to_another_and_fences_the_first(scene: Scene) -> None:
    """After its lease a message is anybody's; the first consumer's completion changes nothing."""
    await scene.enqueue("slow")
    first = await claim(scene.ben, lease_ms=1000)
    scene.clock.advance(999)
    assert (await claim(scene.ana))["items"] == []
    scene.clock.advance(1)
    second = await claim(scene.ana)
    assert [item["body"] for item in second["items"]] == ["slow"]
    late = await complete(scene.ben, first)
    assert (late.status_code, late.json()["error"]) == (409, "claim_lost")
    assert await scene.statuses() == ["claimed"]
    assert (await complete(scene.ana, second)).status_code == 200


async def test_only_the_holder_completes(scene: Scene) -> None:
    """A stolen claim id is of no use to another member, nor to another queue's messages."""
    await scene.enqueue("mine")
    claimed = await claim(scene.ben)
    assert (await complete(scene.ana, claimed)).status_code == 409
    assert await scene.statuses() == ["claimed"]
    mixed = await complete(scene.ben, claimed, claimed["items"][0]["broker_message_id"], "other")
    assert mixed.status_code == 409
    assert mixed.json()["lost"] == ["other"]
    assert await scene.statuses() == ["delivered"]


@pytest.mark.parametrize(
    "fields", [{"limit": 0}, {"limit": 101}, {"lease_ms": 300_001}, {"lease_ms": 0}, {"limit": "1"}]
)
async def test_what_may_not_be_asked_for(scene: Scene, fields: Json) -> None:
    """Limits are refused, not lowered: a consumer must know how long its lease is."""
    answer = await scene.ben.request("POST", "/queues/thumbs/claim", fields)
    assert (answer.status_code, answer.json()["error"]) == (400, "schema_invalid")


async def test_a_queue_that_is_not_there(scene: Scene) -> None:
    """Neither a claim nor a completion finds anything in it."""
    answer = await scene.ben.request("POST", "/queues/nowhere/claim")
    assert (answer.status_code, answer.json()["error"]) == (404, "queue_not_found")
    answer = await scene.ben.request("POST", "/queues/thumbs/ack", {"claim_id": 1})
    assert answer.status_code == 400


async def test_a_claim_is_bounded_in_bytes(scene: Scene) -> None:
    """However many messages are asked for, an answer stays within memory."""
    await scene.enqueue(*["x" * 60_000] * 20)
    claimed = await claim(scene.ben, limit=100)
    assert 1 <= len(claimed["items"]) < 20
