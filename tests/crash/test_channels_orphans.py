"""`kill -9` while streams that nobody writes any more are ended, and of whoever wrote them."""

import asyncio
import sys
from pathlib import Path

from support.channels.peer import APP, channel_path, message_path, token
from support.channels.raw import Json, RawClient
from support.cli.command import tidelog
from tidelog.base.faultpoint import FaultPoint
from tidelog.client import ChannelClient
from tidelog.client.backoff import Backoff
from tidelog.testing.process import ServerProcess

QUICK = Backoff(first=0.05, most=0.2)
CHANNEL = "tokens"
COUNT = 8
RUNS = 4
"""Runs that the messages belong to, in turns."""
POINTS = (
    FaultPoint.DECIDED,
    FaultPoint.ENTRIES_WRITTEN,
    FaultPoint.WRITTEN,
    FaultPoint.COMMITTING,
    FaultPoint.COMMITTED,
)
"""The last one leaves something ended that nobody was told of."""


def configure(path: Path, timeout_seconds: float) -> None:
    """The configuration of the next start."""
    path.write_text(
        f"""
[[apps]]
id = "{APP.id}"
key = "{APP.key}"
secret = "{APP.secret}"

[channels.versioned_messages]
enabled = true

[channels.ai_transport]
orphan_timeout_seconds = {timeout_seconds}
""",
        encoding="utf-8",
    )


def said(item: Json) -> Json:
    """The transport headers of a message."""
    found: Json = item["extras"]["ai"]["transport"]
    return found


async def messages(client: RawClient, channel: str) -> list[Json]:
    """Those of a channel, oldest first."""
    page = await client.get(f"{channel_path(channel)}/history", direction="oldest_first")
    return [item["message"] for item in page["items"]]


async def test_run_check_24_orphans_end_once_whatever_is_killed(
    store_location: str, tmp_path: Path
) -> None:
    """Found again after every kill, each ended by one version, and each run by one event."""
    config = tmp_path / "tidelog.toml"
    configure(config, 86_400)
    with ServerProcess(
        data_dir=tmp_path / "data", store=store_location, arguments=("--config", str(config))
    ) as server:
        server.start()
        client = RawClient(lambda: server.port)
        serials = []
        for number in range(COUNT):
            headers = {"status": "streaming", "run-id": f"r{number % RUNS}"}
            body: Json = {"name": "ai-output", "channel": CHANNEL, "data": f"{number}"}
            body["extras"] = {"ai": {"transport": headers}}
            answer = await client.request("POST", "/events", body)
            serials.append(answer.json["channels"][CHANNEL]["message_serial"])
        client.close()
        server.kill()
        configure(config, 0.2)
        for point in POINTS:
            server.start(f"{point}=kill")
            assert await asyncio.to_thread(server.wait, 60) == -9, point
        server.start()
        client = RawClient(lambda: server.port)
        for number, serial in enumerate(serials):
            path = message_path(CHANNEL, serial)
            async with asyncio.timeout(60):
                item = (await client.get(path))["item"]
                while said(item)["status"] == "streaming":
                    await asyncio.sleep(0.02)
                    item = (await client.get(path))["item"]
            told = {"status": "cancelled", "error-code": "orphan_timeout"}
            assert said(item) == {**told, "run-id": f"r{number % RUNS}"}
            assert item["data"] == f"{number}"
            assert len((await client.get(f"{path}/versions"))["items"]) == 2
        ends = [each for each in await messages(client, CHANNEL) if each["name"] == "ai-run-end"]
        assert sorted(said(end)["run-id"] for end in ends) == [f"r{n}" for n in range(RUNS)]
        told = {"run-reason": "error", "error-code": "orphan_timeout"}
        assert all(told.items() <= said(end).items() for end in ends)
        client.close()
        assert server.terminate() == 0
    await tidelog("log", "verify", "--store", store_location)


def words(found: list[Json]) -> list[str]:
    """What the agent has said, as far as it is stored."""
    return [word for each in found if each["name"] == "ai-output" for word in each["data"].split()]


def revive(server: ServerProcess) -> None:
    """Start it again if it was killed."""
    if not server.is_running:
        assert server.wait() == -9
        server.start()


AGENT = """
import asyncio, sys
from tidelog.client import ChannelPublisher

async def main(*server):
    async with ChannelPublisher(*server) as publisher:
        async with publisher.run("room", run_id="r", client_id="ana") as run:
            for number in range(1_000_000):
                await run.write(f"w{number} ")
                await asyncio.sleep(0.02)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_run_check_25_an_agent_that_dies(store_location: str, tmp_path: Path) -> None:
    """It goes on through a kill of the server; killed itself, its run is ended by the server.

    What users said meanwhile is there once, in order.
    """
    config = tmp_path / "tidelog.toml"
    configure(config, 12)  # longer than a killed server is away, on a loaded machine too
    with ServerProcess(
        data_dir=tmp_path / "data", store=store_location, arguments=("--config", str(config))
    ) as server:
        server.start()
        secrets = (APP.id, APP.key, APP.secret)
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGENT, server.url, *secrets
        )
        lets = token("ana", {"room": ["publish"]})
        ana = ChannelClient(server.url, APP.key, token=lets, backoff=QUICK)
        async with asyncio.timeout(120), ana:
            for number in range(15):
                if number % 5 == 2:
                    # Killed after it was committed, before anybody was told of it.
                    server.kill()
                    server.start(f"{FaultPoint.COMMITTED}=kill@{number}")
                key = f"m{number}"
                said_it = asyncio.create_task(
                    ana.publish("room", "ai-input", f"{number}", message_id=key)
                )
                while not said_it.done():
                    revive(server)
                    await asyncio.wait((said_it,), timeout=0.1)
                assert await said_it == key
            # The last start may not have come to its twelfth commit, and would die of a later one.
            server.kill()
            server.start()
            client = RawClient(lambda: server.port)
            while len(words(await messages(client, "room"))) < 40:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        agent.kill()
        await agent.wait()
        async with asyncio.timeout(60):
            found = await messages(client, "room")
            while found[-1]["name"] != "ai-run-end":
                await asyncio.sleep(0.05)
                found = await messages(client, "room")
        inputs = [each["data"] for each in found if each["name"] == "ai-input"]
        assert inputs == [f"{number}" for number in range(15)]
        [output] = [each for each in found if each["name"] == "ai-output"]
        text = words([output])
        assert text == [f"w{number}" for number in range(len(text))]
        assert len(text) >= 40
        assert (said(output)["status"], said(output)["error-code"]) == (
            "cancelled",
            "orphan_timeout",
        )
        end = said(found[-1])
        assert (end["run-id"], end["run-client-id"], end["run-reason"]) == ("r", "ana", "error")
        await asyncio.sleep(1)
        names = [each["name"] for each in await messages(client, "room")]
        assert names.count("ai-run-end") == 1
        client.close()
        assert server.terminate() == 0
    await tidelog("log", "verify", "--store", store_location)
