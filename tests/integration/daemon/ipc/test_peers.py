"""Who else is in the mesh, asked of the daemon (mesh 3.2)."""

import json
from pathlib import Path

import pytest

from support.cli.command import run as run_command
from support.daemon.no_uplink import NoUplink
from support.mesh.broker_process import RealMesh
from support.mesh.daemon_process import eventually
from support.mesh.local_daemon import BOB, running


async def test_they_are_listed_by_name(tmp_path: Path) -> None:
    """Each with its key."""
    async with running(tmp_path) as daemon, daemon.unix() as client:
        answer = await client.get("/v1/peers")
    assert answer.json() == {"items": [{"member_pubkey": BOB, "name": "bob"}]}


async def test_nobody_can_be_listed_without_a_broker(tmp_path: Path) -> None:
    """An empty list would be a lie."""
    async with running(tmp_path, uplink=NoUplink()) as daemon, daemon.unix() as client:
        answer = await client.get("/v1/peers")
    assert (answer.status_code, answer.json()["error"]) == (503, "broker_unreachable")


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_real_daemon_asks_a_real_broker(tmp_path: Path, is_revoked: bool) -> None:
    """Every member and nobody else: a revoked one is not there."""
    with (
        RealMesh(tmp_path / "broker") as mesh,
        mesh.daemon("zoe") as zoe,
        mesh.daemon("ana") as ana,
    ):
        if is_revoked:
            mesh.call("DELETE", f"/mesh/harbour/members/{zoe.public_hex}", None)
        ana.start()
        eventually(lambda: ana.health()["connected"])
        place = ("--data-dir", str(ana.data_dir))
        found = run_command("daemon", "peers", "--json", *place, check=True)
    expected = [{"member_pubkey": ana.public_hex, "name": "ana"}]
    if not is_revoked:
        expected.append({"member_pubkey": zoe.public_hex, "name": "zoe"})
    assert json.loads(found.stdout) == {"items": expected}
