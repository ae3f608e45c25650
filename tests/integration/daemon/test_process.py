"""The daemon as a process: how it starts, what it costs, how it ends."""

import json
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.cli.command import run as run_command
from support.mesh.daemon_process import PROGRAM, DaemonProcess, eventually
from support.mesh.scripted_broker import ScriptedBroker, running

START_CPU_S = 1.0
IDLE_BYTES = 60 * 1024**2
TIDELOG = (sys.executable, "-m", "tidelog")
NOWHERE = ("--mesh", "harbour", "--broker", "http://127.0.0.1:1")
HEAVY = ("typer", "rich", "pyspark", "prometheus_client", "click")


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that keeps its promises."""
    with running(ScriptedBroker()) as broker:
        yield broker


@pytest.fixture
def daemon(broker: ScriptedBroker) -> Iterator[DaemonProcess]:
    """A daemon that is not started."""
    with DaemonProcess(broker.url) as daemon:
        yield daemon


def dump(daemon: DaemonProcess) -> list[str]:
    """All that is in the outbox of a daemon that does not run."""
    with sqlite3.connect(daemon.data_dir / "outbox.db") as connection:
        found = list(connection.iterdump())
    connection.close()
    return found


def test_it_starts_fast_and_stays_small(broker: ScriptedBroker) -> None:
    """Ready within a second of processor time, and idle below 60 MB.

    Processor time, because on a busy machine the time on the wall is that of the others.
    """
    not_forked = ("-s", *PROGRAM)  # a fork has imported everything, and carries it
    with DaemonProcess(broker.url, program=not_forked) as daemon:
        daemon.start()
        process = psutil.Process(daemon.pid)
        times = process.cpu_times()
        assert times.user + times.system < START_CPU_S
        eventually(lambda: daemon.health()["connected"])
        assert process.memory_info().rss < IDLE_BYTES


def test_it_imports_no_command_line_and_no_web_server() -> None:
    """What a daemon does not need, it does not carry."""
    code = "import sys, tidelog.daemon.process, tidelog.daemon.__main__; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & {name.split(".")[0] for name in found.stdout.split()}


def test_two_daemons_exchange_messages(broker: ScriptedBroker, daemon: DaemonProcess) -> None:
    """By key, by name and by topic, and every file is its owner's alone."""
    with DaemonProcess(broker.url) as other:
        daemon.start()
        eventually(lambda: daemon.health()["connected"])
        other.start()
        eventually(lambda: other.health()["connected"])
        daemon.send(other.public_hex, "by key", "a")
        eventually(lambda: len(other.inbox()) == 1)
        other.send("dm:member-0", "by name", "b")
        eventually(lambda: len(daemon.inbox()) == 1)
        assert other.ask("POST", "/v1/topic/subscribe", {"topic": "tides"})[0] == 200
        daemon.ask("POST", "/v1/topic/post", {"topic": "tides", "message": "to all"})
        eventually(lambda: [m["body"] for m in other.inbox()] == ["by key", "to all"])
    for name in ("outbox.db", "inbox.db", "key.json", "daemon.sock", "token"):
        assert stat.S_IMODE((daemon.data_dir / name).stat().st_mode) == 0o600, name


def test_a_second_daemon_in_the_same_directory_is_refused(daemon: DaemonProcess) -> None:
    """Two daemons would send every message twice."""
    daemon.start()
    place = ("--data-dir", str(daemon.data_dir))
    second = run_command(*place, *NOWHERE, module="tidelog.daemon")
    assert second.returncode == 1
    assert "in use" in second.stderr
    assert daemon.health()["mesh"] == "harbour"


def test_sigterm_ends_it_in_order(broker: ScriptedBroker, daemon: DaemonProcess) -> None:
    """What is under way is recorded; nothing is left inflight, and the socket is gone."""
    daemon.start()
    eventually(lambda: daemon.health()["connected"])
    for number in range(50):
        daemon.send("topic:tides", "x", f"m{number}")
    assert daemon.terminate() == 0
    assert "inflight" not in daemon.statuses()
    assert not (daemon.data_dir / "daemon.sock").exists()
    daemon.start()
    eventually(lambda: set(daemon.statuses()) == {"done"})
    assert set(broker.sends.values()) == {1}


def test_it_accepts_without_a_broker(broker: ScriptedBroker, daemon: DaemonProcess) -> None:
    """Sends are kept while nobody is there to take them."""
    broker.call(broker.stop)
    daemon.start()
    assert daemon.send("topic:tides", "x", "a")[0] == 202
    assert daemon.health()["connected"] is False
    broker.call(broker.start)
    eventually(lambda: daemon.statuses() == ["done"])


def test_what_waits_for_one_mesh_is_not_sent_to_another(
    broker: ScriptedBroker, daemon: DaemonProcess
) -> None:
    """Started with another mesh, of which its key is a member too, it refuses and changes nothing.

    `--ttl`, because a daemon that does not refuse would go on.
    """
    broker.call(broker.stop)
    daemon.start()
    assert daemon.send("topic:tides", "for harbour only", "a")[0] == 202
    daemon.terminate()
    before = dump(daemon)
    with running(ScriptedBroker("other")) as other:
        place = ("--data-dir", str(daemon.data_dir), "--mesh", "other", "--broker", other.url)
        found = run_command(*place, "--ttl", "3", module="tidelog.daemon")
        assert other.messages == {}
        assert other.connections == 0
    assert (found.returncode, found.stdout) == (2, "")
    line = found.stderr.splitlines()[-1]
    for said in ("mesh harbour", "mesh other", "--mesh harbour", "another --data-dir"):
        assert said in line
    assert dump(daemon) == before
    broker.call(broker.start)
    daemon.start()
    eventually(lambda: daemon.statuses() == ["done"])
    assert list(broker.messages) == ["a"]


def test_the_last_parameters_outlive_a_restart(
    broker: ScriptedBroker, daemon: DaemonProcess
) -> None:
    """A broker that takes small bodies only is remembered while it is away."""
    broker.offer["max_payload"]["params"]["inline_bytes"] = 2000
    daemon.start()
    eventually(lambda: daemon.health()["connected"])
    daemon.terminate()
    broker.call(broker.stop)
    daemon.start()
    assert daemon.send("topic:tides", "x" * 2001)[0] == 413
    assert daemon.send("topic:tides", "x" * 2000)[0] == 202


def test_an_override_above_the_window_ends_it(broker: ScriptedBroker) -> None:
    """What an operator set does not suit what the broker remembers."""
    settings = "[outbox]\nmax_age_hours_override = 8737\n"
    with DaemonProcess(broker.url, settings=settings) as daemon:
        daemon.start()
        assert daemon.wait() == 3
        assert "outbox_max_age_above_dedupe_window" in daemon.log_text()


def test_without_a_key_it_says_how_to_join(daemon: DaemonProcess) -> None:
    """The refusal names the command."""
    (daemon.data_dir / "key.json").unlink()
    daemon.launch()
    assert daemon.wait() == 1
    assert "tidelog mesh join" in daemon.log_text()


def test_settings_that_are_wrong_end_with_2(daemon: DaemonProcess) -> None:
    """As every command of tidelog does."""
    (daemon.data_dir / "daemon.toml").write_text("[outbox]\nbudget = 3\n")
    daemon.launch()
    assert daemon.wait() == 2
    assert "budget" in daemon.log_text()


def test_a_newer_file_is_refused(daemon: DaemonProcess) -> None:
    """An older daemon does not touch what a newer one wrote."""
    daemon.start()
    daemon.terminate()
    with sqlite3.connect(daemon.data_dir / "outbox.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    daemon.launch()
    assert daemon.wait() == 1
    assert "schema version 99" in daemon.log_text()


def test_over_tcp_a_token_is_needed(broker: ScriptedBroker) -> None:
    """The port is on the loopback and wants the token in the file; a container has none at all."""
    with DaemonProcess(broker.url, settings="[ipc]\ntcp_port = 0\n") as daemon:
        daemon.start()
        port = daemon.ready["tcp_port"]
        if port is None:
            assert "this is a container" in daemon.log_text()
            return
        token = (daemon.data_dir / "token").read_text().strip()
        for authorization, status in (("", b"401"), (f"authorization: Bearer {token}\r\n", b"200")):
            with socket.create_connection(("127.0.0.1", port)) as caller:
                caller.sendall(
                    f"GET /v1/version HTTP/1.1\r\nhost: localhost\r\n{authorization}"
                    "connection: close\r\n\r\n".encode()
                )
                assert caller.recv(100).split()[1] == status
        assert token not in daemon.log_text()


@pytest.mark.parametrize("wanted", [(), ("--json",)])
def test_up_becomes_the_light_process(daemon: DaemonProcess, wanted: tuple[str, ...]) -> None:
    """`tidelog daemon up` is replaced by the daemon, same process id; JSON is for programs."""
    process = subprocess.Popen(
        [*TIDELOG, "daemon", "up", "--data-dir", str(daemon.data_dir), *NOWHERE, *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert str(daemon.data_dir / "daemon.sock") in line
        assert line.startswith("{") == bool(wanted)
        if wanted:
            assert json.loads(line)["pid"] == process.pid
        command = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        assert "tidelog.daemon" in command
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """The kernel allows 107 bytes; the refusal says so before anything is made."""
    deep = tmp_path / ("d" * 60) / ("d" * 60)
    found = run_command("--data-dir", str(deep), *NOWHERE, module="tidelog.daemon")
    assert found.returncode == 1
    assert "shorter --data-dir" in found.stderr
    assert not deep.exists()


def test_metrics_name_the_paths_that_are_asked(daemon: DaemonProcess) -> None:
    """Requests are counted by their path; what does not exist is one `other`."""
    daemon.start()
    for path in ("/v1/version", "/v1/nowhere"):
        daemon.ask("GET", path)
    shown = daemon.ask_text("/v1/metrics")
    assert 'path="/v1/version"' in shown
    assert 'path="other"' in shown
