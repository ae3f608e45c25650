"""A supervisor: gives programs a port, starts again what dies, and ends all of them in order.

It does nothing else, so that nothing can go wrong with it: it accepts no connection and opens no
store. Programs are started by exec, never by a fork that goes on, and are killed when their
supervisor is (`parent_death`), so that the next one finds nothing held by them. One that gives no
sign of life any more (`supervised`) is as good as dead, and killed. The port stays open while a
program that serves it is away, and whoever connects meanwhile waits.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from tidelog.base.parent_death import tied
from tidelog.base.supervised import MOST_SAID_BYTES, READY_VARIABLE, SIGN_SECONDS

LISTENER_VARIABLE = "TIDELOG_LISTENER"
"""Number of the port's socket, for whoever serves it; nobody sets it."""

FIRST_PAUSE_SECONDS = 0.1
MOST_PAUSE_SECONDS = 5.0
"""Between the death of a program and its next start, twice as long each time."""

MOST_SILENT_LOOKS = 10
"""A program that has given no sign of life between so many looks, `SIGN_SECONDS` apart, hangs. They
are counted and not timed: a supervisor that did not look, because it or the whole machine stood
still, has not heard anything either."""

SETTLED_SECONDS = 10.0
"""A program that lived for so long died of something new: the pauses begin anew."""

_log = logging.getLogger(__name__)


class Program(NamedTuple):
    """What is to be run."""

    name: str
    """For the log."""
    command: Sequence[str]
    is_given_port: bool = False
    files: Sequence[int] = ()
    """Numbers of open files that it has too, under the same numbers."""


class CouldNotStart(Exception):  # noqa: N818 - the failure is the noun
    """A program ended before it was ready; it has said why."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} could not start ({_ending(code)})")
        self.code = code


class Started(Protocol):
    """What is used of an `asyncio.subprocess.Process`."""

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        ...

    def send_signal(self, signal: int, /) -> None:
        """Send it a signal."""
        ...


async def start(command: Sequence[str], env: Mapping[str, str], files: Sequence[int]) -> Started:
    """Start a command that is killed when this process ends, with these of its open files."""
    return await asyncio.create_subprocess_exec(
        *tied(command, signal.SIGKILL),
        env=env,
        pass_fds=files,
        start_new_session=True,  # Ctrl-C is for the supervisor: it ends them in order
    )


def next_pause(pause: float, lived: float) -> float:
    """How long to wait for the next start of a program that lived for so long.

    `pause` was that before its last start; 0 if there was none.
    """
    if not pause or lived >= SETTLED_SECONDS:
        return FIRST_PAUSE_SECONDS
    return min(2 * pause, MOST_PAUSE_SECONDS)


def _heard(started: "asyncio.Future[list[str]]") -> None:
    """Nobody waits for it any more: what it failed with is no news."""
    if not started.cancelled():
        started.exception()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Supervisor:
    """Runs programs in ranks: each rank begins when the one before it is ready, and ends first."""

    start: ClassVar[Callable[..., Awaitable[Started]]] = staticmethod(start)
    """How a program is started; tests of tidelog itself fork one that has imported everything."""

    def __init__(
        self,
        ranks: Sequence[Sequence[Program]],
        listener: socket.socket,
        *,
        grace_seconds: float,
    ) -> None:
        """Programs of a rank that have not ended `grace_seconds` after SIGTERM are killed."""
        self._ranks = ranks
        self._listener = listener
        self._grace_seconds = grace_seconds
        self._running: list[list[_Kept]] = []
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        """Set when all have started."""
        self.said: dict[str, str] = {}
        """What programs said when they were ready first, by their names."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Begin the orderly end; `run` returns when it is complete.

        Again: programs that were told to end, by SIGTERM, get SIGINT: they wait for nobody.
        """
        if self._stopping.is_set():
            for rank in self._running:
                for kept in rank:
                    kept.hurry()
        self._stopping.set()

    async def run(self) -> None:
        """Keep all running until `stop`, and end them.

        Raises:
            CouldNotStart: the others were ended.
        """
        try:
            for programs in self._ranks:
                rank = [_Kept(program, self._listener) for program in programs]
                self._running.append(rank)
                said = await self._or_stopped(asyncio.gather(*[kept.ready for kept in rank]))
                if said is None or self._stopping.is_set():
                    return
                self.said |= {each.name: text for each, text in zip(programs, said, strict=True)}
            self.ready.set()
            await self._stopping.wait()
        finally:
            for rank in reversed(self._running):
                await asyncio.gather(*[kept.end(self._grace_seconds) for kept in rank])

    async def _or_stopped(self, started: "asyncio.Future[list[str]]") -> list[str] | None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {started, stopping}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return started.result() if started.done() else None
        finally:
            stopping.cancel()
            started.add_done_callback(_heard)
            started.cancel()


class _Kept:
    """One program, from its first start until it is told to end."""

    def __init__(self, program: Program, listener: socket.socket) -> None:
        self._program = program
        self._listener = listener
        self._process: Started | None = None
        self._ending = asyncio.Event()
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep())

    def signal(self, number: int) -> None:
        """To the program, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def hurry(self) -> None:
        """Tell it again, if it was told; not as before, which others may have done too."""
        if self._ending.is_set():
            self.signal(signal.SIGINT)

    async def end(self, grace_seconds: float) -> None:
        """Return when it has ended, by itself or not."""
        self._ending.set()
        self.signal(signal.SIGTERM)
        await asyncio.wait({self._keeping}, timeout=grace_seconds)
        if not self._keeping.done():
            _log.error("%s did not end in time; it is killed", self._program.name)
            self.signal(signal.SIGKILL)
        await asyncio.wait({self._keeping})

    async def _keep(self) -> None:
        loop, pause = asyncio.get_running_loop(), 0.0
        while not self._ending.is_set():
            began = loop.time()
            try:
                code = await self._run()
            except OSError as error:  # no process or no file is left for it
                _log.error("%s cannot be started: %s", self._program.name, error)
                code = 1
            if self._ending.is_set():
                return
            if not self.ready.done():
                self.ready.set_exception(CouldNotStart(self._program.name, code))
                return
            pause = next_pause(pause, loop.time() - began)
            _log.error(
                "%s ended (%s); it is started again in %.1f s",
                self._program.name,
                _ending(code),
                pause,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause)

    async def _run(self) -> int:
        """Start it and wait until it has ended; returns its exit code."""
        said, says = os.pipe()
        os.set_blocking(said, False)
        handed_on = {READY_VARIABLE: says}
        if self._program.is_given_port:
            handed_on[LISTENER_VARIABLE] = self._listener.fileno()
        try:
            process = await Supervisor.start(
                self._program.command,
                {**os.environ, **{name: str(number) for name, number in handed_on.items()}},
                (*handed_on.values(), *self._program.files),
            )
        except BaseException:
            os.close(said)
            raise
        finally:
            os.close(says)
        listening = _Listening(said, self._said_ready, self._hangs)
        try:
            self._process = process
            if self._ending.is_set():  # meanwhile
                self.signal(signal.SIGTERM)
            return await process.wait()
        finally:
            self._process = None
            listening.close()

    def _said_ready(self, text: str) -> None:
        if not self.ready.done():
            self.ready.set_result(text)

    def _hangs(self) -> None:
        if not self._ending.is_set():  # whoever ends it says for how long it may take
            seconds = MOST_SILENT_LOOKS * SIGN_SECONDS
            _log.error("%s hangs, for %.0f s; it is killed", self._program.name, seconds)
            self.signal(signal.SIGKILL)


class _Listening:
    """What a program says: that it is ready, then that it lives. The pipe is closed at the end.

    It is watched from its first sign of life.
    """

    def __init__(self, pipe: int, ready: Callable[[str], None], hangs: Callable[[], None]) -> None:
        self._pipe: int | None = pipe
        self._ready = ready
        self._hangs = hangs
        self._text: bytes | None = b""
        """So far; None when it is complete."""
        self._silent_looks: int | None = None
        """Since its last sign of life; None before the first."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._hear)
        self._timer = self._loop.call_later(SIGN_SECONDS, self._look)

    def _hear(self) -> None:
        """Take what is there."""
        if self._pipe is None:
            return
        try:
            said = os.read(self._pipe, MOST_SAID_BYTES)
        except BlockingIOError:  # nothing, and another has its end
            return
        if not said:
            self._loop.remove_reader(self._pipe)
        elif self._text is None:
            self._silent_looks = 0
        else:
            text, is_complete, signs = (self._text + said).partition(b"\n")
            self._text = text
            if is_complete:
                self._text = None
                self._ready(text[1:].decode())
            if signs:
                self._silent_looks = 0

    def _look(self) -> None:
        self._timer = self._loop.call_later(SIGN_SECONDS, self._look)
        if self._silent_looks is not None:
            self._silent_looks += 1
            if self._silent_looks > MOST_SILENT_LOOKS:
                self._silent_looks = None
                self._hangs()

    def close(self) -> None:
        """Take what the program has said before it ended, and listen no more."""
        self._hear()
        self._timer.cancel()
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None
