"""A streaming replica of a PostgreSQL server, which can fall behind and take its place."""

import asyncio
import os
import pwd
import socket
import subprocess
from pathlib import Path

import asyncpg

from tidelog.testing.postgresql import Postgresql

SECONDS = 30.0


class Copied(Postgresql):
    """A server on a copy of the data of one that has ended: to make new data takes a second."""

    def __init__(self, ended: Postgresql, home: Path) -> None:
        home.chmod(0o755)
        self._binaries, self._user = ended._binaries, ended._user
        self._data = home / "data"
        self._log = home / "server.log"
        subprocess.run(["cp", "-a", ended._data, self._data], check=True)
        self.port = _free_port()
        self._process = None
        self.start()


class Replica(Postgresql):
    """A running standby of `primary`, with all that the primary had when it was made."""

    _ready = "database system is ready to accept read-only connections"

    def __init__(self, primary: Postgresql, home: Path) -> None:
        home.chmod(0o755)
        self._primary = primary
        self._binaries, self._user = primary._binaries, primary._user
        self._data = home / "data"
        self._data.mkdir(mode=0o700)
        self._log = home / "server.log"
        if self._user:
            user = pwd.getpwnam(self._user)
            os.chown(self._data, user.pw_uid, user.pw_gid)
        place = ("-h", "127.0.0.1", "-p", primary.port, "-U", "tidelog")
        self._run(
            *("pg_basebackup", "-D", self._data, "-R", "-X", "stream", "-c", "fast", "--no-sync"),
            *place,
        )
        self.port = _free_port()
        self._process = None
        self.start()

    async def catch_up(self) -> None:
        """Wait until it has replayed everything that the primary has written."""
        written = await ask(self._primary.url, "SELECT pg_current_wal_lsn()::text")
        query = f"SELECT coalesce(pg_last_wal_replay_lsn() >= '{written}', false)"
        async with asyncio.timeout(SECONDS):
            while not await ask(self.url, query):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.02)

    async def fall_behind(self) -> None:
        """Receive nothing more, while the primary goes on."""
        await ask(self.url, "ALTER SYSTEM SET primary_conninfo = ''")
        await ask(self.url, "SELECT pg_reload_conf()")
        query = "SELECT count(*) = 0 FROM pg_stat_wal_receiver"
        async with asyncio.timeout(SECONDS):
            while not await ask(self.url, query):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.02)

    async def promote(self) -> None:
        """Be a primary from now on."""
        assert await ask(self.url, "SELECT pg_promote()")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ask(url: str, statement: str) -> object:
    """The first value that a statement answers."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
