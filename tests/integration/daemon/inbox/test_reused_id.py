"""An id that the broker has forgotten, used by another member (mesh 8.1)."""

from pathlib import Path

from support.mesh.broker_process import RealMesh
from support.mesh.daemon_process import eventually

SWEEPING = {"TIDELOG_MESH_RETENTION_INTERVAL_SECONDS": "0.05"}
BEYOND_THE_WINDOW_HOURS = 8 * 24


def test_another_members_message_under_a_used_id_arrives(tmp_path: Path) -> None:
    """The broker accepts it after its window has passed, so the receiver must not drop it."""
    with (
        RealMesh(tmp_path / "broker", environment=SWEEPING, dedupe_retention_days=7) as mesh,
        mesh.daemon("ana") as ana,
        mesh.daemon("zoe") as zoe,
        mesh.daemon("bob") as bob,
    ):
        for daemon in (ana, zoe, bob):
            daemon.start()
        assert ana.send(f"dm:{bob.public_hex}", "the tide is in", "tide-1")[0] == 202
        eventually(lambda: len(bob.inbox()) == 1 and mesh.undelivered() == 0)
        mesh.shift_clock(BEYOND_THE_WINDOW_HOURS)
        eventually(lambda: "tide-1" not in mesh.ids())
        assert zoe.send(f"dm:{bob.public_hex}", "the tide is out", "tide-1")[0] == 202
        eventually(lambda: zoe.outbox("tide-1")["status"] == "done" and mesh.undelivered() == 0)
        received = [(item["sender_name"], item["body"]) for item in bob.inbox()]
        assert received == [("ana", "the tide is in"), ("zoe", "the tide is out")]
