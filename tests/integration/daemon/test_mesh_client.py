"""`MeshClient` and the commands, through real daemons."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from support.cli.command import run as run_command
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import ScriptedBroker, running
from tidelog.client import BlockingMeshClient, DaemonUnavailable, MeshClient, MeshRefused
from tidelog.client.mesh.client import BEGINNING
from tidelog.daemon.inbox.inbox_db import START


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that keeps its promises."""
    with running(ScriptedBroker()) as broker:
        yield broker


@pytest.fixture
def alice(broker: ScriptedBroker) -> Iterator[DaemonProcess]:
    """One connected daemon."""
    with DaemonProcess(broker.url) as daemon:
        daemon.start()
        eventually(lambda: daemon.health()["connected"])
        yield daemon


@pytest.fixture
def bob(broker: ScriptedBroker, alice: DaemonProcess) -> Iterator[DaemonProcess]:
    """Another one."""
    with DaemonProcess(broker.url) as daemon:
        daemon.start()
        eventually(lambda: daemon.health()["connected"])
        yield daemon


def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command of tidelog."""
    return run_command(*arguments, check=check)


def test_the_beginning_is_before_every_message() -> None:
    """The client's first cursor is the daemon's place ahead of everything."""
    assert START.cursor() == BEGINNING


async def test_a_key_makes_a_send_repeatable(alice: DaemonProcess) -> None:
    """The same key and text is one message; another text under it is refused."""
    mesh = MeshClient(alice.data_dir)
    first = await mesh.send("topic:tides", "high", idempotency_key="tide-1", meta={"m": 4})
    row = await mesh.wait("tide-1")
    again = await mesh.send("topic:tides", "high", idempotency_key="tide-1", meta={"m": 4})
    assert (first.client_message_id, first.duplicate) == ("tide-1", False)
    assert (again.status, again.duplicate) == ("done", True)
    assert again.broker_message_id == row["broker_message_id"]
    with pytest.raises(MeshRefused) as refused:
        await mesh.send("topic:tides", "low", idempotency_key="tide-1")
    assert refused.value.error == "idempotency_key_reused"
    assert refused.value.body["conflict"] == "outbox_done_fingerprint_mismatch"


async def test_the_inbox_replays_and_goes_on(alice: DaemonProcess, bob: DaemonProcess) -> None:
    """Stored messages come first, then live ones; a cursor goes on after what was seen."""
    mesh = MeshClient(bob.data_dir)
    for number in range(3):
        alice.send(bob.public_hex, f"early {number}")
    await asyncio.to_thread(eventually, lambda: len(bob.inbox()) == 3)
    seen = []
    async with asyncio.timeout(60):
        async for message in mesh.inbox():
            seen.append(message)
            if len(seen) == 3:
                await asyncio.to_thread(alice.send, bob.public_hex, "late")
            if len(seen) == 4:
                break
    assert [message.body for message in seen] == ["early 0", "early 1", "early 2", "late"]
    async with asyncio.timeout(60):
        async for message in mesh.inbox(after=seen[1].cursor):
            assert message.body == "early 2"
            break


async def test_the_inbox_survives_a_restart_of_the_daemon(
    alice: DaemonProcess, bob: DaemonProcess
) -> None:
    """Nothing is missed and nothing comes twice; what was under way at the kill may come later."""
    mesh = MeshClient(bob.data_dir, patience_s=60)
    bodies: list[str] = []

    async def read() -> None:
        async for message in mesh.inbox():
            bodies.append(message.body)  # noqa: PERF401 - looked at while it goes on

    reading = asyncio.create_task(read())
    for number in range(6):
        await asyncio.to_thread(alice.send, bob.public_hex, str(number))
        if number == 2:
            await asyncio.to_thread(bob.kill)
            await asyncio.to_thread(bob.start)
    async with asyncio.timeout(60):
        for _ in iter(lambda: len(bodies) >= 6, True):
            await asyncio.sleep(0.05)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert sorted(bodies) == [str(number) for number in range(6)]


async def test_a_send_waits_for_a_daemon_that_restarts(alice: DaemonProcess) -> None:
    """A daemon that is away for a moment costs nothing but time."""
    mesh = MeshClient(alice.data_dir, patience_s=60)
    await asyncio.to_thread(alice.kill)
    sending = asyncio.create_task(mesh.send("topic:tides", "high", idempotency_key="a"))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(alice.start)
    assert (await sending).client_message_id == "a"


async def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    """The error names the command."""
    with pytest.raises(DaemonUnavailable, match="tidelog daemon up"):
        await MeshClient(tmp_path, patience_s=0.1).health()


def test_the_blocking_twin(alice: DaemonProcess, bob: DaemonProcess) -> None:
    """The same for a script."""
    with BlockingMeshClient(alice.data_dir) as sender, BlockingMeshClient(bob.data_dir) as reader:
        reader.subscribe("tides")
        assert reader.topics() == [{"name": "tides", "subscribed": True}]
        sent = sender.send("topic:tides", "high")
        assert sender.wait(sent.client_message_id, timeout=10)["status"] == "done"
        [message] = islice(reader.inbox(topic="tides", timeout=10), 1)
        assert (message.body, message.topic) == ("high", "tides")
        assert reader.received(topic="tides")[0].cursor == message.cursor
        assert sender.health()["connected"]
        reader.unsubscribe("tides")
    with pytest.raises(RuntimeError, match="use `with`"):
        sender.health()


def test_commands_send_read_and_show(alice: DaemonProcess, bob: DaemonProcess) -> None:
    """send, inbox and status, as text and as JSON."""
    here, there = ("--data-dir", str(alice.data_dir)), ("--data-dir", str(bob.data_dir))
    sent = run(
        "daemon", "send", bob.public_hex, "hi", "--key", "k", "--wait", "10", "--json", *here
    )
    assert json.loads(sent.stdout)["status"] == "done"
    eventually(bob.inbox)
    assert run("daemon", "inbox", *there).stdout.strip().endswith("member-0: hi")
    [line] = run("daemon", "inbox", "--json", *there).stdout.splitlines()
    assert json.loads(line)["client_message_id"] == "k"
    run("daemon", "send", bob.public_hex, "a\x1b[1A\nb", "--key", "forged", "--wait", "10", *here)
    eventually(lambda: len(bob.inbox()) == 2)
    *_, shown = run("daemon", "inbox", *there).stdout.splitlines()
    assert shown.endswith("member-0: a [1A b")  # no line of its own, and no cursor moved
    assert "connected; 0 waiting" in run("daemon", "status", *here).stdout
    assert json.loads(run("daemon", "status", "--json", *here).stdout)["connected"] is True
    refused = run("daemon", "send", bob.public_hex, "other", "--key", "k", *here, check=False)
    assert refused.returncode == 1
    assert "outbox_done_fingerprint_mismatch" in refused.stderr


def test_commands_for_the_outbox(
    broker: ScriptedBroker, alice: DaemonProcess, tmp_path: Path
) -> None:
    """From a dead row to its patched successor, and the chain between them."""
    here = ("--data-dir", str(alice.data_dir))
    broker.judge = lambda frame: {"code": 404, "error": "topic_not_found"}
    for name in ("a", "b"):
        alice.send("topic:nowhere", "x", name)
    eventually(lambda: alice.statuses() == ["dead", "dead"])
    broker.judge = lambda frame: None
    assert len(run("mesh", "outbox", "--failed", *here).stdout.splitlines()) == 2
    listed = json.loads(run("mesh", "outbox", "list", "--status", "dead", "--json", *here).stdout)
    ids = {row["client_message_id"]: row["id"] for row in listed["items"]}
    patch = tmp_path / "patch.json"
    patch.write_text('{"to": "topic:tides"}')
    answer = run(
        *("mesh", "outbox", "requeue", "--id", ids["a"], "--new-client-id", "a2", "--json"),
        *("--patch-payload", str(patch), *here),
    )
    assert json.loads(answer.stdout)["new_client_message_id"] == "a2"
    eventually(lambda: alice.rows()["a2"]["status"] == "done")
    assert broker.messages["a2"]["destination_ref"] == "tides"
    shown: dict[str, Any] = json.loads(
        run("mesh", "outbox", "inspect", "a2", "--json", *here).stdout
    )
    assert [link["client_message_id"] for link in shown["chain"]] == ["a", "a2"]
    assert "chain" in run("mesh", "outbox", "inspect", "a", *here).stdout
    assert "aborted" in run("mesh", "outbox", "drop", ids["b"], *here).stdout
    assert run("mesh", "outbox", "prune", "--confirm", *here).stdout == "3 rows emptied\n"
    for arguments in (
        ("requeue", "--id", "x"),
        ("requeue", "--id", "x", "--auto", "--new-client-id", "y"),
        ("prune",),
    ):
        assert run("mesh", "outbox", *arguments, *here, check=False).returncode == 2
    missing = run("mesh", "outbox", "drop", "nothing", *here, check=False)
    assert missing.returncode == 1
    assert "outbox_row_not_found" in missing.stderr
    broker.call(broker.stop)
    alice.send("topic:tides", "y", "c")
    run("mesh", "outbox", "requeue", "--id", alice.outbox("c")["id"], "--auto", *here)
    assert alice.rows()["c"]["status"] == "aborted"
