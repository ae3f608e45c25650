"""All surfaces of a server of several processes under load, and what must have come of it."""

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

from support.channels.raw import Follower, RawClient
from support.channels.token_streams import (
    CHANNELS,
    Stream,
    check_followers,
    check_messages,
    check_retries,
)
from support.cli.command import run as run_command
from support.mesh.peer import BrokerAt, Member
from support.serve.clients import receive, send, until
from support.serve.processes import Processes
from support.sync.submitters import Submitter, Subscriber, check_submitted

STREAMS = 8
SUBMITTERS = 4
WAIT_SECONDS = 120.0


class Load:
    """Writers of each surface, that repeat under its key what was not answered, and readers."""

    def __init__(self, server: Processes) -> None:
        self._server = server
        self._stopping = asyncio.Event()
        self._streams = [Stream(number, self._port) for number in range(STREAMS)]
        self._followers = [Follower(lambda: server.ws_url, channel) for channel in CHANNELS]
        self._followers.append(Follower(lambda: server.ws_url, CHANNELS[0], is_full=True))
        url = f"{server.ws_url}/sync"
        self._submitters = [Submitter(number, url) for number in range(SUBMITTERS)]
        self._subscriber = Subscriber(url)
        self._sent: list[str] = []
        self._got: set[str] = set()
        self._writing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []

    def _port(self) -> int:
        return int(self._server.url.rpartition(":")[2])

    @classmethod
    @asynccontextmanager
    async def on(cls, server: Processes) -> AsyncIterator["Load"]:
        """Running for the length of the block; every reader has attached."""
        load = cls(server)
        broker = BrokerAt(server.url, server.store)
        async with broker.http:
            slug = await broker.mesh()
            members = [await broker.member(slug) for _ in range(2)]
            try:
                await load._start(*members)
                yield load
            finally:
                for task in (*load._writing, *load._reading):
                    task.cancel()
                await asyncio.gather(*load._writing, *load._reading, return_exceptions=True)
                for stream in load._streams:
                    stream.close()

    async def _start(self, ana: Member, ben: Member) -> None:
        self._reading = [asyncio.create_task(each.run()) for each in self._followers]
        self._reading.append(asyncio.create_task(self._subscriber.run()))
        self._reading.append(asyncio.create_task(receive(ben, self._got)))
        for follower, task in zip(self._followers, self._reading, strict=False):
            await follower.reach(0, task, WAIT_SECONDS)
        await self._until(lambda: bool(self._subscriber.attached))
        stopping = self._stopping
        self._writing = [asyncio.create_task(each.run(stopping)) for each in self._streams]
        self._writing += [asyncio.create_task(each.run(stopping)) for each in self._submitters]
        self._writing.append(asyncio.create_task(send(ana, ben, self._sent, stopping)))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so; whoever has failed meanwhile says how."""

        def is_or_failed() -> bool:
            return is_so() or any(task.done() for task in (*self._writing, *self._reading))

        await until(is_or_failed)
        for task in (*self._writing, *self._reading):
            if task.done():
                task.result()

    def _acknowledged(self) -> list[int]:
        return [
            *(stream.acknowledged for stream in self._streams),
            *(len(each.acknowledged) + each.refused.total() for each in self._submitters),
            len(self._sent),
        ]

    async def more(self) -> None:
        """Return when every writer has got something acknowledged."""
        before = self._acknowledged()
        await self._until(
            lambda: all(now > then for now, then in zip(self._acknowledged(), before, strict=True))
        )

    async def check(self) -> None:
        """End the writers; nothing acknowledged is lost or doubled, and readers have it all once.

        The server must be well.
        """
        self._stopping.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*self._writing)
        await self._check_channels()
        await self._check_sync()
        await until(lambda: set(self._sent) <= self._got)

    async def _check_channels(self) -> None:
        with closing(RawClient(self._port)) as client:
            messages = await check_messages(client, self._streams)
            await check_retries(client, self._streams, random.Random(7))
        operations = [
            (stream.channel, ack["delivery_serial"])
            for stream in self._streams
            for _, ack in [*stream.creates, *(a for m in stream.messages for a in m.acks)]
        ]
        assert len(set(operations)) == len(operations)
        heads = Counter(channel for channel, _ in operations)
        tasks = self._reading[: len(self._followers)]
        await check_followers(list(zip(self._followers, tasks, strict=True)), messages, heads)

    async def _check_sync(self) -> None:
        events = await check_submitted(f"{self._server.ws_url}/sync", self._submitters)
        await until(lambda: len(self._subscriber.received) >= len(events))
        assert self._subscriber.received == events, "every event once, in order"

    def check_store(self) -> None:
        """When the server has ended: its log is whole, and mesh messages are there once."""
        database = sqlite3.connect(f"file:{self._server.store}?mode=ro", uri=True)
        with closing(database):
            rows = database.execute("SELECT client_message_id FROM mesh_message_queue").fetchall()
        stored = Counter(message for (message,) in rows)
        assert {stored[message] for message in self._sent} == {1}
        for command in (("log", "verify"), ("mesh", "check")):
            verified = run_command(*command, "--store", self._server.store)
            assert verified.returncode == 0, verified.stderr + verified.stdout
