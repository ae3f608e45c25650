"""What an operator does with the outbox over the IPC (mesh 4.4)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.cli.command import run as run_command
from support.mesh import mesh_cases
from support.mesh.local_daemon import BOB, LocalDaemon, running

SEND = {"to": "topic:alerts", "message": "m", "meta": {"a": 1, "mentions": [BOB]}}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[LocalDaemon]:
    """A daemon."""
    async with running(tmp_path) as started:
        yield started


async def one_row(daemon: LocalDaemon, status: str) -> str:
    """The id of the only row, in a status."""
    async with daemon.unix() as client:
        await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "old"})
    daemon.put(status, "old")
    return daemon.outbox.inspect("old")[0].id


@pytest.mark.parametrize(
    "case",
    mesh_cases.params(
        "requeue", "Q01", "Q02", "Q03", "Q04", "Q05", "Q06", "Q07", "Q08", "Q09", "Q10", "Q12"
    ),
)
async def test_requeue(case: mesh_cases.Case, daemon: LocalDaemon) -> None:
    """Each case has its answer, and leaves the rows it names."""
    row_id = "absent"
    if case["row"] != "absent":
        row_id = await one_row(daemon, case["row"])
    request: dict[str, Any] = {"id": row_id, "auto": True}
    if "new-client-id" in case["mode"]:
        request = {"id": row_id, "new_client_id": "old" if "equal" in case["mode"] else "fresh"}
    if "invalid" in case["mode"]:
        request["patch"] = {"message": 5}
    elif "patch" in case["mode"]:
        request["patch"] = {"message": "patched"}
    before = daemon.row_count()
    async with daemon.unix() as client:
        response = await client.post("/v1/outbox/requeue", json=request)
        for _ in range(2 if "three times" in case["mode"] else 0):
            again = {"id": response.json()["new_row_id"], "auto": True}
            response = await client.post("/v1/outbox/requeue", json=again)
        shown = (await client.get(f"/v1/outbox/{row_id}")).json()
    answer = response.json()
    assert response.status_code == case.get("status", 200)
    if "error" in case:
        assert answer["error"] == case["error"]
        assert set(case.get("body_present", ())) <= set(answer)
        assert daemon.row_count() == before
        if "old" in case:
            assert shown["status"] == case["old"]["status"]
        return
    old, [*_, new] = daemon.outbox.inspect(row_id)
    if "inspect_chain_length" in case:
        assert [link["status"] for link in shown["chain"]] == ["aborted"] * 3 + [case["terminal"]]
        assert len(shown["chain"]) == case["inspect_chain_length"]
        return
    assert (answer["aborted_row_id"], answer["new_row_id"]) == (row_id, new.id)
    assert (old.status, old.aborted_by, old.superseded_by) == ("aborted", "operator", new.id)
    assert (new.status, new.attempts) == ("pending", 0)
    assert new.client_message_id == answer["new_client_message_id"]
    assert (new.client_message_id == "fresh") == (case["mode"] == "new-client-id fresh")
    if "patch" in request:
        assert json.loads(new.payload)["body"] == "patched"
        assert json.loads(new.payload)["meta"] == SEND["meta"]
        assert new.request_fingerprint != old.request_fingerprint
    else:
        assert (new.payload, new.request_fingerprint) == (old.payload, old.request_fingerprint)
    [claim] = daemon.outbox.claim()
    assert claim.supersedes == "old"


@pytest.mark.parametrize("case", mesh_cases.params("requeue", "Q11"))
async def test_the_command_names_one_mode(case: mesh_cases.Case, daemon: LocalDaemon) -> None:
    """The real command ends as the case says for neither mode, and for both; no row changes."""
    row_id = await one_row(daemon, case["row"])
    before = daemon.outbox.row(row_id)
    command = ["mesh", "outbox", "requeue", "--id", row_id]
    place = ["--data-dir", str(daemon.folder)]
    for modes in ([], ["--auto", "--new-client-id", "fresh"]):
        ended = await asyncio.to_thread(run_command, *command, *place, *modes)
        assert ended.returncode == case["exit_code"], ended.stderr
        assert (ended.stdout, "--new-client-id" in ended.stderr) == ("", True)
        assert (daemon.outbox.row(row_id), daemon.row_count()) == (before, 1)


@pytest.mark.parametrize(
    "request_",
    [
        {"auto": True},
        {"id": "x"},
        {"id": "x", "auto": True, "new_client_id": "y"},
        {"id": "x", "new_client_id": ""},
    ],
)
async def test_a_requeue_names_one_mode(request_: dict[str, Any], daemon: LocalDaemon) -> None:
    """Neither or both is a mistake."""
    async with daemon.unix() as client:
        assert (await client.post("/v1/outbox/requeue", json=request_)).status_code == 400


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"to": "bob"}, {"destination_kind": "dm", "destination_ref": BOB}),
        ({"meta": None}, {"meta": None}),
        ({"mentions": []}, {"meta": {"a": 1}}),
        ({"reply_to_id": "01B"}, {"reply_to_id": "01B"}),
        ({"priority": "now"}, {"priority": "now"}),
        ({"mesage": "typo"}, None),
        ({}, None),
        ({"to": "nobody"}, None),
        ({"message": "x" * 65_537}, None),
    ],
)
async def test_a_patch_replaces_what_it_names(
    patch: dict[str, Any], expected: dict[str, Any] | None, daemon: LocalDaemon
) -> None:
    """The rest of the envelope stays; a patch that cannot be sent changes nothing."""
    row_id = await one_row(daemon, "dead")
    async with daemon.unix() as client:
        request = {"id": row_id, "auto": True, "patch": patch}
        response = await client.post("/v1/outbox/requeue", json=request)
    if expected is None:
        assert response.status_code in (400, 404, 413)
        assert daemon.outbox.row(row_id).status == "dead"
        return
    old = json.loads(daemon.outbox.row(row_id).payload)
    new = json.loads(daemon.outbox.row(response.json()["new_row_id"]).payload)
    assert new == old | expected


async def test_a_drop_keeps_the_row(daemon: LocalDaemon) -> None:
    """It is aborted without a successor; its id stays taken."""
    row_id = await one_row(daemon, "dead")
    async with daemon.unix() as client:
        dropped = await client.post("/v1/outbox/drop", json={"id": row_id})
        again = await client.post("/v1/outbox/drop", json={"id": row_id})
        missing = await client.post("/v1/outbox/drop", json={"id": "x"})
        send = await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "old"})
    assert dropped.json() == {"aborted_row_id": row_id, "maybe_delivered": False}
    assert (again.status_code, again.json()["superseded_by"]) == (409, None)
    assert missing.status_code == 404
    assert send.json()["conflict"] == "outbox_aborted_fingerprint_match"


async def test_a_drop_says_whether_the_broker_may_have_it(daemon: LocalDaemon) -> None:
    """An attempt without an answer proves nothing; what was refused is not there, also later."""
    row_id = await one_row(daemon, "inflight")
    assert daemon.outbox.recover_inflight() == 1
    async with daemon.unix() as client:
        dropped = await client.post("/v1/outbox/drop", json={"id": row_id})
        shown = (await client.get(f"/v1/outbox/{row_id}")).json()
        await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "refused"})
        daemon.put("dead", "refused")
        refused = daemon.outbox.inspect("refused")[0].id
        again = await client.post("/v1/outbox/drop", json={"id": refused})
        shown_again = (await client.get(f"/v1/outbox/{refused}")).json()
    assert (dropped.json()["maybe_delivered"], shown["maybe_delivered"]) == (True, True)
    assert (again.json()["maybe_delivered"], shown_again["maybe_delivered"]) == (False, False)
    assert shown["status"] == shown_again["status"] == "aborted"


async def test_pruning_needs_a_confirmation_and_keeps_ids(daemon: LocalDaemon) -> None:
    """Only the payload of final rows goes."""
    row_id = await one_row(daemon, "done")
    async with daemon.unix() as client:
        assert (await client.post("/v1/outbox/prune", json={})).status_code == 400
        assert (await client.post("/v1/outbox/prune", json={"confirm": True})).json() == {
            "pruned": 1
        }
        again = await client.post("/v1/send", json=SEND, headers={"Idempotency-Key": "old"})
    assert daemon.outbox.row(row_id).payload == b""
    assert (again.status_code, again.json()["duplicate"]) == (200, True)


async def test_a_list_is_newest_first(daemon: LocalDaemon) -> None:
    """By status, bounded, without payloads."""
    async with daemon.unix() as client:
        for number in range(3):
            headers = {"Idempotency-Key": f"id-{number}"}
            await client.post("/v1/send", json=SEND, headers=headers)
        listed = (await client.get("/v1/outbox?limit=2&status=pending")).json()["items"]
        none = (await client.get("/v1/outbox?status=dead")).json()["items"]
        wrong = await client.get("/v1/outbox?status=lost")
        inspected = (await client.get("/v1/outbox/id-1")).json()
    assert [item["client_message_id"] for item in listed] == ["id-2", "id-1"]
    assert "payload" not in listed[0]
    assert none == []
    assert wrong.status_code == 400
    assert (inspected["maybe_delivered"], len(inspected["chain"])) == (False, 1)
