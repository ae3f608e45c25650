"""Two connections with one member's key, spoken by hand (mesh 9.3, 9.6)."""

import asyncio
import time

import pytest

from support.mesh.peer import Broker, Member, Wire, envelope, unique
from tidelog.mesh.protocol.negotiation import CONNECTION_POLICIES

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNTER = "tidelog_broker_member_concurrent_connection_total"


async def member_under(broker: Broker, policy: str) -> Member:
    """A member of a new mesh with this policy, subscribed to a topic."""
    slug = await broker.mesh(clone_concurrency_policy=policy)
    member = await broker.member(slug)
    await member.topic("alerts")
    return member


async def noted(broker: Broker, member: Member, policy: str) -> float:
    """How often two daemons of this mesh were noted."""
    mesh = await broker.service.mesh(member.slug)
    assert mesh is not None
    return broker.metric(COUNTER, mesh_id=mesh.id, policy=policy)


async def test_the_newest_stays(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The older connection is closed with 4003, and the event is logged and counted."""
    ana = await member_under(broker, "prefer_newest")
    async with ana.connected("a") as older, ana.connected("b") as newer:
        assert await older.close_code() == 4003
        assert (await newer.post(unique(), envelope()))["code"] == 201
    assert await noted(broker, ana, "prefer_newest") == 1
    [line] = [text for text in caplog.messages if text.startswith("member_concurrent_connection")]
    assert ana.slug in line
    assert ana.address in line


async def test_the_oldest_stays(broker: Broker) -> None:
    """The newer connection is closed with 4004 and never told that it is ready."""
    ana = await member_under(broker, "prefer_oldest")
    async with ana.connected("a") as older, Wire.open(ana) as newer:
        await newer.hello(instance="b")
        await newer.send({"type": "feature_negotiation_request", "require": [], "optional": []})
        assert await newer.close_code() == 4004
        assert (await older.post(unique(), envelope()))["code"] == 201
    assert await noted(broker, ana, "prefer_oldest") == 1


async def test_all_stay(broker: Broker) -> None:
    """Where several are allowed, all can send, and each that comes is noted once all the same."""
    ana = await member_under(broker, "allow_concurrent")
    async with ana.connected("a") as one, ana.connected("b") as two, ana.connected("c") as three:
        for wire in (one, two, three):
            assert (await wire.post(unique(), envelope()))["code"] == 201
    assert await noted(broker, ana, "allow_concurrent") == 2


@pytest.mark.parametrize("policy", CONNECTION_POLICIES)
async def test_a_daemon_that_comes_back_wins_over_itself(broker: Broker, policy: str) -> None:
    """Its lost connection is told to come again, not that it was replaced; nothing is noted."""
    ana = await member_under(broker, policy)
    async with ana.connected("a") as lost, ana.connected("a") as back:
        assert await lost.close_code() == 1013
        assert (await back.post(unique(), envelope()))["code"] == 201
    assert await noted(broker, ana, policy) == 0


async def test_a_place_that_became_free(broker: Broker) -> None:
    """The oldest keeps the others out only while it is connected."""
    ana = await member_under(broker, "prefer_oldest")
    async with ana.connected("a"):
        pass
    deadline = time.monotonic() + 10
    while any(key == ana.address for _, _, key in broker.service.peers):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    async with ana.connected("b") as wire:
        assert (await wire.post(unique(), envelope()))["code"] == 201


async def test_what_was_on_its_way_to_the_older_one(broker: Broker) -> None:
    """A message that it did not acknowledge goes to the newer one at once, not after a lease."""
    ana = await member_under(broker, "prefer_newest")
    ben = await broker.member(ana.slug)
    client_id = unique()
    async with ana.connected("a") as older:
        assert (await ben.post(client_id, envelope("dm", ana.address))).status_code == 201
        await older.until("deliver", client_message_id=client_id)
        async with ana.connected("b") as newer:
            await newer.until("deliver", client_message_id=client_id)


async def test_one_that_cannot_negotiate_replaces_nobody(broker: Broker) -> None:
    """Only a connection that is ready takes a place."""
    ana = await member_under(broker, "prefer_newest")
    async with ana.connected("a") as older, Wire.open(ana) as newer:
        await newer.hello(instance="b")
        assert (await newer.negotiate("x"))["missing_required"] == ["x"]
        assert (await older.post(unique(), envelope()))["code"] == 201
