"""Where the tour happens: a directory, its configuration, the server and the daemons."""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tidelog.base.errors import TidelogError
from tidelog.base.net import direct
from tidelog.base.own_program import own_program
from tidelog.config.settings import DEVELOPMENT_ADMIN_TOKEN
from tidelog.testing.process import ServerProcess

APP_ID = APP_KEY = "demo"
MESH = "harbour"
PARTITION = "home"
DEFAULT_PORT = 8080

MODEL: dict[str, Any] = {
    "model_version": 1,
    "tree_targets": {
        "tasks": {"kind": "tree", "actions": ["treePush", "treeUpdate", "treeMove", "treeDelete"]}
    },
    "schemas": {},
}

_CONFIGURATION = """\
# Made by `tidelog demo`. Serve the same log again: tidelog serve --config {path}
data_dir = "{data_dir}"
port = {port}
dev = true  # the server stays on this machine, and its dashboard asks for no token

[[apps]]
id = "{app}"
key = "{app}"
secret = "{app_secret}"

[channels.versioned_messages]
enabled = true

[sync]
jwt_secret = "{jwt_secret}"
model_file = "{model_file}"

[mesh]
lease_ms = 1000  # what a killed broker had handed out comes again so soon
reaper_interval_ms = 250

[pipeline]
lake = "{lake}"
"""

COMMAND_SECONDS = 60.0


class Stage:
    """Everything the tour starts, and ends again with the block it is used in."""

    def __init__(self, home: Path, port: int = DEFAULT_PORT) -> None:
        """Write the configuration; nothing runs before the block.

        Args:
            home: an empty directory.
            port: of the server; another one is taken if somebody else has it.

        Raises:
            TidelogError: the directory is not empty.
        """
        if home.exists() and any(home.iterdir()):
            raise TidelogError(f"{home} is not empty. Name another with --data-dir.")
        home.mkdir(parents=True, exist_ok=True)
        self.home = home.absolute()
        self.data_dir = self.home / "data"
        self.lake = self.home / "lake"
        self.config = self.home / "tidelog.toml"
        self.report = self.home / "report.html"
        self.app_secret, self.jwt_secret = (secrets.token_urlsafe(32) for _ in range(2))
        model_file = self.home / "model.json"
        model_file.write_text(json.dumps(MODEL), encoding="utf-8")
        port = _free(port)
        self.config.write_text(
            _CONFIGURATION.format(
                path=self.config,
                data_dir=self.data_dir,
                port=port,
                app=APP_ID,
                app_secret=self.app_secret,
                jwt_secret=self.jwt_secret,
                model_file=model_file,
                lake=self.lake,
            ),
            encoding="utf-8",
        )
        self.config.chmod(0o600)
        self.server = ServerProcess(
            data_dir=self.data_dir,
            arguments=("--dev", "--config", str(self.config)),
        )
        self.server.port = port
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self._running.enter_context(self.server)
        try:
            self.server.start()
        except RuntimeError as error:
            raise TidelogError(f"{error} Its log: {self.server.log_path}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        """Of the server, for HTTP."""
        return self.server.url

    @property
    def dashboard(self) -> str:
        """Of the server, for people."""
        return f"{self.url}/dashboard"

    @property
    def socket_url(self) -> str:
        """Of the server, for WebSockets."""
        return f"ws://127.0.0.1:{self.server.port}"

    def start_daemon(self, name: str) -> Path:
        """Start the daemon of a member that has joined; returns its directory."""
        home = self.home / name
        self._running.enter_context(_daemon(home))
        return home

    async def tidelog(self, *arguments: str) -> str:
        """Run a command of ours as anybody would; returns what it printed.

        Raises:
            TidelogError: it failed.
        """
        process = await asyncio.create_subprocess_exec(
            *own_program("tidelog", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env={**os.environ, "TIDELOG_ADMIN_TOKEN": DEVELOPMENT_ADMIN_TOKEN},
        )
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                printed, complained = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise TidelogError(f"`tidelog {arguments[0]}` took too long") from None
        if process.returncode:
            raise TidelogError(complained.decode("utf-8", "replace").strip())
        return printed.decode("utf-8", "replace").strip()

    async def ask(self, path: str) -> Any:
        """What the server returns to its administrator."""
        return await asyncio.to_thread(self._ask, path)

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}{path}", headers={"authorization": f"Bearer {DEVELOPMENT_ADMIN_TOKEN}"}
        )
        with direct.opened(request, 10) as answer:
            return json.load(answer)


def _free(port: int) -> int:
    """This port, or one that nobody has."""
    for wanted in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise TidelogError("this machine has no free port")


@contextmanager
def _daemon(home: Path) -> Iterator[None]:
    with (home / "daemon.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program
            own_program("tidelog.daemon", "--data-dir", str(home)),
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None  # noqa: S101 - asked for
    try:
        if not process.stdout.readline():
            raise TidelogError(f"a daemon did not start; its log is {home / 'daemon.log'}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
