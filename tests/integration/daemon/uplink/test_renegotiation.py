"""A mesh whose settings change while a real daemon is connected (mesh 4.3, 6.4)."""

import json
import sqlite3
from pathlib import Path

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import SLUG

PATIENCE_S = 60.0


def negotiated_days(daemon: DaemonProcess) -> int:
    """The window that the daemon lives by, from its file."""
    path = daemon.data_dir / "outbox.db"
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        query = "SELECT value FROM daemon_state WHERE key = 'parameters'"
        found = connection.execute(query).fetchone()
    finally:
        connection.close()
    days: int = json.loads(found[0])["dedupe_retention_days"] if found else 0
    return days


def test_a_daemon_follows_a_change(tmp_path: Path) -> None:
    """It comes back, lives by the new window, and what it sent meanwhile arrives once."""
    with RealMesh(tmp_path / "broker") as mesh, mesh.daemon("ana") as ana:
        ana.start()
        eventually(lambda: negotiated_days(ana) == 365, PATIENCE_S)
        answer = mesh.call("PATCH", f"/mesh/{SLUG}", {"dedupe_retention_days": 8})
        assert answer["dedupe_retention_days"] == 8
        assert ana.send(f"topic:{TOPIC}", "meanwhile", "m-1")[0] == 202
        eventually(lambda: negotiated_days(ana) == 8, PATIENCE_S)
        eventually(lambda: ana.outbox("m-1")["status"] == "done", PATIENCE_S)
        assert mesh.messages() == {"m-1": 1}
        assert ana.is_running
