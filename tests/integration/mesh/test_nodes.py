"""The broker on several nodes of one PostgreSQL: what one node knows, the others hear."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple
from unittest.mock import patch

import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed

from support.mesh.peer import Broker, Member, Wire, envelope, running_broker, unique
from tidelog.base.errors import StoreUnavailable
from tidelog.mesh.messages import Missed
from tidelog.store.rows import Key, Row
from tidelog.testing.postgresql import create_database

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Pair(NamedTuple):
    """Two nodes of one log."""

    a: Broker
    b: Broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    postgresql_server: str, postgresql_template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """The tests share them and use meshes of their own."""
    store = await create_database(postgresql_server, template=postgresql_template)
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(running_broker(tmp_path_factory.mktemp(name), store))
            for name in "ab"
        ]
        yield Pair(a, b)


def at(node: Broker, member: Member) -> Member:
    """The same member at another node."""
    return Member(node, member.slug, member.key, member.name)


async def test_presence_and_revocation_reach_across(pair: Pair) -> None:
    """A member is announced to the other node, and revoked there while it is connected here."""
    slug = await pair.a.mesh()
    ana, ben = await pair.a.member(slug, "ana"), await pair.a.member(slug, "ben")
    async with ana.connected() as here, at(pair.b, ben).connected() as there:
        joined = await here.until("peer_join")
        assert joined["member_pubkey"] == ben.address
        await pair.a.admin("DELETE", f"/mesh/{slug}/members/{ben.address}")
        assert await there.close_code() == 4403
        await here.until("peer_leave", member_pubkey=ben.address)


async def test_a_node_that_was_deaf_looks_for_itself(pair: Pair) -> None:
    """A revocation whose announcement was missed is found in the store."""
    slug = await pair.a.mesh()
    ana = await pair.a.member(slug)
    async with at(pair.b, ana).connected() as there:
        with patch.object(pair.a.owner.peers, "revoked"):
            await pair.a.admin("DELETE", f"/mesh/{slug}/members/{ana.address}")
        pair.b.owner.tell_all(Missed())
        assert await there.close_code() == 4403


async def test_a_node_that_was_deaf_looks_until_the_store_can_say(pair: Pair) -> None:
    """A store that has come back may fail once more: who was revoked is found all the same."""
    slug = await pair.a.mesh()
    ana = await pair.a.member(slug)
    reads = pair.b.service._reads
    read, failures = reads.rows, [StoreUnavailable("gone again")]

    async def rows(query: str, key: Key) -> tuple[Row, ...]:
        if failures:
            raise failures.pop()
        return await read(query, key)

    async with at(pair.b, ana).connected() as there:
        with patch.object(pair.a.owner.peers, "revoked"):
            await pair.a.admin("DELETE", f"/mesh/{slug}/members/{ana.address}")
        with (
            patch.object(reads, "rows", rows),
            patch("tidelog.mesh.front.service.RECHECK_SECONDS", 0.0),
        ):
            pair.b.owner.tell_all(Missed())
            assert await there.close_code() == 4403
    assert failures == []


async def test_one_id_on_two_nodes(pair: Pair) -> None:
    """A storm over both nodes makes one message and takes one unit."""
    slug = await pair.a.mesh(rate_limit=20, rate_window_ms=86_400_000)
    ana = await pair.a.member(slug)
    await ana.topic("alerts")
    elsewhere = at(pair.b, ana)
    for round_number in range(20):
        client_id = unique("everywhere")
        answers = await asyncio.gather(
            *(who.post(client_id, envelope()) for who in (ana, elsewhere) * 8)
        )
        assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
        assert len({answer.json()["broker_message_id"] for answer in answers}) == 1
        assert answers[0].json()["history_id"] == round_number + 1
    assert (await elsewhere.post(unique(), envelope())).status_code == 429


async def test_a_token_is_used_once_on_all_nodes(pair: Pair) -> None:
    """What one node has seen, the other refuses."""
    slug = await pair.a.mesh()
    ana = await pair.a.member(slug)
    token = ana.token()
    assert (await ana.request("GET", "/topics", token=token)).status_code == 200
    assert (await at(pair.b, ana).request("GET", "/topics", token=token)).status_code == 401


async def test_settings_reach_across(pair: Pair) -> None:
    """A change at one node holds at the other, and ends the connections there."""
    slug = await pair.a.mesh()
    ana = await pair.a.member(slug)
    there = at(pair.b, ana)
    async with there.connected() as wire:
        await pair.a.admin("PATCH", f"/mesh/{slug}", {"dedupe_retention_days": 9})
        assert await wire.close_code() == 1013
    assert (await pair.b.admin("GET", f"/mesh/{slug}")).json()["dedupe_retention_days"] == 9


async def test_a_node_that_was_deaf_reads_the_settings_again(pair: Pair) -> None:
    """A change whose announcement was missed is found in the store."""
    slug = await pair.a.mesh()
    ana = await pair.a.member(slug)
    async with at(pair.b, ana).connected() as wire:
        with patch.object(pair.a.owner.peers, "changed"):
            await pair.a.admin("PATCH", f"/mesh/{slug}", {"rate_limit": 9})
        pair.b.owner.tell_all(Missed())
        assert await wire.close_code() == 1013
    assert (await pair.b.admin("GET", f"/mesh/{slug}")).json()["rate_limit"] == 9


async def _ask_to_stay(wire: Wire, instance: str) -> None:
    """All that a daemon says first; it may be told to go before it has said it."""
    with suppress(ConnectionClosed):
        await wire.hello(instance=instance)
        await wire.send({"type": "feature_negotiation_request", "require": [], "optional": []})


async def test_rivals_on_two_nodes(pair: Pair) -> None:
    """The policy for two daemons with one key holds across nodes."""
    for policy, code in (("prefer_newest", 4003), ("prefer_oldest", 4004)):
        ana = await pair.a.member(await pair.a.mesh(clone_concurrency_policy=policy))
        await ana.topic("alerts")
        async with ana.connected("a") as older, Wire.open(at(pair.b, ana)) as newer:
            await _ask_to_stay(newer, "b")
            gone, stays = (older, newer) if code == 4003 else (newer, older)
            assert await gone.close_code() == code
            assert (await stays.post(unique(), envelope()))["code"] == 201


async def test_a_daemon_comes_back_at_another_node(pair: Pair) -> None:
    """The connection it lost is closed there, and it is not taken for a rival of itself."""
    for policy in ("prefer_newest", "prefer_oldest", "allow_concurrent"):
        ana = await pair.a.member(await pair.a.mesh(clone_concurrency_policy=policy))
        await ana.topic("alerts")
        async with ana.connected("a") as lost, at(pair.b, ana).connected("a") as back:
            assert await lost.close_code() == 1013
            assert (await back.post(unique(), envelope()))["code"] == 201


async def test_rivals_that_come_at_once(pair: Pair) -> None:
    """However two connections on two nodes overlap, exactly one stays."""
    for policy, code in (("prefer_newest", 4003), ("prefer_oldest", 4004)):
        ana = await pair.a.member(await pair.a.mesh(clone_concurrency_policy=policy))
        await ana.topic("alerts")
        for _ in range(10):
            async with Wire.open(ana) as here, Wire.open(at(pair.b, ana)) as there:
                wires = (here, there)
                await asyncio.gather(_ask_to_stay(here, "a"), _ask_to_stay(there, "b"))
                closing = {asyncio.create_task(wire.close_code()): wire for wire in wires}
                done, waiting = await asyncio.wait(closing, return_when=asyncio.FIRST_COMPLETED)
                assert [task.result() for task in done] == [code]
                [stays] = waiting
                stays.cancel()
                await asyncio.wait([stays])
                assert (await closing[stays].post(unique(), envelope()))["code"] == 201
