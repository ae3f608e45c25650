"""The clock of a real broker jumps, and its retention runs beside retries (FT-23 c, FT-24)."""

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from support.mesh_caller import Caller, topic_send
from support.mesh_daemon import eventually
from support.mesh_invariants import check
from support.mesh_real import TOPIC, RealMesh

JUMPS = max(5, int(os.environ.get("TIDELOG_TEST_SOAK_ROUNDS", "0")))
WEEK_HOURS = 8 * 24
"""A jump behind which everything is too old that a mesh keeps for seven days."""

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
    sweeping = {"TIDELOG_MESH_RETENTION_INTERVAL_SECONDS": "0.05"}
    kept: Json = {"dedupe_retention_days": 7, "message_retention_days": 7}
    dice = random.Random(int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "24")))
    with RealMesh(tmp_path / "broker", store_location, environment=sweeping, **kept) as mesh:
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
        await asyncio.to_thread(check, mesh)
        rows = "SELECT count(*) FROM {message_history}"
        tombstones = "SELECT count(*) FROM {message_tombstone}"
        [(places,)], [(gone,)] = mesh.rows(rows), mesh.rows(tombstones)
        assert gone == places - len(ids), "all but the last message of each id is gone, and told"


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
