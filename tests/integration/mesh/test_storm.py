"""Many callers, one id: one message, honest answers, dense history (FT-14, FT-16, FT-17)."""

import asyncio
import random
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from support.mesh.peer import Broker, Json, Member, envelope, fingerprint, unique
from tidelog.mesh.protocol.model import Member as Row
from tidelog.mesh.protocol.model import Mesh
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = 64
ROUNDS = 20


class Direct:
    """A member whose sends go straight to the service, so that they are truly concurrent."""

    def __init__(self, broker: Broker, mesh: Mesh, member: Row) -> None:
        self.broker = broker
        self.mesh = mesh
        self.member = member

    @classmethod
    async def of(cls, member: Member) -> "Direct":
        """The member's own service."""
        broker = member.broker
        assert isinstance(broker, Broker)
        mesh = await broker.service.mesh(member.slug)
        assert mesh is not None
        row = await broker.service.member(mesh, member.address)
        assert row is not None
        return cls(broker, mesh, row)

    async def post(self, client_id: str, fields: Json, delay: float = 0) -> tuple[int, Json]:
        """Status and body of the answer."""
        await asyncio.sleep(delay)
        reply = await self.broker.service.accept(self.mesh, self.member, client_id, fields)
        return reply.status, reply.body


async def scene(broker: Broker, **settings: Any) -> tuple[Member, Direct]:
    """A mesh with a topic and a member on it."""
    slug = await broker.mesh(**settings)
    sender = await broker.member(slug)
    await sender.topic("alerts")
    return sender, await Direct.of(sender)


async def stored_bodies(broker: Broker, mesh_id: str, client_id: str) -> list[tuple[Any, ...]]:
    """Id, body and fingerprint of what is kept under an id."""
    return await broker.rows(
        "SELECT m.id, m.body, d.request_fingerprint FROM {} m JOIN {} d "
        "ON d.broker_message_id = m.id AND d.mesh_id = m.mesh_id "
        f"WHERE m.mesh_id = '{mesh_id}' AND m.client_message_id = '{client_id}'",
        "topic_message",
        "client_message_dedupe",
    )


async def test_one_id_and_two_payloads(broker: Broker) -> None:
    """In every round one payload wins; its callers agree on it, all others are refused."""
    _, direct = await scene(broker)
    dice = random.Random(16)
    for _ in range(ROUNDS):
        client_id = unique("storm")
        bodies = ["one", "other"] * (CALLERS // 2)
        answers = await asyncio.gather(
            *(
                direct.post(
                    client_id, envelope(body=body), dice.choice((0, 0, dice.random() / 200))
                )
                for body in bodies
            )
        )
        [(message_id, body, _)] = await stored_bodies(broker, direct.mesh.id, client_id)
        winner = bytes(body).decode()
        statuses = Counter(status for status, _ in answers)
        assert statuses == {201: 1, 200: CALLERS // 2 - 1, 409: CALLERS // 2}
        for asked, (status, reply) in zip(bodies, answers, strict=True):
            if asked == winner:
                assert reply["broker_message_id"] == message_id
            else:
                assert status == 409
                assert reply["conflict"] == "request_fingerprint_mismatch"
                assert "broker_message_id" not in reply


async def test_one_id_over_many_requests(broker: Broker) -> None:
    """Over HTTP, each on its own: one 201, all others 200 with the same message, one unit."""
    sender, direct = await scene(broker, rate_limit=2, rate_window_ms=86_400_000)
    client_id = unique("storm")
    responses = await asyncio.gather(*(sender.post(client_id, envelope()) for _ in range(50)))
    assert Counter(response.status_code for response in responses) == {201: 1, 200: 49}
    assert len({response.json()["broker_message_id"] for response in responses}) == 1
    assert (await direct.post(unique(), envelope()))[0] == 201
    assert (await direct.post(unique(), envelope()))[0] == 429


async def test_a_rejected_claim_does_not_disturb_its_neighbours(broker: Broker) -> None:
    """Of one batch with one id: no refusal for want of a destination causes a conflict (FT-16)."""
    _, direct = await scene(broker)
    for round_number in range(ROUNDS):
        client_id = unique("neighbour")
        wrong = [envelope(ref="nowhere"), envelope("queue", "nowhere"), envelope("dm", "ab" * 32)]
        right = envelope(body=f"round {round_number}")
        asked = [*wrong, right, *wrong]
        answers = await asyncio.gather(*(direct.post(client_id, fields) for fields in asked))
        statuses = [status for status, _ in answers]
        assert statuses[:3] == [404] * 3
        assert statuses[3] == 201
        assert statuses[4:] == [409] * 3
        [(_, body, _)] = await stored_bodies(broker, direct.mesh.id, client_id)
        assert bytes(body).decode() == f"round {round_number}"


async def test_two_members_and_one_id(broker: Broker) -> None:
    """The second member is refused and learns nothing of the first one's message."""
    sender, direct = await scene(broker)
    other = await broker.member(sender.slug)
    await other.subscribe("alerts")
    rival = await Direct.of(other)
    for is_known in (True, False):
        client_id = unique("guard")
        if is_known:
            await direct.post(client_id, envelope())
            status, reply = await rival.post(client_id, envelope())
        else:
            answers = await asyncio.gather(
                direct.post(client_id, envelope()), rival.post(client_id, envelope())
            )
            assert answers[0][0] == 201
            status, reply = answers[1]
        assert (status, reply["conflict"]) == (409, "sender_mismatch")
        assert set(reply) == {
            "error",
            "client_message_id",
            "conflict",
            "broker_fingerprint_prefix",
        }


async def test_history_is_dense(broker: Broker) -> None:
    """Accepted and refused sends in any mixture number the accepted ones without a gap."""
    sender, direct = await scene(broker)
    dice = random.Random(8)
    asked = []
    for number in range(300):
        kind = dice.choice(("good", "good", "nowhere", "again"))
        client_id = unique("dense") if kind != "again" else f"again-{number % 7}"
        ref = "alerts" if kind != "nowhere" else "nowhere"
        asked.append(direct.post(client_id, envelope(ref=ref), dice.random() / 50))
    answers = await asyncio.gather(*asked)
    accepted = sorted(reply["history_id"] for status, reply in answers if status == 201)
    assert accepted == list(range(1, len(accepted) + 1))
    rows = await broker.rows(
        f"SELECT history_id FROM {{}} WHERE mesh_id = '{direct.mesh.id}' ORDER BY history_id",
        "message_history",
    )
    assert [history_id for (history_id,) in rows] == accepted
    [(seq,)] = await broker.rows(
        f"SELECT history_seq FROM {{}} WHERE slug = '{sender.slug}'", "mesh"
    )
    assert seq == len(accepted)


async def test_sends_of_one_connection_are_in_their_order(broker: Broker) -> None:
    """History has them as they were sent, though none waited for the answer of the one before."""
    sender, _ = await scene(broker)
    async with sender.connected() as wire:
        for number in range(200):
            await wire.send(
                {
                    "type": "send",
                    "ref": 1000 + number,
                    "client_message_id": f"order-{number}",
                    "request_fingerprint": fingerprint(envelope(body=str(number))),
                    **envelope(body=str(number)),
                }
            )
        places = [
            (await wire.until("ack", ref=1000 + number))["history_id"] for number in range(200)
        ]
    assert places == sorted(places)


async def test_a_committed_send_in_a_full_window(broker: Broker) -> None:
    """Its retry is a duplicate, never refused; a new id is told when to come again (FT-17)."""
    sender, direct = await scene(broker, rate_limit=10, rate_window_ms=86_400_000)
    client_id = unique("kept")
    assert (await direct.post(client_id, envelope()))[0] == 201
    others = await asyncio.gather(*(direct.post(unique(), envelope()) for _ in range(30)))
    assert Counter(status for status, _ in others) == {201: 9, 429: 21}
    for _ in range(3):
        status, reply = await direct.post(client_id, envelope())
        assert (status, reply["duplicate"]) == (200, True)
    fresh = await sender.post(unique(), envelope())
    assert fresh.status_code == 429
    assert 1 <= int(fresh.headers["retry-after"]) <= 86_400
    async with sender.connected() as wire:
        ack = await wire.post(unique(), envelope())
        assert (ack["code"], ack["error"]) == (429, "rate_limited")
        assert ack["retry_after"] >= 1


async def test_a_refused_send_is_accepted_in_the_next_window(broker: Broker) -> None:
    """A refusal by the limiter leaves no mark."""
    _, direct = await scene(broker, rate_limit=1, rate_window_ms=60_000)
    window = broker.now_ms() // 60_000 + 1
    client_id = unique("window")
    with patch.object(broker.owner.accepting, "_clock", FakeClock(window * 60_000)):
        assert (await direct.post(unique(), envelope()))[0] == 201
        assert (await direct.post(client_id, envelope()))[0] == 429
    with patch.object(broker.owner.accepting, "_clock", FakeClock((window + 1) * 60_000)):
        assert (await direct.post(client_id, envelope()))[0] == 201
        assert (await direct.post(unique(), envelope()))[0] == 429
