"""No space left under a mesh daemon and inside its broker's transaction (FT-20)."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.mesh.broker_process import TOPIC, RealMesh, kinds
from support.mesh.caller import Caller, topic_send
from support.mesh.daemon_process import DaemonProcess, eventually
from support.mesh.invariants import check
from support.mesh.proxy import proxied
from support.mesh.scripted_broker import ScriptedBroker, running
from support.store.small_disk import SmallDisk, on_a_small_disk

DESTINATION = f"topic:{TOPIC}"
BODY = "x" * 60_000
"""Close to the largest, so that few sends fill a disk."""
NO_RESERVE = "[disk]\nreserved_bytes = 1\n[ipc]\nrate_burst = 100000\n"
"""The daemon stops accepting long before its disk is full, unless it is told not to."""


@contextmanager
def unreachable() -> Iterator[ScriptedBroker]:
    """A broker that is reachable only when a test says so."""
    with running(ScriptedBroker()) as broker:
        broker.call(broker.stop)
        yield broker


def with_little_room(work: Callable[[SmallDisk, DaemonProcess, ScriptedBroker], None]) -> None:
    """Do it with a daemon that has little room; its path is short enough for a Unix socket."""

    def whole(disk: SmallDisk) -> None:
        with (
            unreachable() as broker,
            DaemonProcess(broker.url, data_dir=disk.folder, settings=NO_RESERVE) as daemon,
        ):
            daemon.start()
            work(disk, daemon, broker)

    with tempfile.TemporaryDirectory(prefix="tdl-") as folder:
        on_a_small_disk(Path(folder), "20m", whole)


def check_full(daemon: DaemonProcess) -> None:
    """A new id is refused and has no row; a stored one has its answer; another body is told."""
    status, answer = daemon.send(DESTINATION, BODY, "new")
    assert (status, answer["error"]) == (507, "insufficient_storage")
    assert "new" not in daemon.rows()
    assert daemon.send(DESTINATION, BODY, "stored")[0] == 202
    assert daemon.send(DESTINATION, "other", "stored")[0] == 409


def check_space(daemon: DaemonProcess, broker: ScriptedBroker) -> None:
    """The refused id is taken now, and everything that was acknowledged is delivered once."""
    # It looks at its disk once a second.
    eventually(lambda: daemon.send(DESTINATION, BODY, "new")[0] == 202)
    broker.call(broker.start)
    eventually(lambda: set(daemon.statuses()) == {"done"})
    acknowledged = {answer["client_message_id"] for _, answer in daemon.answers}
    assert daemon.rows().keys() == acknowledged == broker.messages.keys()


def test_ft_20_no_space_at_the_insert() -> None:
    """The row is written and not committed when space ends: it is not there."""
    with unreachable() as broker, DaemonProcess(broker.url) as daemon:
        daemon.start("D1=enospc@2")
        daemon.send(DESTINATION, BODY, "stored")
        check_full(daemon)
        check_space(daemon, broker)


def test_ft_20_no_space_at_the_commit() -> None:
    """The WAL cannot take the row: 507 as long as the disk is full, and no row."""

    def work(disk: SmallDisk, daemon: DaemonProcess, broker: ScriptedBroker) -> None:
        daemon.send(DESTINATION, BODY, "stored")
        disk.fill()
        for _ in range(3):
            check_full(daemon)
        disk.empty()
        check_space(daemon, broker)

    with_little_room(work)


def test_ft_20_no_space_at_a_checkpoint() -> None:
    """A WAL that cannot be folded into the file grows until a send is refused; none is lost."""

    def work(disk: SmallDisk, daemon: DaemonProcess, broker: ScriptedBroker) -> None:
        daemon.send(DESTINATION, BODY, "stored")
        number = 0
        last: tuple[int, Any] = (202, None)
        while last[0] == 202 and number < 1000:
            number += 1
            last = daemon.send(DESTINATION, BODY, f"m{number:03}")
        assert (last[0], last[1]["error"]) == (507, "insufficient_storage")
        wal, file = ((disk.folder / name).stat().st_size for name in ("outbox.db-wal", "outbox.db"))
        assert wal > 4000 * 4096, "it has passed the size at which it is folded into the file"
        assert file < wal, "a part of it could be folded, and then the disk was full"
        assert f"m{number:03}" not in daemon.rows()
        check_full(daemon)
        disk.resize("96m")
        check_space(daemon, broker)

    with_little_room(work)


async def test_ft_20_no_space_inside_the_brokers_transaction(
    tmp_path: Path, store_location: str
) -> None:
    """Behind any insert: 503 and no row of any kind; a daemon keeps its row and tries again."""
    points = ("K3.dedupe", "K3.delivery", "K3.mention", "K3.history")
    faults = [f"{point}=enospc" for point in points]
    # The sixth send that gets so far is the daemon's: four are refused before, and one is not.
    faults.append("K3.message=enospc@6")
    with (
        RealMesh(tmp_path / "broker", store_location, faults=",".join(faults)) as mesh,
        proxied(mesh.server.url) as proxy,
        mesh.daemon("alice", broker_url=proxy.url) as alice,
        mesh.daemon("bob") as bob,
    ):
        bob.start()
        caller = await Caller.open(mesh, mesh.member("carol"))
        fields = topic_send("high", meta={"mentions": [bob.public_hex]})
        for point in points:
            refused = await caller.send("direct", fields)
            assert (refused["code"], refused["error"]) == (503, "unavailable"), point
            assert kinds(mesh) == [0] * 6, point
        assert (await caller.send("direct", fields))["code"] == 201
        await caller.close()
        alice.start()
        assert alice.send(DESTINATION, "low", "later")[0] == 202
        await asyncio.to_thread(check, mesh, alice, bob)
        assert proxy.answers["later"] == [503, 201]
        row = alice.rows()["later"]
        assert (row["attempts"], row["history_id"]) == (2, 2)
