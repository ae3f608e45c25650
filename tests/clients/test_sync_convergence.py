"""Eight clients, offline and online, through a bad network and a dying server, end up equal."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from support.sync.convergence import Actor, BadNetwork, check_view, converging_server, fold
from support.sync.peer import EVENT, TREE
from tidelog.testing.process import ServerProcess

SEEDS = int(os.environ.get("TIDELOG_TEST_SOAK_SEEDS", "2"))
CLIENTS = 8
STEPS = 25


@pytest.mark.parametrize("seeds", [SEEDS])
async def test_all_views_converge(tmp_path: Path, seeds: int) -> None:
    """At rest every view equals the fold of the log; nothing acknowledged is missing from it."""
    with converging_server(tmp_path) as server:
        server.start()
        for seed in range(seeds):
            await converge(seed, server, tmp_path)


async def converge(seed: int, server: ServerProcess, directory: Path) -> None:
    """One program of drafts, outages, kills and a bad network, then rest."""
    rng = random.Random(seed)
    partitions = [f"{seed}-{name}" for name in "pqr"]
    actors = [
        Actor(
            f"{seed}-{number}",
            TREE if number % 2 else EVENT,
            rng.sample(partitions, 2),
            directory / f"{seed}-{number}.db",
        )
        for number in range(CLIENTS)
    ]
    async with BadNetwork(rng, server.port) as network:
        for actor in actors:
            await actor.open(network.url if rng.random() < 0.7 else None)
        kill_at = rng.randrange(STEPS) if seed % 5 == 0 else None
        for step in range(STEPS):
            for actor in rng.sample(actors, 5):
                await actor.write(rng)
            if step == kill_at:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            if rng.random() < 0.3:
                actor = rng.choice(actors)
                await actor.open(network.url if rng.random() < 0.6 else None)
            await asyncio.sleep(0.005)
        network.is_bad = False
        for actor in actors:
            client = await actor.open(network.url)
            async with asyncio.timeout(30):
                await client.sync()
                for draft in client.pending():
                    await client.wait(draft.id)
        async with asyncio.timeout(30):
            for actor in actors:
                assert actor.client is not None
                await actor.client.sync()
        folded = await fold(server, partitions)
        for actor in actors:
            check_view(actor, folded)
        for actor in actors:
            await actor.close()
