"""The machine of a mesh daemon loses its power right after a 202 (FT-22)."""

import shutil
from pathlib import Path

import pytest

from support.daemon import synced_disk
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.scripted_broker import ScriptedBroker, running

SENDS = 20


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_ft_22_power_loss_behind_a_202(synchronous: str, tmp_path: Path) -> None:
    """A row is on the disk when its 202 is read; with synchronous=NORMAL it is not."""
    kept = tmp_path / "kept"
    options = ("--normal",) if synchronous == "normal" else ()
    program = (str(Path(synced_disk.__file__)), str(kept), *options)
    with (
        running(ScriptedBroker()) as broker,
        DaemonProcess(broker.url, program=program) as daemon,
    ):
        broker.call(broker.stop)
        daemon.may_lose = synchronous == "normal"
        daemon.start()
        ids = {f"m{number}" for number in range(SENDS)}
        for message_id in sorted(ids):
            assert daemon.send("topic:tides", message_id, message_id)[0] == 202
        daemon.kill()
        assert daemon.rows().keys() == ids, "without a loss of power everything is there"
        after_loss(daemon, kept)
        daemon.start()
        if synchronous == "normal":
            assert len(daemon.rows()) < SENDS, "the disk of this test does not forget"
            return
        assert daemon.rows().keys() == ids
        broker.call(broker.start)
        eventually(lambda: set(daemon.statuses()) == {"done"})
        assert broker.messages.keys() == ids


def after_loss(daemon: DaemonProcess, kept: Path) -> None:
    """Leave in the daemon's directory what was synced of its files, and nothing else of them."""
    for name in ("outbox.db", "inbox.db"):
        for file in daemon.data_dir.glob(f"{name}*"):
            file.unlink()
    for file in kept.iterdir():
        shutil.copyfile(file, daemon.data_dir / file.name)
