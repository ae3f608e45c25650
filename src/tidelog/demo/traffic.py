"""What goes on after the tour: a little of everything, so that there is something to look at."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from tidelog.base.errors import TidelogError
from tidelog.client import ChannelClient, ChannelPublisher, MeshClient
from tidelog.demo.acts import channels, mesh, sync
from tidelog.demo.stage import APP_ID, APP_KEY, Stage

SECONDS = 3600.0
"""How long it goes on at most; a demo that is forgotten does not fill a disk."""

ANSWER_PAUSE_S, TASK_PAUSE_S, REPORT_PAUSE_S = 4.0, 3.0, 2.0
WORD_PAUSE_S = 0.15


async def flow(stage: Stage, say: Callable[[str], None]) -> None:
    """Stream answers, tick a task on and off, and send reports, for an hour at most.

    Args:
        stage: where the whole tour was played.
        say: told what failed; it is tried again, so that the server may be killed meanwhile.
    """
    try:
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for part in (_answers, _onlooker, _tasks, _reports):
                group.create_task(_repeated(part, stage, say))
    except TimeoutError:
        say("an hour is over, so the traffic ends; the server runs on")


async def _repeated(
    part: Callable[[Stage], Awaitable[None]], stage: Stage, say: Callable[[str], None]
) -> None:
    while True:
        try:
            await part(stage)
        except TidelogError as error:
            say(f"{error}; trying again")
        await asyncio.sleep(1.0)


async def _answers(stage: Stage) -> None:
    async with ChannelPublisher(stage.url, APP_ID, APP_KEY, stage.app_secret) as publisher:
        for sentence in itertools.cycle(channels.SENTENCES):
            async with publisher.stream(channels.CHANNEL, "answer") as answer:
                for word in sentence.split():
                    await answer.write(f"{word} ")
                    await asyncio.sleep(WORD_PAUSE_S)
            await asyncio.sleep(ANSWER_PAUSE_S)


async def _onlooker(stage: Stage) -> None:
    async with (
        ChannelClient(stage.socket_url, APP_KEY) as client,
        client.subscribe(channels.CHANNEL, rewind=10) as channel,
    ):
        async for _ in channel:
            pass


async def _tasks(stage: Stage) -> None:
    async with sync.client(stage, "ada", online=True) as ada:
        for number in itertools.count():
            tick = sync.ticked(sync.SHARED[0], done=number % 2 == 0)
            await sync.submit(ada, [tick], committed=True)
            await asyncio.sleep(TASK_PAUSE_S)


async def _reports(stage: Stage) -> None:
    agent = MeshClient(stage.home / mesh.AGENT)
    while True:
        await agent.send(f"dm:{mesh.WORKER}", "the water is rising")
        await asyncio.sleep(REPORT_PAUSE_S)
