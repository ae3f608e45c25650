"""The mesh daemon killed, damaged and lied to: the fault cases that are its own (mesh 16.4).

A scripted broker shows what the daemon sends; `test_mesh_pair` has the cases with a real one.
"""

import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from typing import Any

import pytest

from support.cli.command import run as run_command
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import ScriptedBroker, running
from tidelog.client.mesh.client import BEGINNING
from tidelog.mesh.protocol import negotiation

REQUEST_TIMEOUT_MS = 400
FAST = f"[uplink]\nrequest_timeout_ms = {REQUEST_TIMEOUT_MS}\n"
TOPIC = "topic:tides"


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that keeps its promises unless told otherwise."""
    with running(ScriptedBroker()) as broker:
        yield broker


@pytest.fixture
def daemon(broker: ScriptedBroker) -> Iterator[DaemonProcess]:
    """A daemon that is not started."""
    with DaemonProcess(broker.url, settings=FAST) as daemon:
        yield daemon


def killed_by(daemon: DaemonProcess, faults: str, message_id: str, text: str = "tide") -> None:
    """Start with a fault, send, and wait for the death; the caller may get no answer."""
    daemon.start(faults)
    with suppress(OSError, HTTPException):
        daemon.send(TOPIC, text, message_id)
    assert daemon.wait() == -9


def done(daemon: DaemonProcess, count: int = 1, timeout_seconds: float = 60.0) -> None:
    """Wait until so many rows are done and none waits."""
    eventually(
        lambda: (
            Counter(daemon.statuses())["done"] == count
            and not {"pending", "inflight"} & set(daemon.statuses())
        ),
        timeout_seconds,
    )


def check_invariants(
    daemon: DaemonProcess,
    broker: ScriptedBroker,
    acknowledged: set[str],
    fingerprints: dict[str, bytes] | None = None,
) -> None:
    """G1, G2, G4 and G7 for one sender, after everything has come to rest."""
    rows = daemon.rows()
    assert acknowledged <= rows.keys(), "G1: an acknowledged send has no row"
    for message_id in acknowledged:
        status = rows[message_id]["status"]
        if status not in ("dead", "aborted"):
            assert status == "done", f"{message_id} is {status}"
            stored = broker.messages[message_id]["broker_message_id"]
            assert rows[message_id]["broker_message_id"] == stored
    ids = [message["broker_message_id"] for message in broker.messages.values()]
    assert len(set(ids)) == len(ids), "G2"
    for message_id, fingerprint in (fingerprints or {}).items():
        assert rows[message_id]["request_fingerprint"] == fingerprint, "G4"


def test_ft_01_death_before_the_outbox_commit_leaves_nothing(
    daemon: DaemonProcess, broker: ScriptedBroker
) -> None:
    """A send whose daemon died before its commit left no row, and its id is free."""
    killed_by(daemon, "D1=kill", "a")
    daemon.start()
    assert daemon.rows() == {}
    assert daemon.send(TOPIC, "tide", "a")[0] == 202
    done(daemon)
    check_invariants(daemon, broker, {"a"})
    assert broker.sends["a"] == 1


def test_ft_02_death_after_the_commit_keeps_the_row(
    daemon: DaemonProcess, broker: ScriptedBroker
) -> None:
    """A send whose answer was lost is there: the same again is the same, another is refused."""
    killed_by(daemon, "D2=kill", "a")
    before = {key: row["request_fingerprint"] for key, row in daemon.rows().items()}
    assert before.keys() == {"a"}
    daemon.start()
    assert daemon.send(TOPIC, "tide", "a")[0] in (200, 202)
    status, body = daemon.send(TOPIC, "ebb", "a")
    assert status == 409
    assert body["conflict"].startswith("outbox_")
    assert body["conflict"].endswith("_fingerprint_mismatch")
    assert len(body["daemon_fingerprint_prefix"]) == 16
    done(daemon)
    check_invariants(daemon, broker, {"a"}, before)


def test_ft_03_death_between_claim_and_send(daemon: DaemonProcess, broker: ScriptedBroker) -> None:
    """A row claimed and never sent is pending again, one attempt later and half a second on."""
    killed_by(daemon, "D3=kill", "a")
    assert daemon.rows()["a"]["status"] == "inflight"
    assert broker.sends["a"] == 0
    broker.call(broker.stop)
    started_ms = time.time() * 1000
    daemon.start()
    row = daemon.rows()["a"]
    assert (row["status"], row["attempts"]) == ("pending", 2)
    assert row["next_attempt_at"] >= started_ms + 500
    broker.call(broker.start)
    done(daemon)
    check_invariants(daemon, broker, {"a"})


@pytest.mark.parametrize("point", ["D4", "D5"])
def test_ft_04_05_death_around_the_answer(
    broker: ScriptedBroker, daemon: DaemonProcess, point: str
) -> None:
    """What the broker committed before the daemon died is answered as a duplicate, with its id."""
    with DaemonProcess(broker.url) as reader:
        broker.topics["tides"] = {reader.public_hex}
        reader.start()
        killed_by(daemon, f"{point}=kill", "a")
        eventually(lambda: "a" in broker.messages)
        first = broker.messages["a"]
        assert daemon.rows()["a"]["status"] == "inflight"
        daemon.start()
        done(daemon)
        assert daemon.rows()["a"]["broker_message_id"] == first["broker_message_id"]
        assert broker.sends["a"] == 2
        eventually(lambda: len(reader.inbox()) == 1)
        check_invariants(daemon, broker, {"a"})
        status, body = daemon.send(TOPIC, "tide", "a")
        assert (status, body["duplicate"]) == (200, True)


def test_ft_06_death_inside_a_requeue(daemon: DaemonProcess, broker: ScriptedBroker) -> None:
    """A requeue that was interrupted has happened as a whole or not at all."""
    broker.judge = lambda frame: {"code": 404, "error": "topic_not_found"}
    daemon.start()
    daemon.send(TOPIC, "tide", "a")
    eventually(lambda: daemon.statuses() == ["dead"])
    daemon.terminate()
    daemon.start("D6=kill")
    row = daemon.outbox("a")
    with pytest.raises((OSError, HTTPException)):
        daemon.ask("POST", "/v1/outbox/requeue", {"id": row["id"], "new_client_id": "b"})
    assert daemon.wait() == -9
    broker.judge = lambda frame: None
    daemon.start()
    rows = daemon.rows()
    if "b" in rows:
        assert rows["a"]["status"] == "aborted"
        assert rows["a"]["superseded_by"] == rows["b"]["id"]
    else:
        assert rows["a"]["status"] == "dead"
        assert rows["a"]["superseded_by"] is None
        answer = daemon.ask("POST", "/v1/outbox/requeue", {"id": row["id"], "new_client_id": "b"})
        assert answer[0] == 200
    eventually(lambda: daemon.rows()["b"]["status"] == "done")
    assert broker.messages["b"]["supersedes"] == "a"
    assert daemon.send(TOPIC, "tide", "a")[1]["conflict"] == "outbox_aborted_fingerprint_match"


@pytest.mark.parametrize("point", ["R1", "R2", "R3"])
def test_ft_12_receiver_dies_around_its_commit(broker: ScriptedBroker, point: str) -> None:
    """However a receiver dies, it ends with one row, acknowledged, and a replay has its event."""
    with DaemonProcess(broker.url) as sender, DaemonProcess(broker.url) as receiver:
        sender.start()
        receiver.start(f"{point}=kill")
        eventually(lambda: receiver.health()["connected"])
        sender.send(receiver.public_hex, "tide", "a")
        assert receiver.wait() == -9
        assert broker.acknowledged == []
        stored = sqlite3.connect(receiver.data_dir / "inbox.db")
        assert stored.execute("SELECT count(*) FROM inbox").fetchone()[0] == (point != "R1")
        stored.close()
        receiver.start()
        eventually(lambda: broker.acknowledged)
        assert [message["client_message_id"] for message in receiver.inbox()] == ["a"]
        metrics = receiver_metrics(receiver)
        assert metrics["tidelog_daemon_recv_total"] == (point == "R1"), "G5: an event too many"
        if point != "R1":
            assert metrics['tidelog_daemon_dedupe_total{direction="in"}'] >= 1
        replayed = events(receiver, BEGINNING, 1)
        assert [event["client_message_id"] for event in replayed] == ["a"]


@pytest.mark.parametrize("seed", range(3))
def test_ft_21_corrupt_outbox(daemon: DaemonProcess, broker: ScriptedBroker, seed: int) -> None:
    """A damaged outbox is not used; `recover` keeps every id that can be read, and the file."""
    broker.call(broker.stop)
    daemon.start()
    ids = [f"m{number}" for number in range(300)]
    for message_id in ids:
        assert daemon.send(TOPIC, f"{message_id} {'.' * 300}", message_id)[0] == 202
    daemon.terminate()
    path = daemon.data_dir / "outbox.db"
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        file.seek(random.Random(seed).randrange(6, pages - 1) * 4096)
        file.write(random.Random(seed).randbytes(4096))
    daemon.launch()
    assert daemon.wait() == 1
    assert "tidelog mesh recover" in daemon.log_text()
    assert not (daemon.data_dir / "daemon.sock").exists()
    report = recover(daemon)
    assert list(daemon.data_dir.glob("outbox.db.corrupt-*"))
    rows = daemon.rows()
    assert len(rows) == report["copied"] + report["retired_count"]
    assert len(rows) >= len(ids) - report["unreadable_rows"]
    assert rows.keys() <= set(ids)
    for message_id in report["retired"]:
        row = rows[message_id]
        assert (row["status"], row["aborted_by"]) == ("aborted", "auto")
    broker.call(broker.start)
    daemon.start()
    for message_id in rows:
        assert daemon.send(TOPIC, "something else", message_id)[0] == 409
    done(daemon, report["copied"])
    assert len(broker.messages) == report["copied"]


def test_ft_21_corrupt_inbox(broker: ScriptedBroker) -> None:
    """A damaged inbox is moved aside and filled again from the broker's history."""
    with DaemonProcess(broker.url) as sender, DaemonProcess(broker.url) as receiver:
        sender.start()
        receiver.start()
        eventually(lambda: receiver.health()["connected"])
        ids = {f"m{number}" for number in range(60)}
        for message_id in sorted(ids):
            sender.send(receiver.public_hex, "tide " * 100, message_id)
        receiver.send(sender.public_hex, "mine", "mine")
        eventually(lambda: len(receiver.inbox()) == 60)
        eventually(lambda: len(broker.acknowledged) >= 60)
        receiver.terminate()
        with (receiver.data_dir / "inbox.db").open("r+b") as file:
            file.seek(4096 * 4)
            file.write(random.Random(1).randbytes(4096 * 3))
        receiver.start()
        assert "inbox_corruption_recovered" in receiver.log_text()
        assert list(receiver.data_dir.glob("inbox.db.corrupt-*"))
        eventually(lambda: len(receiver.inbox()) == 60)
        assert {message["client_message_id"] for message in receiver.inbox()} == ids
        eventually(lambda: not (receiver.data_dir / "inbox.rebuild").exists())


def test_ft_23a_a_clock_that_jumps_ahead_kills_early(
    daemon: DaemonProcess, broker: ScriptedBroker
) -> None:
    """A row that is suddenly too old dies without an attempt."""
    broker.call(broker.stop)
    daemon.start()
    daemon.send(TOPIC, "tide", "a")
    daemon.shift_clock(200)
    eventually(lambda: daemon.statuses() == ["dead"])
    row = daemon.rows()["a"]
    assert (row["last_error"], row["attempts"]) == ("max_age_exceeded", 0)
    broker.call(broker.start)
    eventually(lambda: daemon.health()["connected"])
    assert broker.sends["a"] == 0


def test_ft_23b_a_clock_that_is_set_back_does_not_make_rows_young(
    daemon: DaemonProcess, broker: ScriptedBroker
) -> None:
    """The time that has passed is remembered across a step back and a restart."""
    broker.call(broker.stop)
    daemon.start()
    daemon.send(TOPIC, "tide", "a")
    daemon.shift_clock(100)
    eventually(lambda: stored_mark(daemon) > (time.time() + 99 * 3600) * 1000)
    assert daemon.statuses() == ["pending"]
    daemon.shift_clock(-200)
    daemon.kill()
    daemon.start()
    time.sleep(0.5)
    assert daemon.statuses() == ["pending"]
    daemon.shift_clock(-150)
    eventually(lambda: daemon.statuses() == ["dead"])
    assert daemon.rows()["a"]["last_error"] == "max_age_exceeded"


def test_ft_23_inbox_times_never_decrease(broker: ScriptedBroker) -> None:
    """What is received after a step back is still behind what was received before it."""
    with DaemonProcess(broker.url) as sender, DaemonProcess(broker.url) as receiver:
        sender.start()
        receiver.start()
        eventually(lambda: receiver.health()["connected"])
        for number, hours in enumerate((5, -5, 2)):
            receiver.shift_clock(hours)
            sender.send(receiver.public_hex, "tide", f"m{number}")
            eventually(partial(has_received, receiver, number + 1))
        received = receiver.inbox()
        assert [message["client_message_id"] for message in received] == ["m0", "m1", "m2"]
        times = [message["received_at"] for message in received]
        assert times == sorted(times)


def test_ft_25_the_negotiated_window_shrinks(daemon: DaemonProcess, broker: ScriptedBroker) -> None:
    """A smaller window kills what is too old before any attempt; below the floor we leave."""
    daemon.shift_clock(-240)
    daemon.start()
    eventually(lambda: daemon.health()["connected"])
    broker.call(broker.stop)
    eventually(lambda: not daemon.health()["connected"])
    for number in range(3):
        daemon.send(TOPIC, "old", f"old{number}")
    daemon.shift_clock(0)
    daemon.send(TOPIC, "young", "young")
    time.sleep(2.5)
    assert set(daemon.statuses()) == {"pending"}, "365 days: none is too old"
    broker.offer = negotiation.offered(mode="retention_scoped", dedupe_retention_days=7)
    broker.call(broker.start)
    eventually(lambda: daemon.rows()["young"]["status"] == "done")
    for number in range(3):
        row = daemon.rows()[f"old{number}"]
        assert (row["status"], row["last_error"]) == ("dead", "max_age_exceeded")
        assert (row["attempts"], broker.sends[f"old{number}"]) == (0, 0)
    offers: list[tuple[dict[str, Any], int]] = [
        (negotiation.offered(mode="retention_scoped", dedupe_retention_days=6), 4012),
        ({}, 4010),
    ]
    for offer, code in offers:
        broker.call(broker.stop)
        broker.offer = offer
        broker.closes.clear()
        if not daemon.is_running:
            daemon.start()
        eventually(lambda: not daemon.health()["connected"])
        daemon.send(TOPIC, "later", "later")
        before = daemon.rows()
        broker.call(broker.start)
        assert daemon.wait(60) == 3
        eventually(lambda: broker.closes)
        assert broker.closes == [code]
        assert broker.failures[-1]["feature"] == negotiation.DEDUPE
        assert daemon.rows() == before
        assert broker.sends["later"] == 0
    assert "negotiation failed" in daemon.log_text()


def has_received(daemon: DaemonProcess, count: int) -> bool:
    """Whether the inbox holds so many messages."""
    return len(daemon.inbox()) == count


def receiver_metrics(daemon: DaemonProcess) -> dict[str, float]:
    """The daemon's metrics by name and labels."""
    text = daemon.ask_text("/v1/metrics")
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def events(daemon: DaemonProcess, after: str, count: int) -> list[dict[str, Any]]:
    """Replayed messages, read from the event stream."""
    found = daemon.stream(after, count)
    return [json.loads(data) for data in found]


def recover(daemon: DaemonProcess) -> dict[str, Any]:
    """`tidelog mesh recover`, as an operator runs it."""
    place = ("--data-dir", str(daemon.data_dir))
    answer = run_command("mesh", "recover", "--yes", "--json", *place, check=True)
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


def stored_mark(daemon: DaemonProcess) -> int:
    """The clock's mark in the file."""
    with sqlite3.connect(daemon.data_dir / "outbox.db") as connection:
        found = connection.execute(
            "SELECT value FROM daemon_state WHERE key = 'clock_mark'"
        ).fetchone()
    connection.close()
    return int(found[0]) if found else 0
