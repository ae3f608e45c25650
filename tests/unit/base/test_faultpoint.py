"""Fault points: armed by one environment variable, silent without it."""

import errno
import signal
import subprocess
import sys

import pytest

from tidelog.base import faultpoint
from tidelog.base.faultpoint import VARIABLE, FaultPoint, reach


def arm(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """As if the process had been started with the variable set to `text`."""
    monkeypatch.setattr(faultpoint, "_armed", faultpoint._parse(text))


def test_nothing_is_armed_by_default() -> None:
    """Without the variable no point does anything, however often it is passed."""
    assert faultpoint._parse("") == {}
    for point in FaultPoint:
        reach(point)


@pytest.mark.parametrize(
    ("effect", "number"),
    [("enospc", errno.ENOSPC), ("eio", errno.EIO), ("cut", errno.ECONNRESET)],
)
def test_an_effect_fires_at_its_point(
    monkeypatch: pytest.MonkeyPatch, effect: str, number: int
) -> None:
    """The armed point raises its error, once; the others do nothing."""
    arm(monkeypatch, f"store.written={effect}")
    reach(FaultPoint.DECIDED)
    with pytest.raises(OSError, match="injected") as failure:
        reach(FaultPoint.WRITTEN)
    assert failure.value.errno == number
    assert isinstance(failure.value, ConnectionResetError) == (effect == "cut")
    reach(FaultPoint.WRITTEN)


def test_the_nth_pass_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """`@n` lets n-1 passes through, fires on the n-th and never again."""
    arm(monkeypatch, "store.written=enospc@3")
    fired = []
    for number in range(1, 7):
        try:
            reach(FaultPoint.WRITTEN)
        except OSError:
            fired.append(number)
    assert fired == [3]


def test_several_points_are_armed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is separated by commas; each point counts for itself."""
    arm(monkeypatch, "store.written=enospc@2,committer.decided=eio")
    reach(FaultPoint.WRITTEN)
    with pytest.raises(OSError, match="input/output") as first:
        reach(FaultPoint.DECIDED)
    assert first.value.errno == errno.EIO
    with pytest.raises(OSError, match="no space"):
        reach(FaultPoint.WRITTEN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("store.nowhere=kill", "store.nowhere"),
        ("store.written=explode", "unknown effect 'explode'"),
        ("store.written", "unknown effect ''"),
        ("store.written=kill@often", "often"),
        ("=kill", "not a valid FaultPoint"),
    ],
)
def test_a_mistake_is_refused(text: str, message: str) -> None:
    """An unknown point or effect would make a test prove nothing: it is refused."""
    with pytest.raises(ValueError, match=message):
        faultpoint._parse(text)


def run(script: str, faults: str) -> "subprocess.CompletedProcess[str]":
    """A process that was started with the variable set."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={VARIABLE: faults},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_kill_ends_the_process_at_once() -> None:
    """SIGKILL: no handler runs and nothing is flushed."""
    script = (
        "import atexit, sys; from tidelog.base.faultpoint import *\n"
        "atexit.register(print, 'handler'); sys.stdout.write('unflushed')\n"
        "reach(FaultPoint.COMMITTED); reach(FaultPoint.FLUSHING)"
    )
    killed = run(script, "fanout.flushing=kill")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert run(script, "").returncode == 0


SUPERVISED = """
import os, signal, subprocess, sys
from tidelog.base.parent_death import tied
held, holds = os.pipe()
watches = "import os, sys; os.read(int(sys.argv[1]), 1); os.write(1, b'it is gone')"
reaches = "from tidelog.base.faultpoint import *; reach(FaultPoint.COMMITTED)"
children = []
for script, number in ((watches, held), (reaches, holds)):
    command = tied([sys.executable, "-c", script, str(number)], signal.SIGKILL)
    children.append(subprocess.Popen(command, pass_fds=[number]))
    os.close(number)
for child in children:
    child.wait()
"""
"""A supervisor of a process that reaches a point, and of one that sees it end and then says so."""


def test_kill_all_leaves_nobody_who_could_tell() -> None:
    """The whole server is gone at once: no process of it says that another has ended."""
    supervised = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED],
        env={VARIABLE: "store.committed=kill-all"},
        stdout=subprocess.PIPE,
    )
    said, _ = supervised.communicate(timeout=30)  # when none of them is left
    assert (supervised.returncode, said) == (-signal.SIGKILL, b"")


def test_a_process_with_a_mistake_does_not_start() -> None:
    """The variable is read at import: a wrong one fails there, not silently."""
    failed = run("import tidelog.base.faultpoint", "store.written=explode")
    assert failed.returncode == 1
    assert VARIABLE in failed.stderr
