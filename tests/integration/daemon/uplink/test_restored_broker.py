"""A broker whose log was restored from an older backup, and what its daemons say (mesh 4.7)."""

import json
from pathlib import Path
from typing import Any

from support.cli.command import run as run_command
from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually


def send(daemon: DaemonProcess, *ids: str) -> None:
    """Messages that the broker has afterwards."""
    for message_id in ids:
        daemon.send(f"topic:{TOPIC}", f"text of {message_id}", message_id)
    eventually(lambda: all(daemon.outbox(name)["status"] == "done" for name in ids))


def lost(daemon: DaemonProcess) -> list[str]:
    """Ids that the daemon lists as possibly lost, oldest first."""
    items = daemon.ask("GET", "/v1/outbox?possibly_lost=true")[1]["items"]
    assert all(item["possibly_lost"] and item["status"] == "done" for item in items)
    return [item["client_message_id"] for item in reversed(items)]


def requeue(daemon: DaemonProcess, message_id: str) -> tuple[int, Any]:
    """Send a row's content under a fresh id."""
    row = daemon.outbox(message_id)
    return daemon.ask("POST", "/v1/outbox/requeue", {"id": row["id"], "auto": True})


def tidelog(daemon: DaemonProcess, *arguments: str) -> str:
    """What a command about a daemon prints."""
    return run_command(*arguments, "--data-dir", str(daemon.data_dir), check=True).stdout


def test_what_the_broker_lost_is_listed_and_can_be_sent_again(
    tmp_path: Path, store_location: str
) -> None:
    """Rows after the restored head, and only these; the daemon sends nothing by itself."""
    with RealMesh(tmp_path / "broker", store_location) as mesh, mesh.daemon("ana") as ana:
        ana.start()
        send(ana, "m1", "m2")
        mesh.back_up(tmp_path / "monday.db")
        send(ana, "m3")
        assert ana.ask("POST", "/v1/outbox/prune", {"confirm": True})[1] == {"pruned": 3}
        send(ana, "m4", "m5")
        assert (ana.health()["possibly_lost"], lost(ana)) == (0, [])
        mesh.restore(tmp_path / "monday.db")
        eventually(lambda: ana.health()["connected"])
        assert (ana.health()["possibly_lost"], lost(ana)) == (3, ["m3", "m4", "m5"])
        assert "3 messages" in ana.log_text()

        status, answer = requeue(ana, "m2")
        assert (status, answer["error"]) == (409, "outbox_row_done")
        status, answer = requeue(ana, "m3")
        assert (status, answer["error"]) == (409, "outbox_payload_pruned")
        again = ana.send(f"topic:{TOPIC}", "text of m5", "m5")
        assert (again[0], again[1]["possibly_lost"]) == (200, True)
        status, answer = requeue(ana, "m4")
        assert (status, answer["maybe_delivered"]) == (200, True)
        fresh = answer["new_client_message_id"]
        eventually(lambda: ana.outbox(fresh)["status"] == "done")
        assert set(mesh.messages()) == {"m1", "m2", fresh}
        assert lost(ana) == ["m3", "m5"]

        ana.kill()
        ana.start()
        eventually(lambda: ana.health()["connected"])
        send(ana, "m6")
        assert lost(ana) == ["m3", "m5"], "what the new history has is not lost"
        shown = tidelog(ana, "daemon", "status")
        assert "2 messages" in shown
        assert "tidelog mesh outbox --lost" in shown
        assert "m5" in tidelog(ana, "mesh", "outbox", "--lost")
        assert "m6" not in tidelog(ana, "mesh", "outbox", "--lost")
        items = json.loads(tidelog(ana, "mesh", "outbox", "list", "--lost", "--json"))["items"]
        assert [item["client_message_id"] for item in items] == ["m5", "m3"]
        assert "tidelog_daemon_outbox_possibly_lost 2.0" in ana.ask_text("/v1/metrics")

        ana.ask("POST", "/v1/outbox/prune", {"confirm": True})
        assert requeue(ana, "m5")[0] == 200, "what can be sent again is not pruned"
        row = ana.outbox("m3")
        assert ana.ask("POST", "/v1/outbox/drop", {"id": row["id"]})[0] == 200
        assert (ana.health()["possibly_lost"], lost(ana)) == (0, [])


def test_a_daemon_that_missed_a_restore_is_told_of_both(tmp_path: Path) -> None:
    """The history it shares ends where the earlier of the two restores took the log back to."""
    with (
        RealMesh(tmp_path / "broker") as mesh,
        mesh.daemon("ana") as ana,
        mesh.daemon("zoe") as zoe,
    ):
        ana.start()
        send(ana, "m1")
        mesh.back_up(tmp_path / "monday.db")
        send(ana, "m2", "m3")
        ana.kill()
        mesh.restore(tmp_path / "monday.db")
        zoe.start()
        send(zoe, *(f"z{number}" for number in range(6)))
        mesh.back_up(tmp_path / "tuesday.db")
        mesh.restore(tmp_path / "tuesday.db")
        eventually(lambda: zoe.health()["connected"])
        ana.start()
        eventually(lambda: ana.health()["connected"])
        assert lost(ana) == ["m2", "m3"]
        assert lost(zoe) == [], "the second restore took nothing away"
