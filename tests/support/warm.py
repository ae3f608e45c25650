"""Processes that start with everything imported.

A server of ours spends a second of a processor on its imports before it does anything, and the
suite starts more than a thousand. So one process imports them once and forks a child for each: a
process with its own memory, files and signals, which can be killed, stopped and measured like any
other, and runs the same `main`. The programs of a server of several processes are forks of their
supervisor. What a fork would hide, that a command starts from nothing, is the matter of
`tests/packaging`, of `test_workers_command` and of every start with variables of the interpreter,
which are read before anything else. A shell gets such processes by the command in
`Nursery.commands`.
"""

import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from tidelog.base import faultpoint
from tidelog.base.supervisor import Supervisor
from tidelog.testing.process import Process, spawn

TESTS = str(Path(__file__).parents[1])
PROBED = "support.probe"
"""`tidelog` with the probe, which only these tests have."""
PROGRAMS = ("tidelog", "tidelog.daemon", PROBED)
PRELOADED = (
    "asyncpg",
    "encodings.idna",
    "pydantic.main",
    "pydantic.type_adapter",
    "rich.console",
    "rich.progress",
    "rich.table",
    "tidelog.channels.surface",
    "tidelog.cli.daemon",
    "tidelog.cli.log",
    "tidelog.cli.commands",
    "tidelog.cli.main",
    "tidelog.cli.mesh",
    "tidelog.cli.serving",
    "tidelog.cli.sync",
    "tidelog.client.mesh.blocking",
    "tidelog.daemon.__main__",
    "tidelog.daemon.process",
    "tidelog.dashboard.surface",
    "tidelog.mesh.surface",
    "tidelog.store.postgresql",
    "tidelog.store.sqlite",
    "tidelog.sync.surface",
    "support.probe.__main__",
    "tidelog.serve.front",
    "tidelog.serve.owner",
    "tidelog.serve.server",
    "tidelog.serve.workers",
    "tidelog.web.logs",
    "tidelog.web.search",
    "tidelog.web.watchdog",
    "typer._adapters",
    "uvloop",
    "zoneinfo",
)
_PR_SET_PDEATHSIG = 1
"""From Linux's `prctl.h`, as `tidelog.base.parent_death` has it."""
REQUEST_BYTES = 1 << 20
FDS = 3
"""What a request brings: standard output, standard error, and where the exit code is told; that of
a shell, its three streams."""
SHELL_COMMAND = Path(__file__).with_name("warm_command.py")


class WarmProcess:
    """What `subprocess.Popen` would be for a child of the forking process, as far as it is used."""

    def __init__(self, pid: int, stdout: IO[str], ended: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended
        self._waiting = threading.Lock()
        """One thread at a time reads the exit code: it is there once, then its pipe is closed."""

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        try:
            if self.returncode is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                readable, _, _ = select.select([self._ended], [], [], left)
                if not readable:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                told = os.read(self._ended, 16)
                os.close(self._ended)
                assert told, "the forking process is gone"
                self.returncode = int(told)
            return self.returncode
        finally:
            self._waiting.release()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end is told a moment later
                os.kill(self.pid, number)


class Nursery:
    """The forking process of one run of pytest."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._turn = threading.Lock()
        """Tests start several at once; the next number is that of the one that was asked for."""

    def start(
        self,
        command: list[str],
        *,
        env: Mapping[str, str],
        stderr: IO[bytes],
        cwd: str,
        is_plain_user: bool = False,
    ) -> Process:
        """Start a command of ours with a pipe for its standard output.

        Args:
            command: what is run.
            env: its whole environment.
            stderr: gets its standard error.
            cwd: where it runs.
            is_plain_user: whether files keep out whoever their modes keep out, root too.
        """
        executable, *arguments = command
        is_ours = executable == sys.executable and arguments[:1] == ["-m"]
        is_plain = _interpreter(env) == _interpreter(os.environ)
        if not is_plain or not is_ours or arguments[1] not in PROGRAMS:
            assert not is_plain_user
            if arguments[:2] == ["-m", PROBED]:
                env = {**env, "PYTHONPATH": _with_tests(env)}
            return spawn(command, env=env, stderr=stderr, cwd=cwd)
        asked = {
            "arguments": arguments[1:],
            "env": dict(env),
            "cwd": cwd,
            "is_plain_user": is_plain_user,
        }
        output, child_output = os.pipe()
        ended, child_ended = os.pipe()
        line = json.dumps(asked).encode()
        assert len(line) < REQUEST_BYTES
        with self._turn:
            nursery = self._opened()
            socket.send_fds(nursery, [line], [child_output, stderr.fileno(), child_ended])
            pid = int(nursery.recv(16))
        os.close(child_output)
        os.close(child_ended)
        return WarmProcess(pid, TextIOWrapper(os.fdopen(output, "rb")), ended)

    def commands(self) -> Path:
        """A folder for a shell's `PATH`: its `tidelog` is a child of the forking process."""
        with self._turn:
            self._opened()
        assert self._home is not None
        return self._home

    def _opened(self) -> socket.socket:
        if self._socket is None:
            self._home = Path(tempfile.mkdtemp(prefix="tdl-"))
            about = {"python": sys.executable, "variables": _interpreter(os.environ)}
            (self._home / "interpreter.json").write_text(json.dumps(about), encoding="utf-8")
            program = self._home / "tidelog"
            text = SHELL_COMMAND.read_text(encoding="utf-8")
            program.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
            program.chmod(0o755)
            shells = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            shells.bind(str(self._home / "socket"))
            shells.listen()
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for side in (self._socket, theirs):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
            fds = [theirs.fileno(), shells.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, __file__, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            shells.close()
            atexit.register(self.close)
        return self._socket

    def forget(self) -> None:
        """Leave the forking process to the process that this one was forked from."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._process = self._home = None

    def close(self) -> None:
        """End the forking process, if there is one; what it forked goes on."""
        if self._socket is None or self._process is None:
            return
        self._socket.close()
        self._process.wait()
        assert self._home is not None
        shutil.rmtree(self._home)
        self._socket = self._process = self._home = None


def _with_tests(env: Mapping[str, str]) -> str:
    """A `PYTHONPATH` by which the probe is found."""
    return os.pathsep.join(filter(None, (TESTS, env.get("PYTHONPATH", ""))))


def _interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter reads when it starts, such as `PYTHONPATH`."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


NURSERY = Nursery()


# The forking process.


class _Children:
    """What was forked and has not ended, and who is told of its end."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}
        """By child: where its exit code is written to."""
        self.shells: dict[int, int] = {}
        """By a connection of a shell's command: its child."""

    def forget(self) -> None:
        """In a child: these are its parent's."""
        for fd in self._told.values():
            os.close(fd)

    def add(self, pid: int, told: int, *, is_shell: bool = False) -> None:
        """A child, and where its exit code is to be written."""
        self._told[pid] = told
        if is_shell:
            self.shells[told] = pid

    def left(self, connection: int) -> None:
        """A shell's command was killed: so is its child, as the one process that they stand for."""
        os.kill(self.shells.pop(connection), signal.SIGKILL)

    def tell_ends(self) -> None:
        """Write the exit code of each that has ended."""
        while self._told:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            told = self._told.pop(pid)
            self.shells.pop(told, None)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(told)


def preload() -> None:
    """Import everything."""
    for module in PRELOADED:
        importlib.import_module(module)
    importlib.import_module("support.store.array_types").remember()


def main() -> None:
    """Import everything, then fork whenever asked, until the asker is gone."""
    asker, shells = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
    sys.path[0] = TESTS  # instead of the folder of this file
    preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()
    children = _Children()

    def fork(asked: bytes, streams: tuple[int | None, int, int], own: list[int]) -> int:
        """A child that is what was asked for; it does without what is only its parent's."""
        if pid := os.fork():
            for fd in filter(None, streams):
                os.close(fd)
            return pid
        signal.set_wakeup_fd(-1)
        children.forget()
        for fd in (asker.detach(), shells.detach(), wakes, woken, *own):
            os.close(fd)
        _become(json.loads(asked), *streams)
        raise AssertionError

    while True:
        awaited = [asker.fileno(), shells.fileno(), wakes, *children.shells]
        readable, _, _ = select.select(awaited, [], [])
        if wakes in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakes, 4096)
            children.tell_ends()
        for connection in set(readable) & children.shells.keys():
            children.left(connection)
        if asker.fileno() in readable:
            line, fds, _, _ = socket.recv_fds(asker, REQUEST_BYTES, FDS)
            if not line:
                return
            output, errors, ended = fds
            pid = fork(line, (None, output, errors), [ended])
            children.add(pid, ended)
            asker.send(str(pid).encode())
        if shells.fileno() in readable:
            shell, _ = shells.accept()
            line, fds, _, _ = socket.recv_fds(shell, REQUEST_BYTES, FDS)
            if not line:  # it was killed before it asked
                shell.close()
                continue
            standard, output, errors = fds
            pid = fork(line, (standard, output, errors), [shell.fileno()])
            with contextlib.suppress(BrokenPipeError):
                shell.send(str(pid).encode())
            children.add(pid, shell.detach(), is_shell=True)


def _become(asked: dict[str, Any], standard: int | None, output: int, errors: int) -> None:
    """Be the program that was asked for; never returns."""
    code = 1
    try:
        if asked.get("is_interrupted", True):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate((standard, output, errors)):
            if stream is not None:
                os.dup2(stream, number)
                os.close(stream)
        os.environ.clear()
        os.environ.update(asked["env"])
        time.tzset()
        # Read once at the import, which was before.
        faultpoint._armed = faultpoint._parse(os.environ.get(faultpoint.VARIABLE, ""))
        os.chdir(asked["cwd"])
        if asked.get("is_plain_user"):
            _drop_capabilities()
        program, *arguments = asked["arguments"]
        if program == PROBED:  # for itself, if it begins again
            os.environ["PYTHONPATH"] = _with_tests(os.environ)
        sys.argv = [program, *arguments]
        # What a server that begins again is started with.
        sys.orig_argv = [sys.executable, "-m", program, *arguments]
        if not asked.get("is_script"):
            sys.path.insert(0, asked["cwd"])
        Supervisor.start = staticmethod(_fork_program)
        code = _exit_code(program)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a child may not go on as its parent


class _Forked:
    """What a supervisor has of a program that it has forked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._ended)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self._pid, 0)
        self._code.set_result(os.waitstatus_to_exitcode(status))

    async def wait(self) -> int:
        """See `Started.wait`."""
        return await asyncio.shield(self._code)

    def send_signal(self, number: int, /) -> None:
        """See `Started.send_signal`."""
        if not self._code.done():  # else the number may be somebody else's
            os.kill(self._pid, number)


async def _fork_program(
    command: Sequence[str], env: Mapping[str, str], files: Sequence[int]
) -> _Forked:
    """A program of a server of several processes, as a fork of its supervisor.

    All that this has done is to read settings and to begin a loop, of which nothing is used in the
    fork: its files are closed, and its objects stay where they are.
    """
    supervisor = os.getpid()
    if pid := os.fork():
        return _Forked(pid)
    _be_program(supervisor, command, env, files)
    raise AssertionError


def _be_program(
    supervisor: int, command: Sequence[str], env: Mapping[str, str], files: Sequence[int]
) -> None:
    """In the fork: be what the command runs; never returns."""
    [module, *arguments] = command[command.index("-m") + 1 :]
    code = 1
    try:
        gc.freeze()  # what it does not need any more may not close files that are others' by now
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(None)
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != supervisor:
            os._exit(0)
        Path("/proc/self/comm").write_text(module.rpartition(".")[2], encoding="ascii")
        kept = {0, 1, 2, *files}
        for each in sorted({*map(int, os.listdir("/proc/self/fd"))} - kept):  # noqa: PTH208
            with contextlib.suppress(OSError):
                os.close(each)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [module, *arguments]
        sys.orig_argv = [*command]
        code = contextvars.Context().run(_exit_code, module)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _drop_capabilities() -> None:
    """Make of this process one that files keep out as their modes say, also if it is root's."""
    version, nothing = 0x20080522, (ctypes.c_uint32 * 6)()  # three sets of two words each
    header = (ctypes.c_uint32 * 2)(version, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _exit_code(program: str) -> int:
    try:
        with warnings.catch_warnings():
            # That it was imported before it is run: that is the point.
            warnings.simplefilter("ignore", RuntimeWarning)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    except BaseException:  # noqa: BLE001 - what the interpreter itself would do
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    main()
