"""A sync server and somebody who knows its admin token."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from support.sync.peer import ADMIN_TOKEN, SyncNode, sync_server


class Admin:
    """Who knows the admin token."""

    def __init__(self, node: SyncNode, http: httpx.AsyncClient) -> None:
        self.node = node
        self.http = http

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of an admin call."""
        answer = await self.http.request(
            method,
            f"/sync/admin/{path}",
            content=None if body is None else json.dumps(body),
            headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
        )
        return answer.status_code, answer.json()

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Body of an admin call that succeeds."""
        status, answer = await self.call(method, path, body)
        assert status == 200, answer
        return answer

    async def snapshot(self, partition: str) -> int:
        """Let the server store its state of a partition; returns the position."""
        answer = await self.ok("PUT", "snapshot", {"partition": partition})
        assert answer["partition"] == partition
        return int(answer["committed_id"])

    async def retain(self, through: int) -> int:
        """Archive up to a position; returns how many events."""
        return int((await self.ok("POST", "retention", {"through": through}))["archived"])

    async def state(self, partition: str) -> Any:
        """What the server believes a partition's trees are."""
        states = self.node.owner.states
        pinned = await states.pin([partition])
        try:
            return pinned[partition].tree.export()
        finally:
            states.unpin(pinned)


@asynccontextmanager
async def admin(tmp_path: Path, **options: Any) -> AsyncIterator[Admin]:
    """A server and its administrator."""
    async with (
        sync_server(tmp_path, **options) as node,
        httpx.AsyncClient(verify=False, base_url=node.server.url, timeout=60) as http,
    ):
        yield Admin(node, http)
