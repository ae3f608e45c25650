"""One run of a hook: a process in a group of its own, with bounded time, input and output."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from tidelog.daemon.hooks.process_group import HookGroup

MAX_INPUT_BYTES = 256 * 1024
MAX_OUTPUT_BYTES = 64 * 1024
"""Of standard output and standard error together; what is more is read and thrown away, so that a
hook that talks too much does not stand still."""

TERMINATION_S = 5.0
"""Between SIGTERM and SIGKILL."""

LEFTOVER_S = 1.0
"""How long the output of a hook that has ended is still read, if a process that it left behind has
it; then, or when the output is closed, whatever is left in its group is killed."""

PATH = "/usr/bin:/bin"

Status = Literal["ok", "failed", "timed_out", "not_started"]


class Result(Struct, frozen=True, kw_only=True):
    """What became of a run."""

    status: Status
    pid: int | None = None
    exit_code: int | None = None
    """Negative: the signal that ended it."""
    output: str = ""
    is_output_truncated: bool = False
    duration_ms: int = 0


def encode_input(fields: Mapping[str, object]) -> bytes:
    """What a hook reads: JSON that fits, with `_truncated` if something was left out for that."""
    given = dict(fields)
    text = msgspec.json.encode(given)
    if len(text) <= MAX_INPUT_BYTES:
        return text
    given["_truncated"] = True
    body = str(given.get("body", ""))
    while len(text) > MAX_INPUT_BYTES and body:
        body = body[: len(body) // 2]
        given["body"] = body
        text = msgspec.json.encode(given)
    if len(text) > MAX_INPUT_BYTES:
        given["meta"] = None
        text = msgspec.json.encode(given)
    return text


async def run(
    script: Path,
    environment: Mapping[str, str],
    data: bytes,
    timeout_s: float,
    *,
    termination_s: float = TERMINATION_S,
) -> Result:
    """Run a script to its end, or end it; one that is cancelled is ended too, in the same way."""
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    try:
        group = HookGroup()
    except OSError as error:
        return _not_started(script, error)
    with group:
        try:
            transport, watch = await loop.subprocess_exec(
                lambda: _Watch(loop),
                str(script),
                env={"PATH": PATH, **environment},
                cwd=str(script.parent),
                stderr=asyncio.subprocess.STDOUT,
                process_group=group.number,
            )
        except OSError as error:
            return _not_started(script, error)
        with contextlib.closing(transport):
            try:
                _feed(transport, data)
                is_late = await _wait_for_end(group, watch, timeout_s, termination_s)
            finally:
                group.kill()
                await asyncio.wait([watch.exited], timeout=termination_s)
            code = transport.get_returncode()
    return Result(
        status="timed_out" if is_late else "ok" if code == 0 else "failed",
        pid=transport.get_pid(),
        exit_code=code,
        output=watch.output.decode("utf-8", "replace"),
        is_output_truncated=watch.is_truncated,
        duration_ms=int((time.monotonic() - started) * 1000),
    )


def _not_started(script: Path, error: OSError) -> Result:
    return Result(status="not_started", output=f"{script}: {error.strerror}")


async def _wait_for_end(
    group: HookGroup, watch: "_Watch", timeout_s: float, termination_s: float
) -> bool:
    """Wait also for its output; ask one that is late to end. Returns whether it was late."""
    try:
        await asyncio.wait([watch.exited], timeout=timeout_s)
    except asyncio.CancelledError:
        group.terminate()
        await asyncio.wait([watch.exited], timeout=termination_s)
        raise
    is_late = not watch.exited.done()
    if is_late:
        group.terminate()
        await asyncio.wait([watch.exited], timeout=termination_s)
    if watch.exited.done():
        await asyncio.wait([watch.silent], timeout=LEFTOVER_S)
    return is_late


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    """Give it its input; a hook need not read any."""
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)  # noqa: S101 - it was asked for as a pipe
    pipe.write(data)
    pipe.write_eof()


class _Watch(asyncio.SubprocessProtocol):
    """Notes what a process writes, and when it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        """Done when nobody can write to its output any more."""
        self.output = bytearray()
        self.is_truncated = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Some output."""
        del fd
        room = MAX_OUTPUT_BYTES - len(self.output)
        self.is_truncated = self.is_truncated or len(data) > room
        self.output += data[:room]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The end of its output, or of its wish to read."""
        del exc
        if fd == 1 and not self.silent.done():
            self.silent.set_result(None)

    def process_exited(self) -> None:
        """It has ended."""
        if not self.exited.done():
            self.exited.set_result(None)
