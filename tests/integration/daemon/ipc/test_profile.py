"""Who a daemon's member is, asked of the daemon (mesh 3.2)."""

import json
from pathlib import Path

from support.cli.command import run as run_command
from support.daemon.no_uplink import NoUplink
from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.daemon_process import eventually
from support.mesh.local_daemon import running


async def test_what_the_broker_knows_is_null_without_it(tmp_path: Path) -> None:
    """Mesh and key are known all the same."""
    async with running(tmp_path, uplink=NoUplink()) as daemon, daemon.unix() as client:
        answer = (await client.get("/v1/profile")).json()
    assert (answer["mesh"], answer["member_pubkey"]) == ("ops", "aa" * 32)
    assert (answer["name"], answer["subscriptions"]) == (None, None)


def test_a_real_daemon_knows_who_it_is(tmp_path: Path) -> None:
    """The name it joined with and its topics, not those of others, and the command shows them."""
    with RealMesh(tmp_path / "broker") as mesh, mesh.daemon("ana") as ana:
        mesh.as_member(ana.key, "POST", "/mesh/harbour/topics", {"topic": "another"})
        ana.start()
        eventually(lambda: ana.health()["connected"])
        command = ("daemon", "profile", "--data-dir", str(ana.data_dir))
        shown, plain = [
            run_command(*command, *more, check=True).stdout for more in (["--json"], [])
        ]
    assert json.loads(shown) == {
        "mesh": "harbour",
        "broker": mesh.server.url,
        "member_pubkey": ana.public_hex,
        "name": "ana",
        "subscriptions": [TOPIC],
        "connection_policy": "prefer_newest",
    }
    assert plain.startswith(f"ana\nkey {ana.public_hex}\n")
    assert plain.endswith(f"subscribed to {TOPIC}\n")
