"""Every server of a run in several processes: what `TIDELOG_TEST_WORKERS=3` makes of one.

Tests start, kill and wait for one process, and that is the supervisor then. As on a machine that
loses its power, whoever kills it kills all of its processes, and where a test lets a fault point
kill the server, all of them die before anyone can see that the one that has reached it is gone.
"""

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from support.serve.settings_file import text_of
from support.warm import NURSERY
from support.web.balancer import Balancer
from tidelog.base.faultpoint import VARIABLE as FAULTS_VARIABLE
from tidelog.config.settings import Settings
from tidelog.testing.process import Process, ServerProcess

VARIABLE = "TIDELOG_TEST_WORKERS"
"""How many fronts the servers of this run have; none: each is one process."""

NODES_VARIABLE = "TIDELOG_TEST_NODES"
"""How many of them are on each log of PostgreSQL, with clients spread over them at random."""

LOOK_SECONDS = 0.02
_DIED = re.compile(rb" ended \((signal|exit code) (\d+)\)")


def count() -> int:
    """How many fronts servers have; 0 if they are one process."""
    return int(os.environ.get(VARIABLE, "0"))


def nodes() -> int:
    """How many servers are on a log of PostgreSQL."""
    return int(os.environ.get(NODES_VARIABLE, "1"))


class Kept(NamedTuple):
    """Servers that go on after whoever asked for them, for the next who asks for the same."""

    settings: str
    servers: list[ServerProcess]


_KEPT: dict[str, Kept] = {}
"""By where their store is."""


@asynccontextmanager
async def served(
    data_dir: Path, store: str, settings: Settings, *, is_kept: bool = False
) -> AsyncIterator[str]:
    """URL of real processes with these settings: what a server in the test's own process would be.

    There is a random front behind every connection, and on PostgreSQL a random node. If `is_kept`,
    they go on until `end_kept`, or until others are to be on that store: their start takes longer
    than most tests.
    """
    text = text_of(settings)
    kept = _KEPT.get(store)
    if kept is not None and not (is_kept and kept.settings == text):
        await asyncio.to_thread(end_kept, store)
        kept = None
    servers = await _started(data_dir, store, text) if kept is None else kept.servers
    if is_kept:
        _KEPT[store] = Kept(text, servers)
    async with AsyncExitStack() as stack:
        if not is_kept:
            for server in servers:
                stack.enter_context(server)
        if len(servers) == 1:
            yield servers[0].url
        else:
            balancer = await stack.enter_async_context(Balancer(*[each.port for each in servers]))
            yield f"http://127.0.0.1:{balancer.port}"
        if not is_kept:
            await asyncio.to_thread(_end, servers)


async def _started(data_dir: Path, store: str, settings: str) -> list[ServerProcess]:
    config = data_dir / "settings.toml"
    data_dir.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nobody waits beside it
    config.write_text(settings, encoding="utf-8")
    servers = [
        ServerProcess(
            data_dir=data_dir / f"node-{number}" if number else data_dir,
            store=store or str(data_dir / "tidelog.db"),
            arguments=("--config", str(config)),
        )
        for number in range(nodes() if store.startswith("postgresql://") else 1)
    ]
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        await asyncio.gather(*[asyncio.to_thread(server.start) for server in servers])
        stack.pop_all()
    return servers


def end_kept(store: str | None = None) -> None:
    """End the servers that were kept, only those on that store if one is given."""
    for each in [*_KEPT] if store is None else [store]:
        if each in _KEPT:
            _end(_KEPT.pop(each).servers)


def _end(servers: list[ServerProcess]) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(len(servers)) as ending:
        for server in servers:
            stack.enter_context(server)
        ended = [*ending.map(ServerProcess.terminate, servers)]
        assert set(ended) == {0}, [server.log_text()[-2000:] for server in servers]


def spawner(fronts: int) -> Callable[..., Process]:
    """A `ServerProcess.spawn` that starts servers with so many fronts."""

    def start(
        command: list[str], *, env: Mapping[str, str], stderr: IO[bytes], cwd: str
    ) -> Process:
        if command[3:4] != ["serve"]:
            return NURSERY.start(command, env=env, stderr=stderr, cwd=cwd)
        log = Path(stderr.name)
        began = log.stat().st_size
        workers = [*command, "--workers", str(fronts)]
        faults = env.get(FAULTS_VARIABLE, "")
        env = {**env, FAULTS_VARIABLE: faults.replace("=kill", "=kill-all")}
        process = NURSERY.start(workers, env=env, stderr=stderr, cwd=cwd)
        port = int(command[command.index("--port") + 1])
        return Workers(process, log, began, port, has_faults=bool(faults))

    return start


class _Output(StringIO):
    """Standard output of a server, which ends with this line if it has said nothing."""

    def __init__(self, output: IO[str], instead: str) -> None:
        super().__init__()
        self._output = output
        self._instead = instead

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # as text has it
        """See `IO.readline`."""
        return self._output.readline(size) or self._instead

    def close(self) -> None:
        """See `IO.close`."""
        self._output.close()


class Workers:
    """A supervisor and all that it has started, as one process."""

    def __init__(
        self, supervisor: Process, log: Path, began: int, port: int, *, has_faults: bool
    ) -> None:
        self._supervisor = supervisor
        self._log = log
        self._began = began
        self._has_faults = has_faults
        self.pid = supervisor.pid
        assert supervisor.stdout is not None
        self._output = supervisor.stdout
        # Clients come back when one front is ready, and may reach a fault point before all are. One
        # process would have said that it is ready; the first start, with any port, has no clients.
        served = json.dumps({"url": f"http://127.0.0.1:{port}"}) + "\n"
        self.stdout = _Output(self._output, served if has_faults and port else "")

    def poll(self) -> int | None:
        """See `Process.poll`."""
        code = self._supervisor.poll()
        if code is None and self._has_faults and (died := self._died()) is not None:
            self.send_signal(signal.SIGKILL)
            self._supervisor.wait()
            return died
        return code

    def wait(self, timeout: float | None = None) -> int:
        """See `Process.wait`; returns when all have ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None or not self._have_ended():
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """See `Process.send_signal`; SIGKILL, SIGSTOP and SIGCONT are for all of them."""
        family = self._children()  # before they are somebody else's
        self._supervisor.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def _have_ended(self) -> bool:
        """Whether nobody is left that has the supervisor's standard output, as all of them do."""
        if self._output.closed:
            return True
        readable, _, _ = select.select([self._output], [], [], 0.0)
        return bool(readable) and not os.read(self._output.fileno(), 4096)

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _died(self) -> int | None:
        """How the first of them has ended, as the supervisor says it."""
        with self._log.open("rb") as log:
            log.seek(self._began)
            found = _DIED.search(log.read())
        if found is None:
            return None
        code = int(found[2])
        return -code if found[1] == b"signal" else code
