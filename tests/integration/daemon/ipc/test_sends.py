"""Sends over the real IPC: lookup table, sources of ids, phase A (mesh 2.1, 3.3, 3.4)."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from support.mesh import mesh_cases
from support.mesh.local_daemon import BOB, SETTINGS, LocalDaemon, running, until, with_ipc
from tidelog.daemon.settings import OutboxSettings
from tidelog.mesh.protocol.fingerprint import make_envelope

ROUNDS = int(os.environ.get("TIDELOG_TEST_SOAK_ROUNDS", "5"))
"""Of the storms; `scripts/soak` has more."""
SEND = {"to": "topic:alerts", "message": "disk 91% on db-3"}
OTHER = {**SEND, "message": "disk 92% on db-3"}


def fingerprint(send: dict[str, Any]) -> str:
    """The fingerprint of a send to a topic, in hex."""
    return (
        make_envelope(
            destination_kind="topic",
            destination_ref=send["to"].removeprefix("topic:"),
            body=send["message"].encode(),
        )
        .fingerprint()
        .hex()
    )


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[LocalDaemon]:
    """A daemon with its defaults."""
    async with running(tmp_path) as started:
        yield started


@pytest.mark.parametrize("endpoint", ["/v1/send", "/v1/topic/post"])
@pytest.mark.parametrize("case", mesh_cases.params("ipc_lookup"))
async def test_lookup(case: mesh_cases.Case, endpoint: str, daemon: LocalDaemon) -> None:
    """State times match gives exactly this answer, and nothing but a first send adds a row."""

    def request(send: dict[str, Any]) -> dict[str, Any]:
        if endpoint == "/v1/send":
            return {**send, "client_message_id": "id-1"}
        return {"topic": "alerts", "message": send["message"], "client_message_id": "id-1"}

    async with daemon.unix() as client:
        if case["state"] != "no_row":
            assert (await client.post(endpoint, json=request(SEND))).status_code == 202
            daemon.put(case["state"], "id-1")
        before = daemon.outbox.counts()
        sent = OTHER if case["match"] == "mismatch" else SEND
        response = await client.post(endpoint, json=request(sent))
    row = daemon.outbox.inspect("id-1")[0]
    meant = {
        "<id>": "id-1",
        "<req.fp16>": fingerprint(sent)[:16],
        "<row.fp16>": row.request_fingerprint.hex()[:16],
        "<row.broker_message_id>": row.broker_message_id,
        "<row.history_id>": row.history_id,
        "<row.last_error>": row.last_error,
    }
    assert response.status_code == case["status"]
    assert response.json() == {
        key: meant.get(value, value) if isinstance(value, str) else value
        for key, value in case["body"].items()
    }
    added = {**before, "pending": before["pending"] + 1}
    assert daemon.outbox.counts() == (before if case["row_mutation"] == "none" else added)
    assert row.request_fingerprint.hex() == fingerprint(SEND)


@pytest.mark.parametrize("case", mesh_cases.params("client_message_id_sources"))
async def test_id_source(case: mesh_cases.Case, daemon: LocalDaemon) -> None:
    """The effective id is answered and stored; a bad one stores nothing."""
    send: dict[str, Any] = dict(SEND)
    if "body_length" in case:
        send["client_message_id"] = case["body_char"] * case["body_length"]
    elif case["body"] is not None:
        send["client_message_id"] = case["body"]
    headers = {} if case["header"] is None else {"Idempotency-Key": case["header"]}
    async with daemon.unix() as client:
        if case["id"] == "S07":  # it must not collide with this one
            await client.post("/v1/send", json={**OTHER, "client_message_id": "k-1"})
        before = daemon.row_count()
        response = await client.post("/v1/send", json=send, headers=headers)
    assert response.status_code == case["status"]
    if case["status"] == 400:
        assert response.json()["error"] == case["error"]
        assert daemon.row_count() == before
        return
    assert daemon.row_count() == before + 1
    effective = response.json()["client_message_id"]
    assert effective == case["effective"] or case["effective"] == "minted_ulid"
    assert daemon.outbox.inspect(effective)[0].status == "pending"


async def broken(case: mesh_cases.Case, daemon: LocalDaemon) -> httpx.Response:
    """The answer to a send with the fault of a case."""
    id_ = {"Idempotency-Key": "id-1"}
    text = json.dumps(SEND)
    body: str | bytes = text
    async with daemon.unix() as unix, daemon.tcp() as tcp:
        client = unix if case["transport"] == "uds" else tcp
        url = "/v1/send"
        match case["id"]:
            case "A01":
                del client.headers["Authorization"]
            case "A02":
                client.headers["Authorization"] = "Bearer wrong"
            case "A03":
                del client.headers["Authorization"]
                url += "?token=" + (daemon.folder / "token").read_text().strip()
            case "A04":
                id_["Host"] = "evil.example"
            case "A05":
                id_["Origin"] = "http://localhost:3000"
            case "A07":
                body = "{"
            case "A08":
                body = text[:-1] + " " * (1048577 - len(text)) + "}"
                assert len(body) == 1048577
            case "A09":
                body = json.dumps({**SEND, "message": "x" * 65537})
            case "A10":
                body = json.dumps({**SEND, "to": "nobody"})
            case "A13":
                daemon.free_bytes = int(daemon.settings.disk.reserved_bytes / 0.95)
        return await client.post(url, content=body, headers=id_)


@pytest.mark.parametrize(
    "case",
    mesh_cases.params(
        "ipc_phase_a", "A01", "A02", "A03", "A04", "A05", "A06", "A07", "A08", "A09", "A10", "A13"
    ),
)
async def test_phase_a(case: mesh_cases.Case, daemon: LocalDaemon) -> None:
    """A refused request stores nothing, and its id is free for a corrected one."""
    response = await broken(case, daemon)
    assert response.status_code == case["status"]
    if "error" in case:
        assert response.json()["error"] == case["error"]
    assert daemon.row_count() == case["outbox_rows"]
    daemon.free_bytes = 10**12
    async with daemon.unix() as client:
        headers = {"Idempotency-Key": "id-1"}
        assert (await client.post("/v1/send", json=SEND, headers=headers)).status_code == 202
    assert daemon.row_count() == 1


@pytest.mark.parametrize("case", mesh_cases.params("ipc_phase_a", "A11"))
async def test_one_request_too_many(case: mesh_cases.Case, daemon: LocalDaemon) -> None:
    """While 64 requests are under way, another is refused and stores nothing; then it is taken."""
    body = json.dumps(SEND).encode()
    head = b"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    held = []
    for _ in range(64):
        reader, writer = await asyncio.open_unix_connection(str(daemon.socket))
        writer.write(head + body[:5])
        await writer.drain()
        held.append((reader, writer))
    await until(lambda: daemon.server.in_flight == 64)
    async with daemon.unix() as client:
        headers = {"Idempotency-Key": "id-65"}
        response = await client.post("/v1/send", json=SEND, headers=headers)
        assert response.status_code == case["status"]
        assert response.json()["error"] == case["error"]
        assert "retry-after" in response.headers
        assert daemon.row_count() == case["outbox_rows"]
        for reader, writer in held:
            writer.write(body[5:])
            assert b" 202 " in await reader.readline()
            writer.close()
        assert (await client.post("/v1/send", json=SEND, headers=headers)).status_code == 202
    assert daemon.row_count() == 65


@pytest.mark.parametrize("case", mesh_cases.params("ipc_phase_a", "A12"))
async def test_one_stream_too_many(case: mesh_cases.Case, daemon: LocalDaemon) -> None:
    """The 33rd event stream is refused; when one ends there is room again."""
    token = (daemon.folder / "token").read_text().strip().encode()
    streams = []
    request = b"GET /v1/events HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n" % token
    for _ in range(32):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(request)
        assert b" 200 " in await reader.readline()
        streams.append(writer)
    async with daemon.tcp() as client:
        response = await client.get("/v1/events")
        assert response.status_code == case["status"]
        assert response.json()["error"] == case["error"]
    for writer in streams:
        writer.close()
    await until(lambda: daemon.server.streams == 0)
    assert daemon.events.readers == 0


async def test_a_storm_of_one_id_makes_one_row(tmp_path: Path) -> None:
    """FT-15: 64 concurrent sends of one id over both transports, in every round one row."""
    async with (
        running(tmp_path, settings=with_ipc(rate_burst=100_000)) as daemon,
        daemon.unix() as unix,
        daemon.tcp() as tcp,
    ):
        for number in range(ROUNDS):
            headers = {"Idempotency-Key": f"storm-{number}"}
            sends = [
                client.post("/v1/send", json=SEND, headers=headers)
                for _ in range(32)
                for client in (unix, tcp)
            ]
            answers = {answer.status_code for answer in await asyncio.gather(*sends)}
            assert answers <= {200, 202}
            assert daemon.row_count() == number + 1


async def test_of_two_contents_one_wins(tmp_path: Path) -> None:
    """FT-16: of two sends with one id and different bodies one is stored, the other gets 409."""
    async with (
        running(tmp_path, settings=with_ipc(rate_burst=100_000)) as daemon,
        daemon.unix() as one,
        daemon.tcp() as two,
    ):
        for number in range(10 * ROUNDS):
            headers = {"Idempotency-Key": f"race-{number}"}
            pair = [
                one.post("/v1/send", json=SEND, headers=headers),
                two.post("/v1/send", json=OTHER, headers=headers),
            ]
            if number % 2:
                pair.reverse()
            answers = await asyncio.gather(*pair)
            if number % 2:
                answers.reverse()
            assert sorted(answer.status_code for answer in answers) == [202, 409]
            winner = SEND if answers[0].status_code == 202 else OTHER
            row = daemon.outbox.inspect(f"race-{number}")[0]
            assert row.request_fingerprint.hex() == fingerprint(winner)
            assert winner["message"].encode() in row.payload


@pytest.mark.parametrize(
    ("send", "kind", "ref"),
    [
        ({"to": "topic:a:b"}, "topic", "a:b"),
        ({"to": "queue:q"}, "queue", "q"),
        ({"to": "dm:bob"}, "dm", BOB),
        ({"to": "bob"}, "dm", BOB),
        ({"to": BOB.upper()}, "dm", BOB),
        ({"to": f"dm:{BOB}"}, "dm", BOB),
        ({"destination_kind": "dm", "destination_ref": "bob"}, "dm", BOB),
        ({"destination_kind": "topic", "destination_ref": "t"}, "topic", "t"),
    ],
)
async def test_a_destination_is_stored_resolved(
    send: dict[str, str], kind: str, ref: str, daemon: LocalDaemon
) -> None:
    """However it was written, the stored envelope has its kind and its reference."""
    async with daemon.unix() as client:
        response = await client.post("/v1/send", json={**send, "message": ""})
    assert response.status_code == 202
    payload = json.loads(daemon.outbox.inspect(response.json()["client_message_id"])[0].payload)
    assert (payload["destination_kind"], payload["destination_ref"]) == (kind, ref)


@pytest.mark.parametrize(
    ("send", "status", "error"),
    [
        ({"message": "x"}, 400, "schema_invalid"),
        ({"to": "topic:t"}, 400, "schema_invalid"),
        ({"to": "topic:t", "message": 5}, 400, "schema_invalid"),
        ({"to": "topic:t", "destination_kind": "dm", "message": ""}, 400, "schema_invalid"),
        ({"to": "topic:", "message": ""}, 400, "destination_invalid"),
        ({"to": "topic:a\0", "message": ""}, 400, "destination_invalid"),
        ({"to": "dm:", "message": ""}, 404, "destination_unresolvable"),
        ({"to": "dm:a\0", "message": ""}, 400, "destination_invalid"),
        (
            {"to": "topic:t", "message": "", "replyToId": "a", "reply_to_id": "b"},
            400,
            "schema_invalid",
        ),
        (
            {"to": "topic:t", "message": "", "mentions": [BOB], "meta": {"mentions": []}},
            400,
            "mentions_conflict",
        ),
        ({"to": "topic:t", "message": "", "meta": {"n": 2**53}}, 400, "meta_not_canonicalizable"),
    ],
)
async def test_a_wrong_send_is_refused(
    send: dict[str, Any], status: int, error: str, daemon: LocalDaemon
) -> None:
    """Each fault has its code, and no row."""
    async with daemon.unix() as client:
        response = await client.post("/v1/send", json=send)
        assert (response.status_code, response.json()["error"]) == (status, error)
        response = await client.post("/v1/topic/post", json={"message": "x"})
        assert (response.status_code, response.json()["error"]) == (400, "schema_invalid")
    assert daemon.row_count() == 0


async def test_reply_to_has_two_names(daemon: LocalDaemon) -> None:
    """`replyToId` and `reply_to_id` make the same send."""
    async with daemon.unix() as client:
        for name in ("replyToId", "reply_to_id"):
            send = {**SEND, name: "01B", "client_message_id": "same"}
            assert (await client.post("/v1/send", json=send)).status_code == 202
    assert daemon.row_count() == 1


async def test_a_full_queue_refuses_new_sends_only(tmp_path: Path) -> None:
    """From 95 % on there is no room for a new id; an id that is stored keeps its answer."""
    settings = structs.replace(SETTINGS, outbox=OutboxSettings(max_queue_size=20))
    async with running(tmp_path, settings=settings) as daemon, daemon.unix() as client:
        heard: list[str] = []
        daemon.events.listeners.append(lambda kind, _: heard.append(kind))
        statuses = []
        for number in range(21):
            send = {**SEND, "client_message_id": f"id-{number}"}
            statuses.append((await client.post("/v1/send", json=send)).status_code)
        assert statuses == [202] * 19 + [507] * 2
        assert heard == ["outbox_pressure_high"]
        refused = (await client.post("/v1/send", json={**SEND, "client_message_id": "x"})).json()
        assert "19 messages wait for the broker" in refused["detail"]
        again = await client.post("/v1/send", json={**SEND, "client_message_id": "id-0"})
        assert again.status_code == 202
        other = await client.post("/v1/send", json={**OTHER, "client_message_id": "id-0"})
        assert other.status_code == 409
        daemon.settle(daemon.outbox.claim(1)[0], "done")
        freed = await client.post("/v1/send", json={**SEND, "client_message_id": "id-20"})
        assert freed.status_code == 202


async def test_a_full_disk_degrades(daemon: LocalDaemon) -> None:
    """When only the reserve is left there are no sends and no new streams, and health says so."""
    daemon.free_bytes = daemon.settings.disk.reserved_bytes
    async with daemon.unix() as client:
        refused = await client.post("/v1/send", json=SEND)
        assert (refused.status_code, "reserved_bytes" in refused.json()["detail"]) == (507, True)
        assert (await client.get("/v1/events")).status_code == 507
        assert (await client.get("/v1/health")).json()["status"] == "degraded"
        assert (await client.get("/v1/inbox")).status_code == 200
