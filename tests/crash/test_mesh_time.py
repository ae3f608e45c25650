"""The clock of a real broker jumps, and its retention runs beside retries (FT-23 c, FT-24).

The pauses of FT-24 need a retry that stands still while another process sweeps, so these cases are
PostgreSQL's, with two nodes. On SQLite there is one process: what can happen side by side there
happens in `test_ft_24_retention_beside_retries`, at random.
"""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.caller import Caller, topic_send
from support.mesh.daemon_process import eventually
from support.mesh.invariants import check

JUMPS = max(3, int(os.environ.get("TIDELOG_TEST_SOAK_ROUNDS", "0")))
WEEK_HOURS = 8 * 24
"""A jump behind which everything is too old that a mesh keeps for seven days."""

SWEEPING = {"TIDELOG_MESH_RETENTION_INTERVAL_SECONDS": "0.05"}
RESTING = {"TIDELOG_MESH_RETENTION_INTERVAL_SECONDS": "3600"}

Json = dict[str, Any]


def test_ft_23c_the_brokers_clock_jumps_ahead_and_back(tmp_path: Path, store_location: str) -> None:
    """An id outlives the jump; if a sweep ran meanwhile, the check reports what it did."""
    with (
        RealMesh(tmp_path / "broker", store_location, dedupe_retention_days=7) as mesh,
        mesh.daemon("alice") as alice,
    ):
        alice.start()
        alice.send(f"topic:{TOPIC}", "tide", "a")
        check(mesh, alice)
        first = mesh.ids()["a"]
        mesh.shift_clock(10 * 24)
        alice.send(f"topic:{TOPIC}", "ebb", "b")
        check(mesh, alice)
        mesh.server.kill()
        mesh.shift_clock(0)
        mesh.server.start()
        alice.send(f"topic:{TOPIC}", "flow", "c")
        check(mesh, alice)
        assert mesh.ids()["a"] == first, "no sweep ran under the wrong clock, so the id is there"
        mesh.server.kill()
        mesh.shift_clock(10 * 24)
        mesh.server.start()  # a start sweeps
        eventually(lambda: "a" not in mesh.ids())
        mesh.server.kill()
        mesh.shift_clock(0)
        found = mesh.findings()
        assert {finding.rule for finding in found} == {3}, "an id that is gone too early is told"
        assert first in {finding.key for finding in found}


async def test_ft_24_retention_beside_retries(tmp_path: Path, store_location: str) -> None:
    """Retries get 200 or 201 whenever both sweeps run, and never half of a message."""
    kept: Json = {"dedupe_retention_days": 7, "message_retention_days": 7}
    dice = random.Random(int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "24")))
    with RealMesh(tmp_path / "broker", store_location, environment=SWEEPING, **kept) as mesh:
        caller = await Caller.open(mesh, await asyncio.to_thread(mesh.member, "carol"))
        ids = [f"m{number}" for number in range(20)]
        await asyncio.gather(*(caller.send(each, topic_send(each)) for each in ids))
        for jump in range(1, JUMPS + 1):
            retries = [asyncio.create_task(retried(caller, each, dice)) for each in ids]
            await asyncio.sleep(dice.uniform(0, 0.05))
            mesh.shift_clock(jump * WEEK_HOURS)
            for answers in await asyncio.gather(*retries):
                check_answers(answers)
        await caller.close()
        # An id that was forgotten was used again before the sweep came to its first message.
        await asyncio.to_thread(eventually, lambda: set(mesh.messages().values()) == {1})
        await asyncio.to_thread(check, mesh)
        rows = "SELECT count(*) FROM {message_history}"
        tombstones = "SELECT count(*) FROM {message_tombstone}"
        [(places,)], [(gone,)] = mesh.rows(rows), mesh.rows(tombstones)
        assert gone == places - len(ids), "all but the last message of each id is gone, and told"


async def test_ft_24a_a_retry_paused_before_the_fast_path(
    tmp_path: Path, postgresql_url: str
) -> None:
    """The id is swept while the retry is unread: it is a first accept, of a message of its own."""
    kept: Json = {"dedupe_retention_days": 7, "message_retention_days": 7}
    with RealMesh(tmp_path / "broker", postgresql_url, environment=RESTING, **kept) as mesh:
        caller = await Caller.open(mesh, await asyncio.to_thread(mesh.member, "carol"))
        first = await caller.send("a", topic_send("tide"))
        mesh.server.send_signal(signal.SIGSTOP)
        retry = asyncio.create_task(caller.send("a", topic_send("tide")))
        mesh.shift_clock(WEEK_HOURS)
        await asyncio.to_thread(mesh.node("sweeper", SWEEPING).start)
        await asyncio.to_thread(eventually, lambda: "a" not in mesh.ids())
        assert not retry.done()
        mesh.server.send_signal(signal.SIGCONT)
        again = await retry
        assert (first["code"], again["code"]) == (201, 201)
        assert again["broker_message_id"] != first["broker_message_id"]
        await caller.close()
        await asyncio.to_thread(check, mesh)


@pytest.mark.parametrize("is_swept", [False, True])
async def test_ft_24b_a_retry_paused_before_decide(
    tmp_path: Path, postgresql_url: str, *, is_swept: bool
) -> None:
    """Behind the fast path, which found nothing: what `decide` finds counts, there or swept."""
    kept: Json = {"dedupe_retention_days": 7, "message_retention_days": 7}
    kept["clone_concurrency_policy"] = "allow_concurrent"
    with RealMesh(
        tmp_path / "broker", postgresql_url, environment=RESTING, faults="K2=stop", **kept
    ) as mesh:
        key = await asyncio.to_thread(mesh.member, "carol")
        sweeper = mesh.node("sweeper", SWEEPING)
        await asyncio.to_thread(sweeper.start)
        caller = await Caller.open(mesh, key)
        other = await Caller.open(mesh, key, url=sweeper.url)
        paused = asyncio.create_task(caller.send("b", topic_send("tide")))
        await asyncio.to_thread(eventually, lambda: is_stopped(mesh.server.pid))
        first = await other.send("b", topic_send("tide"))
        if is_swept:
            mesh.shift_clock(WEEK_HOURS)
            await asyncio.to_thread(eventually, lambda: "b" not in mesh.ids())
        mesh.server.send_signal(signal.SIGCONT)
        answer = await paused
        assert (first["code"], answer["code"]) == (201, 201 if is_swept else 200)
        is_same = answer["broker_message_id"] == first["broker_message_id"]
        assert is_same is not is_swept
        await caller.close()
        await other.close()
        await asyncio.to_thread(check, mesh)


async def test_ft_24c_a_retry_while_retention_deletes(tmp_path: Path, postgresql_url: str) -> None:
    """The body is there until the deletion is committed, and the answer says so; then it is not."""
    kept: Json = {"dedupe_retention_days": 30, "message_retention_days": 7}
    with RealMesh(tmp_path / "broker", postgresql_url, environment=RESTING, **kept) as mesh:
        caller = await Caller.open(mesh, await asyncio.to_thread(mesh.member, "carol"))
        first = await caller.send("c", topic_send("tide"))
        mesh.shift_clock(WEEK_HOURS)
        sweeper = mesh.node("sweeper", SWEEPING)
        sweeper.launch("store.written=stop")
        await asyncio.to_thread(eventually, lambda: is_stopped(sweeper.pid))
        meanwhile = await caller.send("c", topic_send("tide"))
        assert (meanwhile["code"], meanwhile["history_available"]) == (200, True)
        assert mesh.messages()["c"] == 1
        sweeper.send_signal(signal.SIGCONT)
        await asyncio.to_thread(eventually, lambda: mesh.messages()["c"] == 0)
        after = await caller.send("c", topic_send("tide"))
        assert (after["code"], after["history_available"]) == (200, False)
        ids = {answer["broker_message_id"] for answer in (first, meanwhile, after)}
        assert len(ids) == 1
        gone = mesh.rows("SELECT broker_message_id FROM {message_tombstone}")
        assert [(ids.pop(),)] == gone
        await caller.close()
        await asyncio.to_thread(check, mesh)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, or one that it has started."""
    process = psutil.Process(pid)
    family = (process, *process.children())
    return any(each.status() == psutil.STATUS_STOPPED for each in family)


async def retried(caller: Caller, client_id: str, dice: random.Random) -> list[Json]:
    """Send the same again and again until it is a first accept: its id was forgotten."""
    answers: list[Json] = []
    while not answers or answers[-1]["code"] == 200:
        answers.append(await caller.send(client_id, topic_send(client_id), dice.random() / 50))
    return answers


def check_answers(answers: list[Json]) -> None:
    """Duplicates, with their history until it is gone and never again, then a first accept."""
    assert [answer["code"] for answer in answers] == [200] * (len(answers) - 1) + [201]
    available = [answer["history_available"] for answer in answers[:-1]]
    assert available == sorted(available, reverse=True)
    for answer in answers[:-1]:
        assert answer["history_available"] is (answer["history_id"] is not None)
    earlier = {answer["broker_message_id"] for answer in answers[:-1]}
    assert len(earlier) <= 1
    assert answers[-1]["broker_message_id"] not in earlier
