"""What a member may make, and how it goes again (mesh 9.4)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from support.mesh.peer import Broker, Member, envelope, running_broker, unique
from tidelog.cli.verification import verify_store
from tidelog.daemon.key_file import new_key
from tidelog.mesh.upkeep.verifier import verify_mesh


@pytest_asyncio.fixture
async def broker(store_location: str, tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with small limits."""
    limits: dict[str, Any] = {"max_topics_per_member": 2, "max_queues_per_member": 2}
    async with running_broker(
        tmp_path, store_location, reaper_interval_ms=20, max_open_invites=4, **limits
    ) as running:
        yield running


async def make(member: Member, kind: str, name: str) -> tuple[int, str | None]:
    """Status and error of making a topic or a queue."""
    answer = await member.request("POST", f"/{kind}s", {kind: name})
    return answer.status_code, answer.json().get("error")


async def delete(member: Member, kind: str, name: str) -> tuple[int, str | None]:
    """Status and error of deleting one."""
    answer = await member.request("DELETE", f"/{kind}s/{name}")
    return answer.status_code, answer.json().get("error")


async def test_a_member_makes_so_many(broker: Broker) -> None:
    """Then it has to delete one; what others make is theirs."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    for kind in ("topic", "queue"):
        assert [await make(ana, kind, name) for name in "ab"] == [(201, None)] * 2
        assert await make(ana, kind, "c") == (409, f"too_many_{kind}s")
        answer = await ana.request("POST", f"/{kind}s", {kind: "c"})
        assert f"mesh.max_{kind}s_per_member" in answer.json()["detail"]
        assert await make(ana, kind, "a") == (200, None), "it is there already"
        assert await make(ben, kind, "c") == (201, None)
        assert await delete(ana, kind, "a") == (200, None)
        assert await make(ana, kind, "d") == (201, None)


async def test_whoever_made_it_deletes_it(broker: Broker) -> None:
    """Or an administrator; nobody else, and only once."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    for kind in ("topic", "queue"):
        for name in ("a", "b"):
            await make(ana, kind, name)
        assert await delete(ben, kind, "a") == (403, "not_the_creator")
        assert await delete(ana, kind, "a") == (200, None)
        assert await delete(ana, kind, "a") == (404, f"{kind}_not_found")
        answer = await broker.admin("DELETE", f"/mesh/{slug}/{kind}s/b")
        assert answer.json() == {kind: "b", "removed": True}
        gone = await broker.admin("DELETE", f"/mesh/{slug}/{kind}s/b")
        assert gone.json()["error"] == f"{kind}_not_found"
        sent = await ana.post(unique(), envelope(kind, "b"))
        assert (sent.status_code, sent.json()["error"]) == (404, f"{kind}_not_found")
    assert (await broker.admin("DELETE", "/mesh/nowhere/topics/b")).status_code == 404


async def test_what_was_posted_to_a_deleted_topic_arrives(broker: Broker) -> None:
    """A topic of the same name has nobody's subscription."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    assert (await ana.post(unique(), envelope())).status_code == 201
    assert await delete(ana, "topic", "alerts") == (200, None)
    damage = [each async for looked in verify_mesh(broker.service.store) for each in looked.damage]
    assert damage == [], "a message to a topic that was deleted is sound"
    async with ben.connected() as wire:
        assert (await wire.until("deliver"))["topic"] == "alerts"
    assert await make(ben, "topic", "alerts") == (201, None)
    answer = await ben.request("GET", "/topics")
    assert answer.json() == {"topics": [{"name": "alerts", "subscribed": False}]}
    assert await broker.owner.periodic.check() == 0


async def test_what_waits_in_a_deleted_queue_is_closed(broker: Broker) -> None:
    """One that is made again under its name has only what is new."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    await make(ana, "queue", "jobs")
    old = (await ana.post(unique(), envelope("queue", "jobs"))).json()["broker_message_id"]
    assert await delete(ana, "queue", "jobs") == (200, None)
    assert await make(ana, "queue", "jobs") == (201, None)
    new = (await ana.post(unique(), envelope("queue", "jobs"))).json()["broker_message_id"]
    query = "SELECT broker_message_id, status, last_error FROM {} ORDER BY history_id"
    wanted = [(old, "dead", "queue_removed"), (new, "pending", None)]
    async with asyncio.timeout(60):
        while await broker.rows(query, "delivery_queue") != wanted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    claimed = (await ana.request("POST", "/queues/jobs/claim", {"limit": 10})).json()
    assert [item["broker_message_id"] for item in claimed["items"]] == [new]
    assert await broker.owner.periodic.check() == 0
    assert (await verify_store(broker.service.store)).is_sound


async def test_an_invite_is_taken_back(broker: Broker) -> None:
    """Nobody joins with it, and there is room for another; what was used stays used."""
    slug = await broker.mesh()
    made = [(await broker.admin("POST", f"/mesh/{slug}/invites", {})).json() for _ in range(4)]
    full = await broker.admin("POST", f"/mesh/{slug}/invites", {})
    assert (full.status_code, full.json()["error"]) == (409, "too_many_invites")
    ana, ben = (Member(broker, slug, new_key(), name) for name in ("ana", "ben"))
    assert (await ana.join(made[0]["invite"])).status_code == 201

    async def take_back(invite_id: str, where: str = slug) -> tuple[int, str | None]:
        answer = await broker.admin("DELETE", f"/mesh/{where}/invites/{invite_id}")
        return answer.status_code, answer.json().get("error")

    assert await take_back(made[1]["id"], await broker.mesh()) == (404, "invite_not_found")
    assert await take_back(made[1]["id"]) == (200, None)
    refused = await ben.join(made[1]["invite"])
    assert (refused.status_code, refused.json()["error"]) == (403, "invite_invalid")
    for gone in (made[0]["id"], made[1]["id"], "x"):
        assert await take_back(gone) == (404, "invite_not_found")
    listed = (await broker.admin("GET", f"/mesh/{slug}/invites")).json()["invites"]
    assert {each["id"] for each in listed} == {made[2]["id"], made[3]["id"]}
    assert all(each["expires_at"] > each["created_at"] for each in listed)
    assert made[2]["invite"] not in str(listed)
