"""Third act, mesh: an agent sends through its daemon while the broker is killed."""

import asyncio
from pathlib import Path
from random import Random

from tidelog.client import MeshClient
from tidelog.demo.narration import Claim, Narrator
from tidelog.demo.stage import MESH, Stage
from tidelog.demo.waiting import until

SENDS = 24
AGENT, WORKER = "agent", "worker"


async def play(stage: Stage, narrator: Narrator, random: Random) -> list[Claim]:
    """Play it; returns what was proved by reading the worker's inbox and the agent's outbox."""
    narrator.act("Mesh", "what a daemon has taken arrives once, whoever dies on the way")
    await stage.tidelog("mesh", "create", MESH, "--url", stage.url)
    agent, worker = await asyncio.gather(_joined(stage, AGENT), _joined(stage, WORKER))
    narrator.say(
        f"two daemons have joined the mesh; the agent gives its own {SENDS} reports for the worker"
    )
    sender, receiver = MeshClient(agent), MeshClient(worker)
    await until(lambda: _are_connected(sender, receiver))
    kill_after = random.randint(SENDS // 4, SENDS // 2)
    ids = [f"report-{number}" for number in range(1, SENDS + 1)]
    for number, key in enumerate(ids, 1):
        await sender.send(f"dm:{WORKER}", _text(number), idempotency_key=key)
        if number == kill_after:
            await asyncio.to_thread(stage.server.kill)
            narrator.say(
                f"kill -9 of the broker when the daemon has {number} of the {SENDS}; "
                f"the agent does not notice and gives it the other {SENDS - number}"
            )
    waiting = (await sender.health())["queue_depth"]
    narrator.say(
        f"the daemon has all {SENDS}: the broker acknowledged {SENDS - waiting} before it died, "
        f"{waiting} wait on the agent's disk; the broker starts again"
    )
    await asyncio.to_thread(stage.server.start)

    async def are_all_there() -> bool:
        is_sent = (await sender.health())["queue_depth"] == 0
        return is_sent and set(await _inbox(receiver)) == set(ids)

    await until(are_all_there)
    received = await _inbox(receiver)
    rows = [await sender.outcome(key) for key in ids]
    again = await sender.send(f"dm:{WORKER}", _text(SENDS), idempotency_key=ids[-1])
    narrator.show(
        {AGENT: f"gave {len(ids)} reports", WORKER: f"received {len(received)} of {len(ids)}"}
    )
    return [
        Claim("every report arrived, each once", sorted(received), sorted(ids)),
        Claim("the agent knows it of each", {row["status"] for row in rows}, {"done"}),
        Claim(
            "a report sent again is the same report",
            again.broker_message_id,
            rows[-1]["broker_message_id"],
        ),
    ]


def _text(number: int) -> str:
    return f"position {number} of {SENDS}"


async def _joined(stage: Stage, name: str) -> Path:
    invite = await stage.tidelog("mesh", "invite", MESH, "--url", stage.url)
    home = stage.home / name
    await stage.tidelog("mesh", "join", invite, "--name", name, "--data-dir", str(home))
    return await asyncio.to_thread(stage.start_daemon, name)


async def _are_connected(*clients: MeshClient) -> bool:
    return all([(await client.health())["connected"] for client in clients])


async def _inbox(client: MeshClient) -> list[str]:
    """The id of every row, in the order of their arrival."""
    items = (await client.ask("GET", f"/v1/inbox?limit={4 * SENDS}"))["items"]
    return [item["client_message_id"] for item in items]
