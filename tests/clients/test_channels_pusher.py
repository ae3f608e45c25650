"""pusher-js in Node, unmodified, against a real server process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sockudo_http_python import ChannelsParams, MessageMutation, TriggerOptions

from support import node
from support.channels.peer import APP, unique
from support.channels.process import WAIT_SECONDS, Listening, answer, http_sdk
from support.web.balancer import Balancer
from tidelog.testing.process import ServerProcess

Line = dict[str, Any]


class Driver:
    """The driver's process: commands go in, and what the clients are told comes out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._arrived = asyncio.Event()
        self.lines: list[Line] = []
        """Everything said so far."""

    async def read(self) -> None:
        """Take lines until the process ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(json.loads(line))
            self._arrived.set()

    def do(self, command: str, client: str, **arguments: Any) -> None:
        """Give a command."""
        assert self._process.stdin is not None
        line = json.dumps({"do": command, "client": client, **arguments})
        self._process.stdin.write(f"{line}\n".encode())

    async def until(self, condition: Callable[[Line], bool], after: int = 0) -> Line:
        """The first line that is it, from a place in the lines on."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    for line in self.lines[after:]:
                        if condition(line):
                            return line
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"not among {self.lines[after:]}") from None

    async def told(self, client: str, channel: str, event: str, after: int = 0) -> Line:
        """The first such event of a channel."""
        return await self.until(
            lambda line: (
                (line.get("client"), line.get("channel"), line.get("event"))
                == (client, channel, event)
            ),
            after,
        )

    async def state(self, client: str, state: str, after: int = 0) -> Line:
        """The change of a client to that state."""
        return await self.until(
            lambda line: (line["client"], line.get("state")) == (client, state), after
        )

    async def connect(self, client: str, **arguments: Any) -> str:
        """Connect a client; returns its socket id."""
        self.do("connect", client, **arguments)
        socket_id: str = (await self.state(client, "connected"))["socket_id"]
        return socket_id

    async def subscribe(self, client: str, channel: str) -> Any:
        """Subscribe; returns the data of the success."""
        after = len(self.lines)
        self.do("subscribe", client, channel=channel)
        return (await self.told(client, channel, "pusher:subscription_succeeded", after))["data"]

    def heard(self, client: str, channel: str) -> list[tuple[str, Any]]:
        """Events of a channel with their data, but for its start."""
        return [
            (line["event"], line.get("data"))
            for line in self.lines
            if (line.get("client"), line.get("channel")) == (client, channel)
            and line["event"] not in ("pusher:subscription_succeeded", "members")
        ]


@asynccontextmanager
async def driver(server: Listening) -> AsyncIterator[Driver]:
    """A driver for the length of the block."""
    program, _ = node.programs()
    process = await asyncio.create_subprocess_exec(
        program,
        *(str(node.PUSHER / "driver.mjs"), str(server.port), APP.key, APP.secret),
        cwd=await asyncio.to_thread(node.pusher_home),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = Driver(process)
    reading = asyncio.create_task(running.read())
    try:
        yield running
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
        process._transport.close()  # type: ignore[attr-defined]


async def test_channels_of_every_kind(sqlite_server: ServerProcess) -> None:
    """Public, private, presence and cache channels work, and mutations never reach this client."""
    room, private, cache = unique(), unique("private-room"), unique("cache-room")
    presence = unique("presence-room")
    ana, bob = {"user_id": "ana", "user_info": {"n": 1}}, {"user_id": "bob", "user_info": {}}
    async with http_sdk(sqlite_server) as http, driver(sqlite_server) as js:
        socket_id = await js.connect("ana", member=ana)
        await js.connect("bob", member=bob)

        # Creates arrive as what they were published as; the versions after them do not.
        assert await js.subscribe("ana", room) == {}
        options = TriggerOptions(info="subscription_count")
        receipt = answer(await http.trigger(room, "chat.message", {"n": 1}, options))
        serial = receipt["channels"][room]["message_serial"]
        answer(await http.update_message(room, serial, MessageMutation(data="edited")))
        answer(await http.append_message(room, serial, "+"))
        answer(await http.delete_message(room, serial))
        excluded = TriggerOptions(socket_id=socket_id)
        answer(await http.trigger(room, "chat.message", "not to ana", excluded))
        answer(await http.trigger(room, "chat.end", "text"))
        await js.told("ana", room, "chat.end")
        assert js.heard("ana", room) == [("chat.message", {"n": 1}), ("chat.end", "text")]

        # Client events both ways, never back to their sender.
        for client in ("ana", "bob"):
            await js.subscribe(client, private)
        js.do("trigger", "ana", channel=private, event="client-typing", data={"on": True})
        await js.told("bob", private, "client-typing")
        js.do("trigger", "bob", channel=private, event="client-done", data="text")
        await js.told("ana", private, "client-done")
        assert js.heard("ana", private) == [("client-done", "text")]
        assert js.heard("bob", private) == [("client-typing", {"on": True})]

        # Presence.
        first = await js.subscribe("ana", presence)
        assert (first["count"], first["members"]) == (1, {"ana": {"n": 1}})
        second = await js.subscribe("bob", presence)
        assert (second["count"], second["me"]) == (2, {"id": "bob", "info": {}})
        added = await js.told("ana", presence, "pusher:member_added")
        assert added["data"] == {"id": "bob", "info": {}}
        js.do("bind", "ana", channel=presence, event="client-hi")
        js.do("trigger", "bob", channel=presence, event="client-hi", data="text")
        said = await js.until(lambda line: line.get("bound") == "client-hi")
        assert (said["data"], said["user_id"]) == ("text", "bob")
        js.do("unsubscribe", "bob", channel=presence)
        removed = await js.told("ana", presence, "pusher:member_removed")
        assert removed["data"]["id"] == "bob"

        # A cache: nothing yet, then the last event for whoever comes late.
        await js.subscribe("ana", cache)
        await js.told("ana", cache, "pusher:cache_miss")
        answer(await http.trigger(cache, "price", {"eur": 1}))
        answer(await http.trigger(cache, "price", {"eur": 2}))
        await js.subscribe("bob", cache)
        await js.told("bob", cache, "price")
        assert js.heard("bob", cache) == [("price", {"eur": 2})]

        # Who has unsubscribed or gone is told nothing and counted no more.
        js.do("unsubscribe", "ana", channel=room)
        js.do("disconnect", "bob")
        occupied = {room}
        while occupied & {room, private}:
            listed = answer(await http.list_channels(ChannelsParams()))["channels"]
            occupied = {room} & set(listed)
        answer(await http.trigger(room, "chat.message", "too late"))
        answer(await http.trigger(private, "chat.message", "text"))
        await js.told("ana", private, "chat.message")
        assert len(js.heard("ana", room)) == 2
        assert js.heard("bob", private) == [("client-typing", {"on": True})]


async def test_signin_and_refusals(sqlite_server: ServerProcess) -> None:
    """A signed-in client gets its user's events; a refusal comes with the contract's code."""
    ana = unique("ana")
    async with http_sdk(sqlite_server) as http, driver(sqlite_server) as js:
        await js.connect("ana", user={"id": ana})
        js.do("signin", "ana")
        while not any(line.get("to_user") == "hello" for line in js.lines):
            answer(await http.send_to_user(ana, "hello", {"n": 1}))
            await asyncio.sleep(0.02)
        said = await js.until(lambda line: line.get("to_user") == "hello")
        assert said["data"] == {"n": 1}

        # A forged signature: refused, but the connection goes on.
        await js.connect("eve", wrong=True, user={"id": "eve"})
        private, room = unique("private-room"), unique()
        js.do("subscribe", "eve", channel=private)
        refused = await js.told("eve", private, "pusher:subscription_error")
        assert (refused["data"]["type"], refused["data"]["status"]) == ("AuthError", 401)
        await js.subscribe("eve", room)
        answer(await http.trigger(private, "secret", "text"))
        answer(await http.trigger(room, "open", "text"))
        await js.told("eve", room, "open")
        assert [event for event, _ in js.heard("eve", private)] == ["pusher:subscription_error"]
        after = len(js.lines)
        js.do("signin", "eve")
        refusal = await js.until(lambda line: "error" in line, after)
        assert refusal["error"]["data"]["code"] == 4009
        after = len(js.lines)
        js.do("trigger", "eve", channel=room, event="client-x", data="x")
        refusal = await js.until(lambda line: "error" in line, after)
        assert refusal["error"]["data"]["code"] == 4301

        # An unknown app: closed with 4001, and the client does not try again.
        js.do("connect", "stray", app_key="unknown")
        refusal = await js.until(lambda line: line["client"] == "stray" and "error" in line)
        assert refusal["error"]["error"]["data"]["code"] == 4001
        await js.state("stray", "disconnected")

        # Sent away: force_reconnect comes back and signs in again, terminate does not.
        after = len(js.lines)
        answer(await http.force_reconnect_user(ana))
        await js.state("ana", "connected", after)
        after = len(js.lines)
        while not any(line.get("to_user") == "again" for line in js.lines):
            answer(await http.send_to_user(ana, "again", "text"))
            await asyncio.sleep(0.02)
        answer(await http.terminate_user_connections(ana))
        await js.state("ana", "disconnected", after)


async def test_a_restart_is_survived(sqlite_server: ServerProcess) -> None:
    """Clients come back to a killed and restarted server and are subscribed again by themselves."""
    room, presence = unique(), unique("presence-room")
    ana, bob = {"user_id": "ana", "user_info": {}}, {"user_id": "bob", "user_info": {}}
    async with (
        http_sdk(sqlite_server) as http,
        Balancer(sqlite_server.port) as balancer,
        driver(balancer) as js,
    ):
        for client, member in (("ana", ana), ("bob", bob)):
            await js.connect(client, member=member)
            await js.subscribe(client, room)
            await js.subscribe(client, presence)
        answer(await http.trigger(room, "chat.message", "before"))
        await asyncio.to_thread(sqlite_server.kill)
        after = len(js.lines)
        await asyncio.to_thread(sqlite_server.start)
        for client in ("ana", "bob"):
            for channel in (room, presence):
                await js.told(client, channel, "pusher:subscription_succeeded", after)
        answer(await http.trigger(room, "chat.message", "after"))
        for client in ("ana", "bob"):
            await js.told(client, room, "chat.message", after)
            assert js.heard(client, room) == [
                ("chat.message", "before"),
                ("chat.message", "after"),
            ]
        users = answer(await http.get_channel_users(presence))["users"]
        assert sorted(user["id"] for user in users) == ["ana", "bob"]
        mark = len(js.lines)
        js.do("members", "ana", channel=presence)
        assert (await js.told("ana", presence, "members", mark))["data"]["count"] == 2
