"""Processes of one server are killed and stand still, at random and at each step of the link."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from support.serve import processes
from support.serve.clients import until
from support.serve.load import Load
from support.serve.processes import Processes, is_running, kill, pause
from support.sync.submitters import Submitter, check_submitted
from tidelog.base.faultpoint import VARIABLE, FaultPoint

FRONTS = 2
ROUNDS = int(os.environ.get("TIDELOG_TEST_SOAK_CHAOS", "0"))
"""`scripts/soak --chaos` says how many seeds; every step is tried there, too."""
SEEDS = range(1, max(1, ROUNDS) + 1)
DISTURBANCES = 6 if ROUNDS else 2
"""Of each seed; the two of the first are a front that stands still and the kill of an owner."""

STEPS = (
    FaultPoint.LINK_SENDING,
    FaultPoint.LINK_RECEIVED,
    FaultPoint.DECIDED,
    FaultPoint.COMMITTED,
    FaultPoint.HANDING_OVER,
    FaultPoint.FLUSHING,
)
"""Where an owner or a front dies on the way of a request, its answer and its entry. The others are
those of the commit path, which `test_owner_killed` and all tests of kills pass in one process."""


async def disturb(server: Processes, rng: random.Random) -> None:
    """Kill one of the processes, or let it stand still for a while."""
    victim = rng.choice(("front", "front", "owner", "owner", "supervisor"))
    if victim == "supervisor":
        process = server.supervisor
    else:
        process = await server.owner() if victim == "owner" else rng.choice(await server.fronts())
    if rng.random() < 0.4:
        await pause(process)
        await asyncio.sleep(rng.uniform(0.05, 1.5))
        os.kill(process, signal.SIGCONT)
    elif victim == "supervisor":
        await asyncio.to_thread(server.crash)
    else:
        await asyncio.to_thread(kill, process)


@pytest.mark.parametrize("seed", SEEDS)
async def test_processes_are_killed_and_stand_still(seed: int, tmp_path: Path) -> None:
    """Nothing acknowledged is lost or doubled, and every reader has all of it once, in order."""
    rng = random.Random(seed)
    with Processes(tmp_path / "data", FRONTS) as server:
        async with Load.on(server) as load:
            await load.more()
            await hang(server, load)
            for _ in range(DISTURBANCES):
                await disturb(server, rng)
                await load.more()
            await load.check()
    await asyncio.to_thread(load.check_store)


async def hang(server: Processes, load: Load) -> None:
    """Others go on without a front, which then goes on too, and an owner hangs.

    The first must find out that it is none any more, the second does not come back: by that each
    reader has lost its connection at least once.
    """
    front = (await server.fronts())[0]
    async with server.nothing_is_started():
        owner = await server.owner()
        before = links(owner)
        await pause(front)
        await until(lambda: links(owner) < before)
        os.kill(front, signal.SIGCONT)
        await load.more()
    assert front in await server.fronts()
    await pause(owner)
    await until(lambda: not is_running(owner))
    await load.more()


@pytest.mark.parametrize("steps", [(step,) for step in STEPS] if ROUNDS else [STEPS[:2]])
async def test_processes_die_at_a_step(steps: tuple[FaultPoint, ...], tmp_path: Path) -> None:
    """The same, when each process dies again and again as it passes one step of the way."""
    with Processes(tmp_path / "data", FRONTS) as server:
        async with Load.on(server) as load:
            await load.more()
            for step in steps:
                rng = random.Random(str(step))
                faults = {VARIABLE: f"{step}=kill@{rng.randint(150, 400)}"}
                await asyncio.to_thread(server.crash, **faults)
                victims = {await server.owner(), *await server.fronts()}
                while victims <= {await server.owner(), *await server.fronts()}:
                    await load.more()
                await load.more()
            await asyncio.to_thread(server.crash)
            await load.more()
            await load.check()
    await asyncio.to_thread(load.check_store)


def links(owner: int) -> int:
    """How many sockets an owner has: one for each front beside those that it always has."""
    found = 0
    for each in Path(f"/proc/{owner}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found += str(each.readlink()).startswith("socket:")
    return found


def planted(mistake: str) -> dict[str, str]:
    """Variables by which every process has that mistake."""
    return {"PYTHONPATH": str(Path(processes.__file__).with_name(mistake))}


async def submitted(server: Processes) -> None:
    """One client submits until the owner is another; what it was told is there."""
    url = f"{server.ws_url}/sync"
    submitter, stopping = Submitter(0, url), asyncio.Event()
    submitting = asyncio.create_task(submitter.run(stopping))
    try:
        owner = await server.owner()
        while await server.owner() == owner:
            assert not submitting.done()
            await asyncio.sleep(0.01)
    finally:
        stopping.set()
    await submitting
    await check_submitted(url, [submitter])


async def test_an_answer_before_its_commit_is_found_out(tmp_path: Path) -> None:
    """An owner dies between the two: its client was told of something that is not there."""
    mistake = {VARIABLE: f"{FaultPoint.COMMITTING}=kill@20", **planted("hasty")}
    with (
        Processes(tmp_path / "data", FRONTS, **mistake) as server,
        pytest.raises(AssertionError, match="is not there"),
    ):
        await submitted(server)


async def used(load: Load) -> None:
    """For a moment, unless something is found meanwhile."""
    for _ in range(100):
        await load.more()


async def test_a_frame_that_the_link_leaves_out_is_found_out(tmp_path: Path) -> None:
    """A reader has a gap, as soon as something comes after it."""
    with Processes(tmp_path / "data", FRONTS, **planted("lossy")) as server:
        async with Load.on(server) as load:
            with pytest.raises(AssertionError):
                await used(load)
