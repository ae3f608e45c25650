"""Processes that start with everything imported.

A server of ours spends a second of a processor on its imports before it does anything, and the
suite starts more than a thousand. So one process imports them once and forks a child for each: a
process with its own memory, files and signals, which can be killed, stopped and measured like any
other, and runs the same `main`. What a fork would hide, that a command starts from nothing, is the
matter of `tests/packaging` and of every start with variables of the interpreter, which are read
before anything else.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from tidelog.base import faultpoint
from tidelog.testing.process import Process, spawn

TESTS = str(Path(__file__).parents[1])
PROBED = "support.probe"
"""`tidelog` with the probe, which only these tests have."""
PROGRAMS = ("tidelog", "tidelog.daemon", PROBED)
PRELOADED = (
    "asyncpg",
    "tidelog.channels.surface",
    "tidelog.cli.daemon",
    "tidelog.cli.log",
    "tidelog.cli.main",
    "tidelog.cli.mesh",
    "tidelog.cli.serve",
    "tidelog.cli.sync",
    "tidelog.daemon.__main__",
    "tidelog.daemon.process",
    "tidelog.dashboard.surface",
    "tidelog.mesh.surface",
    "tidelog.store.postgresql",
    "tidelog.store.sqlite",
    "tidelog.sync.surface",
    "support.probe.__main__",
    "tidelog.web.search",
    "tidelog.web.server",
    "tidelog.web.watchdog",
)
REQUEST_BYTES = 1 << 20
FDS = 3
"""What a request brings: standard output, standard error, and where the exit code is told."""


class WarmProcess:
    """What `subprocess.Popen` would be for a child of the forking process, as far as it is used."""

    def __init__(self, pid: int, stdout: IO[str], ended: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        if self.returncode is None:
            readable, _, _ = select.select([self._ended], [], [], timeout)
            if not readable:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            told = os.read(self._ended, 16)
            os.close(self._ended)
            assert told, "the forking process is gone"
            self.returncode = int(told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """The forking process of one run of pytest."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
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

    def _opened(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for side in (self._socket, theirs):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            atexit.register(self.close)
        return self._socket

    def forget(self) -> None:
        """Leave the forking process to the process that this one was forked from."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._process = None

    def close(self) -> None:
        """End the forking process, if there is one; what it forked goes on."""
        if self._socket is None or self._process is None:
            return
        self._socket.close()
        self._process.wait()
        self._socket = self._process = None


def _with_tests(env: Mapping[str, str]) -> str:
    """A `PYTHONPATH` by which the probe is found."""
    return os.pathsep.join(filter(None, (TESTS, env.get("PYTHONPATH", ""))))


def _interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter reads when it starts, such as `PYTHONPATH`."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


NURSERY = Nursery()


# The forking process.


def main() -> None:
    """Import everything, then fork whenever asked, until the asker is gone."""
    asker = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = TESTS  # instead of the folder of this file
    for module in PRELOADED:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()
    ends: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([asker.fileno(), wakes], [], [])
        if wakes in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakes, 4096)
            _tell_ends(ends)
        if asker.fileno() in readable:
            line, fds, _, _ = socket.recv_fds(asker, REQUEST_BYTES, FDS)
            if not line:
                return
            output, errors, ended = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (asker.detach(), wakes, woken, *ends.values(), ended):
                    os.close(fd)
                _become(json.loads(line), output, errors)
            os.close(output)
            os.close(errors)
            ends[pid] = ended
            asker.send(str(pid).encode())


def _tell_ends(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with os.fdopen(ends.pop(pid), "wb") as told, contextlib.suppress(BrokenPipeError):
            told.write(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked: dict[str, Any], output: int, errors: int) -> None:
    """Be the program that was asked for; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        os.environ.clear()
        os.environ.update(asked["env"])
        time.tzset()
        # Read once at the import, which was before.
        faultpoint._armed = faultpoint._parse(os.environ.get(faultpoint.VARIABLE, ""))
        os.chdir(asked["cwd"])
        if asked["is_plain_user"]:
            _drop_capabilities()
        program, *arguments = asked["arguments"]
        if program == PROBED:  # for itself, if it begins again
            os.environ["PYTHONPATH"] = _with_tests(os.environ)
        sys.argv = [program, *arguments]
        # What a server that begins again is started with.
        sys.orig_argv = [sys.executable, "-m", program, *arguments]
        sys.path.insert(0, asked["cwd"])
        code = _exit_code(program)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a child may not go on as its parent


def _drop_capabilities() -> None:
    """Make of this process one that files keep out as their modes say, also if it is root's."""
    version, nothing = 0x20080522, (ctypes.c_uint32 * 6)()  # three sets of two words each
    header = (ctypes.c_uint32 * 2)(version, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _exit_code(program: str) -> int:
    try:
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
