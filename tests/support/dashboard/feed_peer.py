"""The dashboard on a server in the test's own process, and a peer that follows its feed."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from support.probe.server import running_server
from tidelog.cli.serving import _surfaces
from tidelog.config.settings import Settings
from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Names, View
from tidelog.log.draft import Draft
from tidelog.log.request import submit_and_wait
from tidelog.serve.server import Server

WAIT_SECONDS = 60.0
TOKEN = "the admin token of these tests"

Json = dict[str, Any]


class Write:
    """Appends what it is given: entries of any surface, without that surface's rules."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._drafts = tuple(drafts)

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(None, entries=self._drafts)


async def write(committer: Committer, *drafts: Draft) -> None:
    """Commit entries."""
    streams = tuple({draft.stream for draft in drafts})
    await submit_and_wait(committer, Names(streams=streams), 100 * len(drafts), (Write(drafts),))


def draft(stream: str = "sync", kind: str = "treePush", actor: str = "ana") -> Draft:
    """An entry whose content nobody reads."""
    return Draft(stream, stream.partition("/")[0], kind, "entity", "", actor, b"{}")


class Desk:
    """A server with its dashboard, and a browser's cookies."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http

    async def write(self, *drafts: Draft) -> None:
        """Commit entries."""
        await write(self.server.committer, *drafts)

    async def log_in(self, token: str = TOKEN) -> httpx.Response:
        """Post the login form."""
        return await self.http.post("/dashboard/login", data={"token": token})

    async def get(self, path: str, **parameters: object) -> Any:
        """A JSON answer of the API."""
        given = {name: str(value) for name, value in parameters.items()}
        answer = await self.http.get(f"/dashboard/api/{path}", params=given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def feed(self, **headers: str) -> AsyncIterator["FeedPeer"]:
        """A followed feed; `Origin` is right unless it is given."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        given = {"origin": self.server.url, **({"cookie": cookies} if cookies else {}), **headers}
        url = self.server.url.replace("http", "ws") + "/dashboard/feed"
        wanted = {name: value for name, value in given.items() if value}
        async with connect(url, additional_headers=wanted, max_size=None) as socket:
            yield FeedPeer(socket)


class FeedPeer:
    """One open page, as far as the feed is concerned."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, kind: str, **fields: Any) -> None:
        """Tell the server something."""
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def heard(self, kind: str) -> Json:
        """The next message of a kind; others are passed over."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                message: Json = json.loads(await self.socket.recv())
                if message["type"] == kind:
                    return message

    async def ended(self) -> int:
        """Wait for the end of the conversation; returns the code that the server gave."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.socket.wait_closed()
        return self.socket.close_code or 0

    async def entries(self, count: int) -> list[Json]:
        """So many listed entries, in the order they came."""
        found: list[Json] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found) < count:
                found += (await self.heard("entries"))["entries"]
        return found


@asynccontextmanager
async def desk(data_dir: Path, *, store: str = "", **settings: Any) -> AsyncIterator[Desk]:
    """A whole server as `tidelog serve` mounts it; under `dev` unless settings are given."""
    given = Settings(data_dir=str(data_dir), store=store, **(settings or {"dev": True}))
    mounts, extensions = _surfaces(given)
    async with (
        running_server(
            data_dir, store=store, settings=given, mounts=mounts, extensions=extensions
        ) as server,
        # No certificates: there is no TLS here, and loading them takes longer than most tests.
        httpx.AsyncClient(base_url=server.url, verify=False, timeout=WAIT_SECONDS) as http,
    ):
        yield Desk(server, http)
