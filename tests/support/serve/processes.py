"""A server of several real processes, whose fronts a test can tell apart, stop and kill."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.channels.peer import APP
from support.mesh.peer import ADMIN_TOKEN
from support.sync.peer import SECRET, write_model
from support.warm import NURSERY

if TYPE_CHECKING:
    from tidelog.testing.process import Process

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.02


class Processes:
    """A supervisor, an owner and fronts on one SQLite file."""

    def __init__(self, data_dir: Path, fronts: int, **environment: str) -> None:
        """With these variables beside those that the test has."""
        self.data_dir = data_dir
        self._environment = environment
        self.store = str(data_dir / "tidelog.db")
        self._count = fronts
        self._config = data_dir / "tidelog.toml"
        self._supervisor: Process
        self.url = ""

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True)
        self._config.write_text(_settings(self.data_dir), encoding="utf-8")
        self._start("0", {})
        return self

    def _start(self, port: str, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tidelog", "serve", "--json", "--port", port]
        with os.fdopen(2, "wb", closefd=False) as stderr:
            self._supervisor = NURSERY.start(
                [*command, "--config", str(self._config), "--workers", str(self._count)],
                env={**os.environ, **self._environment, **environment},
                stderr=stderr,
                cwd=str(Path.cwd()),
            )
        assert self._supervisor.stdout is not None
        line = self._supervisor.stdout.readline()
        assert line, "it has said why it could not start"
        self.url = json.loads(line)["url"]

    def crash(self, **environment: str) -> None:
        """Kill the supervisor, and with it all; then start again on the same port.

        With further variables, if any are given.
        """
        self._supervisor.send_signal(signal.SIGKILL)
        self._supervisor.wait()
        assert self._supervisor.stdout is not None
        self._supervisor.stdout.close()
        self._start(self.url.rpartition(":")[2], environment)

    @property
    def supervisor(self) -> int:
        """The process that started the others."""
        return self._supervisor.pid

    def __exit__(self, *_: object) -> None:
        self._supervisor.send_signal(signal.SIGTERM)
        assert self._supervisor.wait(WAIT_SECONDS) == 0
        assert self._supervisor.stdout is not None
        self._supervisor.stdout.close()

    @property
    def ws_url(self) -> str:
        """Where sockets are opened."""
        return self.url.replace("http", "ws")

    async def owner(self) -> int:
        """The process that owns the log."""
        [owner] = await self._running("tidelog.serve.owner", 1)
        return owner

    async def fronts(self) -> Sequence[int]:
        """The processes that have connections; all of them, after one was killed too."""
        return await self._running("tidelog.serve.front", self._count)

    async def _running(self, module: str, count: int) -> list[int]:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found := _children(self._supervisor.pid, module)) != count:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
        return found

    @asynccontextmanager
    async def only(self, chosen: int) -> AsyncIterator[None]:
        """Whoever connects within the block gets this front: the others stand still."""
        others = [front for front in await self.fronts() if front != chosen]
        try:
            for front in others:
                await pause(front)
            yield
        finally:
            for front in others:
                os.kill(front, signal.SIGCONT)

    @asynccontextmanager
    async def nothing_is_started(self) -> AsyncIterator[None]:
        """Within the block what dies stays dead: the supervisor stands still."""
        await pause(self._supervisor.pid)
        try:
            yield
        finally:
            os.kill(self._supervisor.pid, signal.SIGCONT)


def has_open(process: int, path: str) -> bool:
    """Whether a process has a file."""
    try:
        return any(str(each.readlink()) == path for each in Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # of a file that it has closed meanwhile
        return True


def is_running(process: int) -> bool:
    """Whether there is such a process, and not only what its parent has yet to hear of it."""
    return state(process) not in ("", "Z", "X")


async def pause(process: int) -> None:
    """Let it stand still; returns when it does."""
    os.kill(process, signal.SIGSTOP)
    async with asyncio.timeout(WAIT_SECONDS):
        while state(process) != "T":  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0)


def kill(process: int) -> None:
    """As by the kernel; returns when it is no more."""
    os.kill(process, signal.SIGKILL)
    until = time.monotonic() + WAIT_SECONDS
    while state(process) not in ("", "Z", "X"):
        assert time.monotonic() < until
        time.sleep(LOOK_SECONDS)


def _children(process: int, module: str) -> list[int]:
    """Those of a process that run this module."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [each for each in map(int, listed.split()) if _is_running(each, module)]


def _is_running(process: int, module: str) -> bool:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        named = Path(f"/proc/{process}/comm").read_text().strip()  # of one that was forked
    except OSError:
        return False
    is_named = module.encode() in words[:4] or named == module.rpartition(".")[2]
    return is_named and is_running(process)  # what has ended keeps the latter name for a while


def state(process: int) -> str:
    """The letter that the kernel shows for it; nothing if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _settings(data_dir: Path) -> str:
    sections: dict[str, dict[str, Any]] = {
        "": {
            "data_dir": str(data_dir),
            "admin_token": ADMIN_TOKEN,
            "log_level": "warning",
            "port": 0,
        },
        "[sync]": {
            "jwt_secret": SECRET,
            "model_file": write_model(data_dir),
            "max_messages_per_second": 100_000,
        },
        # A delivery whose front was killed comes again when its lease has ended.
        "[mesh]": {"lease_ms": 1000, "reaper_interval_ms": 500},
        "[channels.versioned_messages]": {"enabled": True},
        "[channels.connection_recovery]": {"max_buffer_size": 100_000},
        "[limits]": {"send_buffer_messages": 1_000_000},
        "[[apps]]": {"id": APP.id, "key": APP.key, "secret": APP.secret},
    }
    return "".join(
        f"{name}\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
        for name, section in sections.items()
    )
