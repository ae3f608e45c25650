"""Two daemons of one mesh, started when somebody wants to see them and ended with the server."""

import asyncio
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.base.errors import TidelogError
from tidelog.base.own_program import own_program
from tidelog.base.parent_death import tied

if TYPE_CHECKING:
    from tidelog.client import MeshClient

MESH = "playground"
MEMBERS = ("ada", "bo")
"""Whom the page knows; their names in the mesh end in something random, since a member that a
killed server left there keeps its name."""
START_SECONDS = 60.0
SHOWN = 20
"""Messages of an inbox that are shown."""


class Daemons:
    """Starts them once, and asks them as any program on the machine would."""

    def __init__(self, admin_token: str) -> None:
        self._admin_token = admin_token
        self._starting = asyncio.Lock()
        self._directories: dict[str, Path] = {}
        ending = secrets.token_hex(2)
        self._names = {member: f"{member}-{ending}" for member in MEMBERS}

    async def start(self, url: str) -> None:
        """Start both, if they do not run yet.

        Raises:
            TidelogError: one did not start; the text says why.
        """
        async with self._starting:
            if not self._directories:
                await self._command("mesh", "create", MESH, "--url", url, may_fail=True)
                started = await asyncio.gather(*(self._start(member, url) for member in MEMBERS))
                self._directories = dict(zip(MEMBERS, started, strict=True))

    async def _start(self, member: str, url: str) -> Path:
        invite = await self._command("mesh", "invite", MESH, "--url", url)
        name = self._names[member]
        directory = Path(tempfile.mkdtemp(prefix="tidelog-")) / name
        daemon = own_program("tidelog.daemon", "--ephemeral", "--name", name)
        process = await asyncio.create_subprocess_exec(
            *tied([*daemon, "--data-dir", str(directory), "--log-level", "warning"]),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TIDELOG_INVITE": invite},
        )
        assert process.stdout is not None  # noqa: S101 - asked for
        async with asyncio.timeout(START_SECONDS):
            if not await process.stdout.readline():
                raise TidelogError(f"the daemon {name} did not start; the server's log says why")
        return directory

    async def _command(self, *arguments: str, may_fail: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            *own_program("tidelog", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TIDELOG_ADMIN_TOKEN": self._admin_token},
        )
        printed, complained = await process.communicate()
        if process.returncode and not may_fail:
            raise TidelogError(complained.decode("utf-8", "replace").strip())
        return printed.decode("utf-8", "replace").strip()

    async def send(self, sender: str, text: str) -> dict[str, Any]:
        """Give a daemon a message for the other one; returns its outbox row.

        Raises:
            TidelogError: it did not take it.
        """
        client = _client(self._directory(sender))
        [receiver] = [name for member, name in self._names.items() if member != sender]
        sent = await client.send(f"dm:{receiver}", text)
        return await client.outcome(sent.client_message_id)

    async def shown(self) -> dict[str, Any]:
        """What both know: whether they are connected, what waits and what has arrived."""
        return {
            member: await self._shown_of(member, directory)
            for member, directory in self._directories.items()
        }

    async def _shown_of(self, member: str, directory: Path) -> dict[str, Any]:
        client = _client(directory)
        health = await client.health()
        received = await client.received(limit=SHOWN)
        return {
            "name": self._names[member],
            "directory": str(directory),
            "connected": health["connected"],
            "waiting": health["queue_depth"],
            "inbox": [message.body for message in received],
        }

    def _directory(self, name: str) -> Path:
        directory = self._directories.get(name)
        if directory is None:
            raise TidelogError("the daemons do not run yet. Press Start first.")
        return directory


def _client(directory: Path) -> "MeshClient":
    from tidelog.client import MeshClient  # when it is used, as with answers

    return MeshClient(directory)
