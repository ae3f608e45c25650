"""The owner is killed: after it has committed something and before anybody was told, and idle."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from support.channels import peer as channels
from support.mesh.peer import BrokerAt, Member, envelope
from support.serve import processes
from support.serve.processes import WAIT_SECONDS, Processes, kill
from support.sync.peer import EVENT, note, token
from support.sync.peer import envelope as sync_envelope
from tidelog.base import faultpoint
from tidelog.web.handshake import OUTCOME_UNKNOWN

FAULTS = {faultpoint.VARIABLE: "committer.handing_over=kill@11"}
"""Each owner dies with the eleventh answer. So it has time for what a test begins with."""

CARELESS = {"PYTHONPATH": str(Path(processes.__file__).with_name("careless"))}

FRONTS = 2
OWNERS = 4
MOST_ROUNDS = 60


class Clients(NamedTuple):
    """Callers of the three surfaces, each request on a connection of its own."""

    api: channels.Api
    http: httpx.AsyncClient
    ana: Member
    ben: Member


@contextlib.asynccontextmanager
async def clients(server: Processes) -> AsyncIterator[Clients]:
    """After what they need."""
    broker = BrokerAt(server.url, server.store)
    alone = httpx.Limits(max_keepalive_connections=0)
    await broker.http.aclose()
    broker.http = httpx.AsyncClient(
        verify=False, base_url=server.url, timeout=WAIT_SECONDS, limits=alone
    )
    async with broker.http:
        slug = await broker.mesh()
        ana, ben = [await broker.member(slug) for _ in range(2)]
        yield Clients(channels.Api(server.url, broker.http), broker.http, ana, ben)


async def submit(http: httpx.AsyncClient, draft: str) -> httpx.Response:
    """To sync, over HTTP."""
    headers = {"authorization": f"Bearer {token('c')}", "x-sync-profile": EVENT}
    body = sync_envelope("submit_events", {"events": [note(draft, "kept")]})
    return await http.post("/sync/v1/submit", content=body, headers=headers)


async def drafts(http: httpx.AsyncClient) -> Counter[str]:
    """How often each is stored."""
    headers = {"authorization": f"Bearer {token('c')}", "x-sync-profile": EVENT}
    body = sync_envelope("sync", {"partitions": ["kept"], "since_committed_id": 0})
    answer = await http.post("/sync/v1/sync", content=body, headers=headers)
    return Counter(each["id"] for each in answer.json()["payload"]["events"])


async def published(api: channels.Api, room: str) -> Counter[str]:
    """How often each message is stored."""
    items = (await api.history(room, limit=100))["items"]
    return Counter(each["message"]["data"] for each in items)


async def publish_without_a_key(api: channels.Api, room: str, data: str) -> bool:
    """Whether it was acknowledged; if not, nobody knows, and it is said so."""
    answer = await api.events(room, data=data)
    if answer.status_code == 200:
        return True
    assert channels.refused(answer, 503, "service_unavailable") == OUTCOME_UNKNOWN
    return False


async def test_what_has_a_key_is_answered_by_the_next_owner(tmp_path: Path) -> None:
    """And is done once; what has none is never done twice, and its caller told if nobody knows."""
    with Processes(tmp_path / "data", FRONTS, **FAULTS) as server:
        async with clients(server) as (api, http, ana, ben):
            text = (await api.publish("text", "", message_id="text"))["message_serial"]
            owners, acknowledged, kept = {await server.owner()}, set[str](), list[str]()
            while len(owners) < OWNERS and len(kept) < MOST_ROUNDS:
                name = f"n{len(kept)}"
                channels.ok(await api.events("keyed", data=name, idempotency_key=name))
                await api.mutate("append", "text", text, data=f"{name},", op_id=name)
                if await publish_without_a_key(api, "unkeyed", name):
                    acknowledged.add(name)
                assert (await submit(http, name)).status_code == 200
                sent = await ana.post(name, envelope("dm", ben.address, name))
                assert sent.status_code in (200, 201), sent.text
                kept.append(name)
                owners.add(await server.owner())
            assert len(owners) == OWNERS
            once = dict.fromkeys(kept, 1)
            assert await published(api, "keyed") == once
            assert (await api.item("text", text))["data"] == "".join(f"{name}," for name in kept)
            assert await drafts(http) == once
            rows = await ana.broker.rows("SELECT client_message_id FROM {}", "message_queue")
            assert Counter(message for (message,) in rows) == once
            unkeyed = await published(api, "unkeyed")
            assert set(unkeyed.values()) == {1}
            assert unkeyed.keys() >= acknowledged


async def test_a_front_that_repeats_what_has_no_key_is_found_out(tmp_path: Path) -> None:
    """The same check, of a front with that mistake."""
    with Processes(tmp_path / "data", FRONTS, **FAULTS, **CARELESS) as server:
        async with clients(server) as (api, *_):
            owner = await server.owner()
            count = 0
            while await server.owner() == owner:
                await publish_without_a_key(api, "unkeyed", f"n{count}")
                count += 1
            with pytest.raises(AssertionError):
                assert set((await published(api, "unkeyed")).values()) == {1}


async def vanished(server: Processes) -> asyncio.StreamWriter:
    """A WebSocket of a client that reads nothing any more, and so never replies to a close."""
    at = httpx.URL(server.url)
    reader, writer = await asyncio.open_connection(at.host, at.port)
    writer.write(
        f"GET /app/{channels.APP.key}?protocol=7 HTTP/1.1\r\nHost: here\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    await reader.readuntil(b"connection_established")
    return writer


async def test_clients_that_vanished_hold_nobody_up(tmp_path: Path) -> None:
    """Fronts close what they have, and take connections again without waiting for replies."""
    hour = str(3_600_000)
    patient = {"TIDELOG_LIMITS_CLOSE_TIMEOUT_MS": hour, "TIDELOG_LIMITS_SHUTDOWN_GRACE_MS": hour}
    with Processes(tmp_path / "data", FRONTS, **patient) as server:
        gone = [await vanished(server) for _ in range(4 * FRONTS)]
        await asyncio.to_thread(kill, await server.owner())
        async with httpx.AsyncClient(
            base_url=server.url, timeout=WAIT_SECONDS, verify=False
        ) as http:
            while (await http.get("/healthz")).status_code != 200:  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(processes.LOOK_SECONDS)
        for each in gone:
            each.close()
