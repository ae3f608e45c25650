"""A hook's process: what it is given, and that it ends (mesh 8.4)."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tidelog.daemon.hooks import hook_run
from tidelog.daemon.hooks.dispatch import SLOTS, Hooks
from tidelog.daemon.hooks.hook_files import Hook
from tidelog.daemon.hooks.hook_run import MAX_INPUT_BYTES, MAX_OUTPUT_BYTES, encode_input
from tidelog.daemon.inbox.inbox_db import Inbox
from tidelog.daemon.ipc.events import Events
from tidelog.daemon.metrics import DaemonMetrics

PATIENCE_S = 20.0


def script(folder: Path, text: str, name: str = "hook") -> Path:
    """A shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


async def gone(pid: int) -> None:
    """Wait until a process has ended, be it not waited for by whoever adopted it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            if await asyncio.to_thread(is_zombie, pid):
                return
            await asyncio.sleep(0.02)


def is_zombie(pid: int) -> bool:
    """Whether it has ended and nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children() -> str:
    """The processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


async def test_it_reads_its_input_and_has_no_other_environment(tmp_path: Path) -> None:
    """PATH, what it was given, and what a shell makes by itself; it answers with its output."""
    path = script(tmp_path, "cat; env; exit 3")
    result = await hook_run.run(path, {"TIDELOG_HOOK": "on-dm"}, b'{"a":1}\n', PATIENCE_S)
    first, *environment = result.output.splitlines()
    assert (first, result.status, result.exit_code) == ('{"a":1}', "failed", 3)
    assert {"PATH=/usr/bin:/bin", "TIDELOG_HOOK=on-dm"} <= set(environment)
    assert {line.partition("=")[0] for line in environment} <= {
        *("PATH", "TIDELOG_HOOK", "PWD", "SHLVL", "_"),
    }


async def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """SIGTERM to the group; what ignores it gets SIGKILL."""
    text = "trap '' TERM\n(trap '' TERM; exec sleep 300) &\necho $!\nwhile :; do sleep 1; done"
    result = await hook_run.run(script(tmp_path, text), {}, b"", 0.5, termination_s=0.3)
    assert (result.status, result.exit_code) == ("timed_out", -9)
    await gone(int(result.output))


async def test_one_that_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """It may clean up, and says with which code it ended."""
    text = "trap 'echo tidy; exit 7' TERM\nwhile :; do sleep 0.05; done"
    result = await hook_run.run(script(tmp_path, text), {}, b"", 0.5)
    assert (result.status, result.exit_code) == ("timed_out", 7)
    assert result.output.endswith("tidy\n")


async def test_what_it_leaves_behind_does_not_hold_the_daemon(tmp_path: Path) -> None:
    """A child in its group that keeps the output open is killed."""
    result = await hook_run.run(script(tmp_path, "sleep 300 &\necho $!"), {}, b"", PATIENCE_S)
    assert result.status == "ok", "not that it took too long"
    await gone(int(result.output))


@pytest.mark.parametrize(("last", "status"), [("sleep 300", "timed_out"), ("exit 0", "ok")])
async def test_what_hides_in_its_group_is_killed(tmp_path: Path, last: str, status: str) -> None:
    """A child that ignores SIGTERM and has no output open ends with the run, however that ends."""
    hidden = "(trap '' TERM; exec sleep 300 <&- >&- 2>&-) >/dev/null 2>&1 &\necho $!"
    result = await hook_run.run(script(tmp_path, f"{hidden}\n{last}"), {}, b"", 1.0)
    assert result.status == status
    await gone(int(result.output))


async def test_the_group_has_nobody_when_it_is_left(tmp_path: Path) -> None:
    """Nothing that was started for the run is left, not even to be waited for."""
    before = children()
    result = await hook_run.run(
        script(tmp_path, "cut -d' ' -f5 /proc/$$/stat"), {}, b"", PATIENCE_S
    )
    with pytest.raises(ProcessLookupError):
        os.killpg(int(result.output), 0)
    assert children() == before


async def test_too_much_output_is_cut_and_does_not_block(tmp_path: Path) -> None:
    """It is read on and thrown away; standard error counts too."""
    text = "head -c 300000 /dev/zero | tr '\\0' a >&2"
    result = await hook_run.run(script(tmp_path, text), {}, b"", PATIENCE_S)
    assert (result.status, result.is_output_truncated) == ("ok", True)
    assert result.output == "a" * MAX_OUTPUT_BYTES


async def test_input_that_nobody_reads(tmp_path: Path) -> None:
    """It is no failure."""
    data = b"a" * MAX_INPUT_BYTES
    assert (await hook_run.run(script(tmp_path, "exit 0"), {}, data, PATIENCE_S)).status == "ok"


async def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    """The result says why."""
    path = script(tmp_path, "")
    path.write_text("#!/no/such/shell\n")
    result = await hook_run.run(path, {}, b"", PATIENCE_S)
    assert (result.status, result.exit_code) == ("not_started", None)
    assert "No such file" in result.output


@pytest.mark.parametrize(
    "fields",
    [
        {"body": "a" * MAX_INPUT_BYTES},
        {"body": "\u4e16" * MAX_INPUT_BYTES},
        {"body": "\0" * MAX_INPUT_BYTES, "meta": {"a": 1}},
        {"body": "", "meta": {"a": "b" * MAX_INPUT_BYTES}},
    ],
)
def test_input_that_is_too_large_says_so(fields: dict[str, object]) -> None:
    """The hook gets JSON in any case, shortened and marked."""
    text = encode_input({"client_message_id": "m-1", **fields})
    read = json.loads(text)
    assert len(text) <= MAX_INPUT_BYTES
    assert (read["client_message_id"], read["_truncated"]) == ("m-1", True)


def test_input_that_fits_is_not_marked() -> None:
    """It is what was given."""
    assert json.loads(encode_input({"body": "a"})) == {"body": "a"}


async def test_so_many_at_once_and_so_many_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs wait, still more are dropped, counted and noted; closing ends those that run."""
    monkeypatch.setattr("tidelog.daemon.hooks.dispatch.MAX_WAITING", 3 + SLOTS)
    (tmp_path / "hooks").mkdir()
    script(tmp_path / "hooks", 'echo $$ >> "$0.pids"; exec sleep 300', "on-startup")
    metrics = DaemonMetrics()
    inbox = Inbox(tmp_path / "inbox.db")
    hooks = Hooks(
        tmp_path,
        {"on-startup": Hook()},
        mesh="ops",
        member_pubkey="aa",
        publish=Events(inbox).publish,
        metrics=metrics,
    )
    for _ in range(20):
        hooks.daemon_started()
    pids = tmp_path / "hooks/on-startup.pids"
    running: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(running) < SLOTS:
            await asyncio.sleep(0.1)
            running = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    assert len(running) == SLOTS
    assert metrics.hooks["on-startup", "dropped"] == 20 - 3 - SLOTS
    await hooks.close()
    inbox.close()
    for pid in running:
        await gone(pid)
    lines = (tmp_path / "hooks.log").read_text().splitlines()
    noted = [json.loads(line)["status"] for line in lines]
    ran, dropped = SLOTS, 20 - 3 - SLOTS
    assert sorted(noted) == ["cancelled"] * ran + ["dropped"] * dropped + ["started"] * ran
    assert (tmp_path / "hooks.log").stat().st_mode & 0o777 == 0o600
