"""Programs under a supervisor: one port, started again when they die, ended in order with it."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tidelog.base import supervisor as module
from tidelog.base.supervisor import CouldNotStart, Program, Supervisor, next_pause

PROGRAM = """
import os, signal, socket, sys, time
from tidelog.base.supervised import Supervised
from tidelog.base.supervisor import LISTENER_VARIABLE
name, notes, given = sys.argv[1:4]
def note(what):
    with open(notes, "a") as file:
        file.write(f"{name} {what}\\n")
def told(*_):
    if given == "twice":
        signal.signal(signal.SIGINT, lambda *_: (note("told"), note("ended"), os._exit(0)))
    note("told")
    if given in ("", "loop"):
        time.sleep(0.05)
        note("ended")
        os._exit(0)
signal.signal(signal.SIGTERM, told)
note("began")
if given == "fails":
    sys.exit(7)
supervised = Supervised()
if given == "loop":
    import asyncio
    async def main():
        with supervised.living():
            supervised.ready()
            await asyncio.Event().wait()
    asyncio.run(main())
supervised.ready()
if LISTENER_VARIABLE in os.environ:
    listener = socket.socket(fileno=int(os.environ[LISTENER_VARIABLE]))
    while True:
        peer, _ = listener.accept()
        peer.sendall(b"%d" % os.getpid())
        peer.close()
while True:
    signal.pause()
"""

SUPERVISOR = """
import asyncio, socket, sys
from tidelog.base.supervisor import Program, Supervisor
async def main():
    command = [sys.executable, "-c", sys.argv[1]]
    programs = [Program(name, [*command, name, sys.argv[2], ""]) for name in "ab"]
    supervisor = Supervisor([programs], socket.socket(), grace_seconds=60)
    running = asyncio.create_task(supervisor.run())
    await supervisor.ready.wait()
    print("ready", flush=True)
    await running
asyncio.run(main())
"""


class Notes:
    """What the programs of a test have written down, all in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def program(self, name: str, given: str = "", *, is_given_port: bool = False) -> Program:
        """One that writes here."""
        command = (sys.executable, "-c", PROGRAM, name, str(self.path), given)
        return Program(name, command, is_given_port)

    def lines(self) -> list[str]:
        """So far."""
        return self.path.read_text().splitlines()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Nothing yet."""
    return Notes(tmp_path / "notes")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@contextlib.asynccontextmanager
async def running(
    *ranks: list[Program], listener: socket.socket, grace_seconds: float = 60.0
) -> AsyncIterator[Supervisor]:
    """A supervisor whose programs are all ready; stopped and ended afterwards."""
    supervisor = Supervisor(ranks, listener, grace_seconds=grace_seconds)
    async with asyncio.timeout(60):
        task = asyncio.create_task(supervisor.run())
        ready = asyncio.create_task(supervisor.ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield supervisor
        finally:
            ready.cancel()
            if not supervisor.is_stopping:
                supervisor.stop()
            await task


async def answered(listener: socket.socket) -> int:
    """The process that takes the next connection; 0 if it died over that."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        return int(await reader.read() or 0)
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def test_programs_share_a_port_and_the_dead_are_started_again(
    notes: Notes, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else can have the port; while nobody serves it, who connects waits."""
    front = notes.program("front", is_given_port=True)
    async with running([notes.program("owner")], [front], listener=listener):
        first = await answered(listener)
        with pytest.raises(OSError, match="in use") as refused:
            socket.create_server(listener.getsockname())
        assert refused.value.errno == errno.EADDRINUSE
        os.kill(first, signal.SIGKILL)
        while await answered(listener) in (first, 0):
            pass
    assert notes.lines().count("owner began") == 1
    assert "front ended (signal 9); it is started again" in caplog.text


async def test_who_hangs_is_killed_and_started_again(
    notes: Notes,
    listener: socket.socket,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who gives signs of life is left alone, and so is who has never given one."""
    monkeypatch.setattr(module, "MOST_SILENT_LOOKS", 4)
    programs = [notes.program("a", "loop"), notes.program("b", "loop"), notes.program("c")]
    async with running(programs, listener=listener):
        hanging = next(each for each in children() if b"a" in arguments(each))
        os.kill(hanging, signal.SIGSTOP)
        while notes.lines().count("a began") < 2:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)
        assert notes.lines().count("b began") == notes.lines().count("c began") == 1
    assert "a hangs, for 4 s; it is killed" in caplog.text


def children() -> list[int]:
    """Processes that this one has started."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(each) for each in path.read_text().split()]


def arguments(process: int) -> list[bytes]:
    """Of its command."""
    return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")


async def test_ranks_begin_and_end_in_order(notes: Notes, listener: socket.socket) -> None:
    """Fronts begin when the owner is ready; the owner is told when they have ended."""
    fronts = [notes.program("front"), notes.program("front")]
    async with running([notes.program("owner")], fronts, listener=listener):
        pass
    lines = notes.lines()
    assert lines[:3] == ["owner began", "front began", "front began"]
    assert sorted(lines[3:7]) == ["front ended", "front ended", "front told", "front told"]
    assert lines[7:] == ["owner told", "owner ended"]


async def test_a_second_stop_hurries_those_that_were_told_and_no_others(
    notes: Notes, listener: socket.socket
) -> None:
    """The order stays: the owner is told when the fronts have ended."""
    fronts = [notes.program("front", "twice")]
    async with running([notes.program("owner")], fronts, listener=listener) as supervisor:
        supervisor.stop()
        while "front told" not in notes.lines():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        supervisor.stop()
    told = [line for line in notes.lines() if not line.endswith("began")]
    assert told == ["front told", "front told", "front ended", "owner told", "owner ended"]


async def test_who_cannot_start_ends_the_others(notes: Notes, listener: socket.socket) -> None:
    """Rather than being tried for ever: it has said what is wrong."""
    ranks = [[notes.program("owner")], [notes.program("front", "fails")]]
    supervisor = Supervisor(ranks, listener, grace_seconds=60.0)
    with pytest.raises(CouldNotStart, match="front could not start") as raised:
        async with asyncio.timeout(60):
            await supervisor.run()
    assert raised.value.code == 7
    assert notes.lines() == ["owner began", "front began", "owner told", "owner ended"]


async def test_who_does_not_end_is_killed(
    notes: Notes, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """After the grace, and its rank is not waited for by the next for ever."""
    fronts = [notes.program("front", "deaf")]
    with caplog.at_level(logging.ERROR):
        async with running(
            [notes.program("owner")], fronts, listener=listener, grace_seconds=0.5
        ) as supervisor:
            supervisor.stop()
            supervisor.stop()
    assert "front did not end in time; it is killed" in caplog.text


async def test_a_stop_before_all_have_started_ends_those_that_have(
    notes: Notes, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever stops it need not wait for a program that takes long to start."""
    supervisor = Supervisor([[notes.program("owner")]], listener, grace_seconds=60.0)
    async with asyncio.timeout(60):
        task = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0)
        supervisor.stop()
        await task
    del task
    gc.collect()  # what nobody has asked about complains when it goes
    assert not supervisor.ready.is_set()
    assert not caplog.records, "it was told to, and all is well"


async def test_programs_end_when_the_supervisor_is_killed(notes: Notes) -> None:
    """Their output ends when the last of them has."""
    command = [sys.executable, "-c", SUPERVISOR, PROGRAM, str(notes.path)]
    async with asyncio.timeout(60):
        supervisor = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert supervisor.stdout is not None
        assert await supervisor.stdout.readline() == b"ready\n"
        supervisor.kill()
        assert await supervisor.stdout.read() == b""
        await supervisor.wait()
    assert sorted(notes.lines()) == ["a began", "b began"], "without being asked"


def test_pauses_grow_until_a_program_has_lived_for_a_while() -> None:
    """Then the next death is of something new."""
    pause, pauses = 0.0, []
    for _ in range(8):
        pause = next_pause(pause, lived=1.0)
        pauses.append(pause)
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == module.MOST_PAUSE_SECONDS
    assert next_pause(pause, module.SETTLED_SECONDS) == module.FIRST_PAUSE_SECONDS
