"""Leases, fencing and redelivery to connected members (mesh 7.1)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.mesh.peer import Broker, Json, Member, Wire, envelope, running_broker, unique
from tidelog.base import faultpoint
from tidelog.mesh.front.delivery import PushDelivery
from tidelog.mesh.upkeep.lease_reaper import LeaseReaper
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database

LEASE_MS = 30_000


class Scene:
    """A mesh with two members on a broker whose clock stands still."""

    def __init__(self, broker: Broker, clock: FakeClock, ana: Member, ben: Member) -> None:
        self.broker = broker
        self.clock = clock
        self.ana = ana
        self.ben = ben

    @property
    def reaper(self) -> LeaseReaper:
        """What ends the leases."""
        return self.broker.owner.periodic._reaper

    @property
    def delivery(self) -> PushDelivery:
        """What is tested."""
        return self.broker.service.delivery

    async def tell_ben(self, *texts: str, **more: Any) -> list[str]:
        """Ana sends messages to Ben; returns their ids."""
        fields = [envelope("dm", self.ben.address, text, **more) for text in texts]
        answers = [await self.ana.post(unique("send"), each) for each in fields]
        return [answer.json()["broker_message_id"] for answer in answers]

    async def statuses(self) -> list[str]:
        """Of the rows for Ben, in the order of the history."""
        query = "SELECT status FROM {} WHERE recipient_pubkey = '%s' ORDER BY history_id"
        rows = await self.broker.rows(query % self.ben.address, "delivery_queue")
        return [status for (status,) in rows]

    async def until(self, *statuses: str) -> None:
        """Wait until the rows for Ben have these."""
        async with asyncio.timeout(60):
            while await self.statuses() != list(statuses):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def scene(store_location: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """A broker of the test's own."""
    clock = FakeClock()
    async with running_broker(
        tmp_path, store_location, clock, lease_ms=LEASE_MS, max_in_flight_deliveries=3
    ) as broker:
        slug = await broker.mesh(clone_concurrency_policy="allow_concurrent")
        yield Scene(broker, clock, await broker.member(slug), await broker.member(slug))


async def acknowledge(wire: Wire, delivered: Json, **changed: str) -> None:
    """What a daemon sends when a message is in its inbox."""
    names = ("broker_message_id", "client_message_id", "claim_id")
    await wire.send({"type": "client_ack", **{name: delivered[name] for name in names}, **changed})


async def nothing_comes(wire: Wire) -> bool:
    """Whether a broker that answers has delivered nothing before."""
    await asyncio.sleep(0.1)
    await wire.ask("topics")
    return not any(frame["type"] == "deliver" for frame in wire._kept)


async def test_what_waited_comes_in_order(scene: Scene) -> None:
    """Messages sent to somebody who was away come when he connects, oldest first, and once."""
    mentioning = {"mentions": [scene.ben.address]}
    await scene.tell_ben("one", meta=mentioning)
    await scene.tell_ben("two", "three")
    async with scene.ben.connected() as wire:
        got = [await wire.until("deliver") for _ in range(3)]
        assert [each["body"] for each in got] == ["one", "two", "three"]
        assert [each["mention"] for each in got] == [True, False, False]
        assert [each["history_id"] for each in got] == [1, 2, 3]
        for each in got:
            await acknowledge(wire, each)
        await scene.until("delivered", "delivered", "delivered")
    async with scene.ben.connected() as wire:
        assert await nothing_comes(wire)


async def test_a_live_message_to_a_topic(scene: Scene) -> None:
    """A connected subscriber gets a post at once; its author does not."""
    await scene.ana.topic("alerts")
    await scene.ben.subscribe("alerts")
    async with scene.ana.connected() as author, scene.ben.connected() as reader:
        assert (await author.post(unique(), envelope()))["code"] == 201
        delivered = await reader.until("deliver")
        assert (delivered["topic"], delivered["sender_pubkey"]) == ("alerts", scene.ana.address)
        assert await nothing_comes(author)


async def test_a_lease_ends_by_its_time_and_fences_the_late(scene: Scene) -> None:
    """Not acknowledged: delivered again after the lease and not before, under another claim."""
    await scene.tell_ben("again")
    async with scene.ben.connected() as wire:
        first = await wire.until("deliver")
        scene.clock.advance(LEASE_MS - 1)
        assert await scene.reaper.reap() == 0
        assert await nothing_comes(wire)
        scene.clock.advance(1)
        assert await scene.reaper.reap() == 1
        second = await wire.until("deliver")
        assert second["broker_message_id"] == first["broker_message_id"]
        assert second["claim_id"] != first["claim_id"]
        await acknowledge(wire, first)
        await wire.ask("topics")
        assert await scene.statuses() == ["claimed"]
        await acknowledge(wire, second)
        await scene.until("delivered")
        await acknowledge(wire, second)
        await wire.ask("topics")
        assert await scene.statuses() == ["delivered"]


async def test_nobody_acknowledges_for_another(scene: Scene) -> None:
    """A member that knows everything about a delivery still cannot close another's row."""
    await scene.tell_ben("secret")
    async with scene.ben.connected() as his, scene.ana.connected() as hers:
        delivered = await his.until("deliver")
        await acknowledge(hers, delivered)
        await acknowledge(hers, delivered, claim_id="")
        await hers.ask("topics")
        await asyncio.sleep(0.1)
        assert await scene.statuses() == ["claimed"]


async def test_an_acknowledgement_that_cannot_be_of_a_delivery_goes_nowhere(scene: Scene) -> None:
    """The broker made no such id; nobody is asked about it."""

    def acknowledged() -> float:
        return scene.broker.metric("tidelog_broker_deliveries_total", step="acknowledged")

    await scene.tell_ben("here")
    async with scene.ben.connected() as wire:
        delivered = await wire.until("deliver")
        await acknowledge(wire, delivered, claim_id="x" * 50_000)
        await acknowledge(wire, delivered, broker_message_id="x" * 50_000)
        await wire.ask("topics")
        assert acknowledged() == 0
        await acknowledge(wire, delivered)
        await scene.until("delivered")
        assert acknowledged() == 1


async def test_only_so_many_are_on_their_way(scene: Scene) -> None:
    """A connection has three messages at most; each acknowledgement makes room for the next."""
    await scene.tell_ben("1", "2", "3", "4", "5")
    async with scene.ben.connected() as wire:
        got = [await wire.until("deliver") for _ in range(3)]
        assert await nothing_comes(wire)
        await acknowledge(wire, got[1])
        assert (await wire.until("deliver"))["body"] == "4"
        assert await nothing_comes(wire)


async def test_who_comes_back_gets_everything_in_order(scene: Scene) -> None:
    """What a lost connection had not acknowledged waits again at once, before what is newer."""
    await scene.tell_ben("one", "two")
    async with scene.ben.connected() as wire:
        await acknowledge(wire, await wire.until("deliver"))
        await wire.until("deliver")
        await scene.until("delivered", "claimed")
    await scene.until("delivered", "pending")
    await scene.tell_ben("three")
    async with scene.ben.connected() as wire:
        assert [(await wire.until("deliver"))["body"] for _ in range(2)] == ["two", "three"]


async def test_a_failure_between_claim_and_push(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-11, K5: the row is claimed again after the lease, not before, and ends delivered."""
    async with scene.ben.connected() as wire:
        monkeypatch.setattr(faultpoint, "_armed", faultpoint._parse("K5=cut"))
        await scene.tell_ben("lost")
        await scene.until("claimed")
        assert await scene.reaper.reap() == 0
        assert await nothing_comes(wire)
        scene.clock.advance(LEASE_MS)
        assert await scene.reaper.reap() == 1
        await acknowledge(wire, await wire.until("deliver"))
        await scene.until("delivered")


async def test_a_failure_between_acknowledgement_and_mark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-11, K6: the message comes again, and its second acknowledgement counts."""
    [message] = await scene.tell_ben("twice")
    async with scene.ben.connected() as wire:
        delivered = await wire.until("deliver")
        monkeypatch.setattr(faultpoint, "_armed", faultpoint._parse("K6=cut"))
        await acknowledge(wire, delivered)
        await wire.close_code()
    scene.clock.advance(LEASE_MS)
    async with scene.ben.connected() as wire:
        again = await wire.until("deliver")
        assert again["broker_message_id"] == message
        await acknowledge(wire, again)
        await scene.until("delivered")


async def test_two_connections_share_the_work(scene: Scene) -> None:
    """Two connections of one member never hold the same message at once."""
    async with scene.ben.connected() as one, scene.ben.connected() as other:
        sent = await scene.tell_ben("1", "2", "3", "4", "5", "6")
        await asyncio.sleep(0.3)
        for wire in (one, other):
            await wire.ask("topics")
        got = [f for wire in (one, other) for f in wire._kept if f["type"] == "deliver"]
        assert sorted(each["broker_message_id"] for each in got) == sorted(sent)


async def test_a_message_reaches_the_node_of_its_receiver(
    postgresql_server: str, postgresql_template: str, tmp_path: Path
) -> None:
    """Sent at one node, delivered and acknowledged at another."""
    location = await create_database(postgresql_server, template=postgresql_template)
    async with (
        running_broker(tmp_path / "a", location) as here,
        running_broker(tmp_path / "b", location) as there,
    ):
        slug = await here.mesh()
        ana, ben = await here.member(slug), await here.member(slug)
        away = Member(there, slug, ben.key, ben.name)
        async with away.connected() as wire:
            await ana.post(unique(), envelope("dm", ben.address, "across"))
            delivered = await wire.until("deliver")
            assert delivered["body"] == "across"
            await acknowledge(wire, delivered)
            await Scene(here, FakeClock(), ana, ben).until("delivered")


async def test_a_post_wakes_only_those_it_is_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that is connected and not subscribed costs no claim; nor does the sender."""
    claimed: list[str] = []
    push_some = scene.delivery._push_some

    async def noted(lane: Any) -> bool:
        claimed.append(lane.receiver.member.public_hex)
        return await push_some(lane)

    cem = await scene.broker.member(scene.ana.slug)
    await scene.ana.topic("tides")
    await scene.ben.subscribe("tides")
    async with (
        scene.ana.connected() as sender,
        scene.ben.connected() as receiver,
        cem.connected() as idle,
    ):
        for wire in (sender, receiver, idle):
            assert await nothing_comes(wire)
        monkeypatch.setattr(scene.delivery, "_push_some", noted)
        for number in range(3):
            assert (await sender.post(unique("post"), envelope(ref="tides")))["code"] == 201
            delivered = await receiver.until("deliver", history_id=number + 1)
            await acknowledge(receiver, delivered)
        assert await nothing_comes(idle)
        await scene.until(*["delivered"] * 3)
    assert set(claimed) == {scene.ben.address}
