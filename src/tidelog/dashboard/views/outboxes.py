"""The outboxes of this machine's daemons, as far as the server's user can open their sockets."""

import asyncio
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidelog.base.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.mesh.http import Reply

MAX_DAEMONS = 50
MAX_ROWS = 200

POSSIBLY_LOST = "lost"
"""Asked for like a status: rows that are `done` and that the broker perhaps has lost."""

ASK_SECONDS = 5.0
"""A daemon is a file away; one that takes longer is shown as not answering."""

_WRITTEN = "outbox.db-wal"
"""What a daemon writes to whenever its outbox changes."""


class NoDaemon(TidelogError):  # noqa: N818 - the failure is the noun
    """No daemon of that name answers."""


class OutboxView:
    """Asks daemons through their sockets; it never opens their files.

    The client is imported when somebody looks: a server that nobody looks at starts without it.
    """

    def __init__(self, home: Path | None = None) -> None:
        """`home` holds one directory per daemon; the usual place if it is not given."""
        self._home = home

    def _found_in(self) -> Path:
        from tidelog.client.mesh import daemon_directory

        return self._home or daemon_directory.home()

    def _directories(self) -> dict[str, Path]:
        """The directories of daemons by their names."""
        from tidelog.client.mesh.daemon_directory import KEY_NAME

        try:
            found = sorted(path.parent for path in self._found_in().glob(f"*/{KEY_NAME}"))
        except OSError:
            return {}
        return {path.name: path for path in found[:MAX_DAEMONS]}

    def signature(self) -> Hashable:
        """Changes when a daemon comes, goes, or writes to its outbox."""
        from tidelog.client.mesh.daemon_directory import SOCKET_NAME

        return tuple(
            (name, _changed_at(directory / _WRITTEN), _changed_at(directory / SOCKET_NAME))
            for name, directory in self._directories().items()
        )

    async def daemons(self) -> dict[str, Any]:
        """Every daemon, with its health or why it does not answer."""
        directories = self._directories()
        answers = await asyncio.gather(*(self._health(name) for name in directories))
        return {
            "home": str(self._found_in()),
            "daemons": [
                {"name": name, **answer} for name, answer in zip(directories, answers, strict=True)
            ],
        }

    async def _health(self, name: str) -> dict[str, Any]:
        try:
            reply = await self._ask(name, "GET", "/v1/health")
        except NoDaemon as error:
            return {"error": str(error)}
        return {"health": reply.body}

    async def rows(self, name: str, status: str) -> "Reply":
        """The newest rows of one outbox, of one status or possibly lost if that is wanted."""
        chosen = {"possibly_lost": "true"} if status == POSSIBLY_LOST else {"status": status}
        query = {"limit": str(MAX_ROWS)} | (chosen if status else {})
        return await self._ask(name, "GET", f"/v1/outbox?{urlencode(query)}")

    async def requeue(self, name: str, row_id: str) -> "Reply":
        """Send the content of a row under a fresh id."""
        body = {"id": row_id, "auto": True}
        return await self._ask(name, "POST", "/v1/outbox/requeue", body)

    async def drop(self, name: str, row_id: str) -> "Reply":
        """Give a row up."""
        return await self._ask(name, "POST", "/v1/outbox/drop", {"id": row_id})

    async def _ask(self, name: str, method: str, path: str, body: object = None) -> "Reply":
        """Ask a daemon of the list; a name that is not in it, such as `..`, leads nowhere."""
        from tidelog.client.mesh import daemon_directory
        from tidelog.client.mesh.http import DaemonUnavailable

        directory = self._directories().get(name)
        if directory is None:
            raise NoDaemon("there is no daemon of this name")
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await daemon_directory.endpoint(directory).ask(method, path, body)
        except TimeoutError:
            raise NoDaemon("the daemon does not answer") from None
        except DaemonUnavailable as error:
            raise NoDaemon(str(error)) from error


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
