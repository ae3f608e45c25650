"""Hooks of a real daemon: run after the inbox, audited, never in its way (mesh 8.4)."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from tidelog.daemon.continuous_integration import VARIABLES
from tidelog.daemon.hooks.dispatch import SLOTS

PATIENCE_S = 60.0
PROMPT_S = 15.0
"""Much more than a run takes, and much less than what it must not wait for."""

SHOWN = 'cat > "$0.$TIDELOG_CLIENT_MESSAGE_ID.json"'
"""Keeps what the hook read, by the id of the message."""

STORED = f"""#!{sys.executable}
import os, sqlite3, sys
name = os.environ["TIDELOG_CLIENT_MESSAGE_ID"]
inbox = sqlite3.connect("file:../inbox.db?mode=ro", uri=True)
found = inbox.execute("SELECT count(*) FROM inbox WHERE client_message_id = ?", (name,))
print("stored", found.fetchone()[0])
"""
"""Looks whether its message is in the inbox."""


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests also run in CI, where hooks are off."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def install(daemon: DaemonProcess, **scripts: str) -> None:
    """Make scripts and name them; `_` in a name is `-`."""
    folder = daemon.data_dir / "hooks"
    folder.mkdir(mode=0o700)
    named = {name.replace("_", "-"): text for name, text in scripts.items()}
    for name, text in named.items():
        path = folder / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)
    tables = "".join(f"[hooks.{name}]\n" for name in named)
    (daemon.data_dir / "hooks.toml").write_text(tables)
    (daemon.data_dir / "hooks.toml").chmod(0o600)


def audit(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """Every line of the audit."""
    path = daemon.data_dir / "hooks.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ended(daemon: DaemonProcess, hook: str) -> list[dict[str, Any]]:
    """Every run of a hook that has ended."""
    return [each for each in audit(daemon) if each["hook"] == hook and each["status"] != "started"]


def started(daemon: DaemonProcess, hook: str) -> list[dict[str, Any]]:
    """Every run of a hook that has begun."""
    return [each for each in audit(daemon) if each["hook"] == hook and each["status"] == "started"]


def elsewhere(daemon: DaemonProcess, tmp_path: Path, hook: str) -> Path:
    """Move a script to a directory of its own and leave a link to it; returns the directory."""
    place = tmp_path / "elsewhere"
    place.mkdir(mode=0o755)
    script = daemon.data_dir / "hooks" / hook
    script.rename(place / hook)
    script.symlink_to(place / hook)
    return place


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shown(daemon: DaemonProcess, hook: str) -> list[str]:
    """The ids of the messages that a hook was given."""
    found = (daemon.data_dir / "hooks").glob(f"{hook}.*.json")
    return sorted(path.name.split(".")[1] for path in found)


@contextmanager
def two(tmp_path: Path, **scripts: str) -> Iterator[tuple[RealMesh, DaemonProcess, DaemonProcess]]:
    """A mesh, a sender, and a receiver that has these hooks; both run."""
    with (
        RealMesh(tmp_path / "broker") as mesh,
        mesh.daemon("ana") as ana,
        mesh.daemon("ben") as ben,
    ):
        install(ben, **scripts)
        ana.start()
        ben.start()
        eventually(lambda: ben.health()["connected"], PATIENCE_S)
        yield mesh, ana, ben


def test_each_message_has_its_hooks(tmp_path: Path) -> None:
    """By kind of destination, by topic and by mention; each gets the message as JSON."""
    scripts = dict.fromkeys(("on_message", "on_dm", "on_mention", f"on_topic_{TOPIC}"), SHOWN)
    with two(tmp_path, **scripts) as (_, ana, ben):
        ana.send(f"dm:{ben.public_hex}", "for you", "direct")
        ana.send(f"topic:{TOPIC}", "for all", "post")
        mention = {"topic": TOPIC, "message": "you", "mentions": [ben.public_hex]}
        ana.ask("POST", "/v1/topic/post", {**mention, "client_message_id": "mention"})
        eventually(lambda: len(ended(ben, "on-message")) == 3, PATIENCE_S)
        eventually(lambda: len(ended(ben, f"on-topic-{TOPIC}")) == 2, PATIENCE_S)
        eventually(lambda: ended(ben, "on-mention"), PATIENCE_S)
        assert shown(ben, "on-message") == ["direct", "mention", "post"]
        assert shown(ben, "on-dm") == ["direct"]
        assert shown(ben, f"on-topic-{TOPIC}") == ["mention", "post"]
        assert shown(ben, "on-mention") == ["mention"]
        given = json.loads((ben.data_dir / "hooks/on-dm.direct.json").read_text())
        [stored] = [each for each in ben.inbox() if each["client_message_id"] == "direct"]
        assert given == stored
        metrics = ben.ask_text("/v1/metrics")
        assert 'tidelog_daemon_hook_total{hook="on-dm",status="ok"} 1.0' in metrics


def test_a_hook_runs_after_the_inbox_and_is_audited(tmp_path: Path) -> None:
    """Its message is in the file when it looks; the audit has begin, end, code and output."""
    with two(tmp_path, on_dm=STORED) as (_, ana, ben):
        ana.send(f"dm:{ben.public_hex}", "a secret", "m-1")
        [run] = eventually(lambda: ended(ben, "on-dm"), PATIENCE_S)
        begun = audit(ben)[0]
        assert (begun["status"], begun["run"]) == ("started", run["run"])
        assert (run["status"], run["exit_code"], run["output"]) == ("ok", 0, "stored 1\n")
        assert (run["client_message_id"], run["is_output_truncated"]) == ("m-1", False)
        assert "a secret" not in (ben.data_dir / "hooks.log").read_text()


def test_hooks_that_hang_or_fail_are_not_in_the_way(tmp_path: Path) -> None:
    """The inbox fills, is acknowledged and can be asked while they hang; stopping ends them."""
    with two(tmp_path, on_dm="exec sleep 300", on_message="exit 1") as (mesh, ana, ben):
        for number in range(30):
            ana.send(f"dm:{ben.public_hex}", "no matter", f"m-{number}")
        eventually(lambda: len(ben.inbox()) == 30, PATIENCE_S)
        eventually(lambda: mesh.undelivered() == 0, PATIENCE_S)
        running = [each for each in audit(ben) if each["hook"] == "on-dm"]
        assert 0 < len(running) <= 8
        assert ended(ben, "on-dm") == []
        assert ben.terminate() == 0


def test_events_of_the_daemon(tmp_path: Path) -> None:
    """Its start, the loss of its broker and its return."""
    with two(tmp_path, on_startup=SHOWN, on_disconnect=SHOWN, on_reconnect=SHOWN) as (mesh, _, ben):
        eventually(lambda: ended(ben, "on-startup"), PATIENCE_S)
        mesh.server.kill()
        eventually(lambda: ended(ben, "on-disconnect"), PATIENCE_S)
        assert ended(ben, "on-reconnect") == []
        mesh.server.start()
        eventually(lambda: ended(ben, "on-reconnect"), PATIENCE_S)
        assert ben.terminate() == 0
        assert {each["status"] for each in audit(ben)} == {"started", "ok"}
        assert len(audit(ben)) == 6


def test_listeners_are_told(tmp_path: Path) -> None:
    """`hook_executed` has how it ended, and not what it printed."""
    with two(tmp_path, on_dm="echo printed; exit 4") as (_, ana, ben):
        ben.watch()
        ana.send(f"dm:{ben.public_hex}", "no matter", "m-1")
        [(kind, executed)] = eventually(lambda: [*ben.told], PATIENCE_S)
    assert (kind, executed["client_message_id"]) == ("hook_executed", "m-1")
    assert (executed["hook"], executed["status"], executed["exit_code"]) == ("on-dm", "failed", 4)
    assert "output" not in executed


def test_a_send_that_a_hook_refuses(tmp_path: Path) -> None:
    """It is refused with the hook's words, nothing is stored, and the id is free."""
    refuse = "grep -q secret && { echo 'no secrets here'; exit 1; }; exit 0"
    with two(tmp_path, pre_send=refuse) as (_, ana, ben):
        status, answer = ben.send(f"dm:{ana.public_hex}", "a secret", "m-1")
        assert (status, answer["error"]) == (403, "hook_refused")
        assert "no secrets here" in answer["detail"]
        assert ben.rows() == {}
        assert ben.send(f"dm:{ana.public_hex}", "nothing of the kind", "m-1")[0] == 202
        eventually(lambda: ben.outbox("m-1")["status"] == "done", PATIENCE_S)


def test_messages_that_come_in_do_not_make_sends_wait(tmp_path: Path) -> None:
    """`pre-send` runs though strangers' messages have all places of the other hooks."""
    with two(tmp_path, on_message="exec sleep 300", pre_send="exit 0") as (_, ana, ben):
        for number in range(2 * SLOTS):
            ana.send(f"dm:{ben.public_hex}", "no matter", f"m-{number}")
        eventually(lambda: len(started(ben, "on-message")) == SLOTS, PATIENCE_S)
        assert ben.send(f"dm:{ana.public_hex}", "mine", "mine")[0] == 202
        assert ended(ben, "on-message") == [], "it did not wait for a place of theirs"


def test_a_killed_daemon_leaves_no_hook_running(tmp_path: Path) -> None:
    """The hook and its child, which ignores signals, end with the daemon, not with its return."""
    child = "(trap '' HUP INT TERM; exec sleep 300) & echo $! $$ > pids.new; mv pids.new pids; wait"
    with two(tmp_path, on_startup=child) as (_, _, ben):
        pids = ben.data_dir / "hooks/pids"
        eventually(pids.exists, PATIENCE_S)
        running = [int(pid) for pid in pids.read_text().split()]
        assert [is_running(pid) for pid in running] == [True, True]
        ben.kill()
        eventually(lambda: not any(is_running(pid) for pid in running), PROMPT_S)


def test_a_link_to_where_others_can_write_stops_the_start(tmp_path: Path) -> None:
    """The script itself is safe; whoever can write its directory could replace it."""
    with RealMesh(tmp_path / "broker") as mesh, mesh.daemon("ana") as ana:
        install(ana, on_dm="exit 0")
        shared = elsewhere(ana, tmp_path, "on-dm")
        shared.chmod(0o777)
        ana.launch()
        assert ana.wait() == 2
        assert f"chmod go-w {shared}" in ana.log_text()


def test_a_script_is_looked_at_before_each_run(tmp_path: Path) -> None:
    """One that others can replace since the start is not run, and a send that needs it refused."""
    with RealMesh(tmp_path / "broker") as mesh, mesh.daemon("ana") as ana:
        install(ana, pre_send="exit 0")
        shared = elsewhere(ana, tmp_path, "pre-send")
        ana.start()
        assert ana.send(f"dm:{ana.public_hex}", "before", "m-1")[0] == 202
        shared.chmod(0o777)
        script = shared / "pre-send"
        planted = f"#!/bin/sh\ntouch {shared}/planted\n"
        script.unlink()
        script.write_text(planted)
        script.chmod(0o755)
        status, answer = ana.send(f"dm:{ana.public_hex}", "after", "m-2")
        assert (status, answer["error"]) == (403, "hook_refused")
        assert ended(ana, "pre-send")[-1]["status"] == "not_started"
        assert f"chmod go-w {shared}" in ended(ana, "pre-send")[-1]["output"]
        assert not (shared / "planted").exists()


def test_hooks_are_off_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's machine runs nothing that somebody left in a directory."""
    monkeypatch.setenv("CI", "true")
    with two(tmp_path, on_startup=SHOWN, on_dm=SHOWN) as (_, ana, ben):
        ana.send(f"dm:{ben.public_hex}", "no matter", "m-1")
        eventually(ben.inbox, PATIENCE_S)
        assert audit(ben) == []
        assert "the hooks of hooks.toml are off" in ben.log_text()


def test_a_script_that_others_can_write_stops_the_start(tmp_path: Path) -> None:
    """Before anything is opened; the message says what to do."""
    with RealMesh(tmp_path / "broker") as mesh, mesh.daemon("ana") as ana:
        install(ana, on_dm="exit 0")
        (ana.data_dir / "hooks/on-dm").chmod(0o777)
        ana.launch()
        assert ana.wait() == 2
        assert "chmod go-w" in ana.log_text()


def test_a_rebuilt_inbox_runs_no_hooks(tmp_path: Path) -> None:
    """What the history brings back was seen before."""
    with two(tmp_path, on_dm=SHOWN) as (mesh, ana, ben):
        ana.send(f"dm:{ben.public_hex}", "once", "m-1")
        eventually(lambda: ended(ben, "on-dm"), PATIENCE_S)
        ben.kill()
        (ben.data_dir / "inbox.db").write_bytes(b"damaged" * 1000)
        for suffix in ("-wal", "-shm"):
            (ben.data_dir / f"inbox.db{suffix}").unlink(missing_ok=True)
        ben.start()
        eventually(lambda: len(ben.inbox()) == 1, PATIENCE_S)
        ana.send(f"dm:{ben.public_hex}", "later", "m-2")
        eventually(lambda: len(ended(ben, "on-dm")) == 2, PATIENCE_S)
        assert [each["client_message_id"] for each in ended(ben, "on-dm")] == ["m-1", "m-2"]
        eventually(lambda: mesh.undelivered() == 0, PATIENCE_S)
