"""The invariants G1 to G8 of mesh 16.2, read from the databases when a case has come to rest.

`outbox.db` and `inbox.db` of every daemon and the broker's store on either engine are read as
files and tables; of what the processes say only their recorded answers and events are used, since
those are what the invariants are about.
"""

from collections import Counter
from collections.abc import Sequence

from support.mesh.broker_process import HistoryReader, RealMesh
from support.mesh.daemon_process import DaemonProcess, eventually

LOST = ("dead", "aborted")
"""Of a row of which nobody claims that the broker has its message."""


def at_rest(mesh: RealMesh, *daemons: DaemonProcess, timeout_seconds: float = 60.0) -> None:
    """Wait until no row waits and every delivery to these daemons' members is acknowledged."""
    members = [daemon.public_hex for daemon in daemons]

    def rests() -> bool:
        if any({"pending", "inflight"} & set(daemon.statuses()) for daemon in daemons):
            return False
        unfinished = mesh.rows(
            "SELECT recipient_pubkey FROM {delivery_queue} WHERE status IN ('pending', 'claimed')"
        )
        return not any(recipient in members for (recipient,) in unfinished)

    eventually(rests, timeout_seconds)


def check(mesh: RealMesh, *daemons: DaemonProcess) -> None:
    """All eight; the daemons are every one that ever sent or received something."""
    at_rest(mesh, *daemons)
    stored = mesh.ids()
    messages = mesh.messages()
    for daemon in daemons:
        check_sender(daemon, stored, messages)
        check_receiver(mesh, daemon)
    places = {
        message for (message,) in mesh.rows("SELECT broker_message_id FROM {message_history}")
    }
    for answer in mesh.accepted:
        assert answer["broker_message_id"] in places, f"G7: the store lacks {answer}"
    check_store(mesh, messages)


def check_sender(daemon: DaemonProcess, stored: dict[str, str], messages: Counter[str]) -> None:
    """G1, G4 and G7 of an outbox, against what the broker has stored."""
    daemon.check_files()
    rows = daemon.rows()
    for _, answer in daemon.answers:
        message_id = answer["client_message_id"]
        row = rows[message_id]
        if row["status"] not in LOST:
            assert row["status"] == "done", f"G1: {message_id} is {row['status']}"
            assert messages[message_id] == 1, f"G1: {messages[message_id]} messages of {message_id}"
            assert row["broker_message_id"] == stored[message_id], f"G1: {message_id}"


def check_receiver(mesh: RealMesh, daemon: DaemonProcess) -> None:
    """G5 and G6 of an inbox and of the live events of its daemon."""
    received = daemon.received()
    known = {message for (message,) in mesh.rows("SELECT broker_message_id FROM {message_history}")}
    seen = {row["broker_message_id"] for row in received}
    seen |= {event["broker_message_id"] for _, event in daemon.events}
    assert seen <= known, f"G6: the broker does not know {seen - known}"
    [*acknowledged] = mesh.rows(
        "SELECT broker_message_id FROM {delivery_queue}"
        f" WHERE status = 'delivered' AND recipient_pubkey = '{daemon.public_hex}'"
    )
    lost = {message for (message,) in acknowledged} - {row["broker_message_id"] for row in received}
    assert not lost, f"G5: acknowledged and not in the inbox: {lost}"


def check_store(mesh: RealMesh, messages: Counter[str] | None = None) -> None:
    """G2, G3 and G8 of the broker's store."""
    twice = [key for key, count in (messages or mesh.messages()).items() if count > 1]
    if twice:  # one id may be used in several meshes
        per_mesh = mesh.rows(
            "SELECT mesh_id, client_message_id FROM {topic_message}"
            " UNION ALL SELECT mesh_id, client_message_id FROM {message_queue}"
        )
        counts = Counter(per_mesh)
        assert set(counts.values()) == {1}, f"G2: {counts.most_common(3)}"
    assert mesh.findings() == [], "G3"
    places: dict[str, list[int]] = {}
    for mesh_id, place in mesh.rows(
        "SELECT mesh_id, history_id FROM {message_history} ORDER BY mesh_id, history_id"
    ):
        places.setdefault(str(mesh_id), []).append(place)
    for mesh_id, last in mesh.rows("SELECT id, history_seq FROM {mesh}"):
        found = places.get(str(mesh_id), [])
        assert_dense(found, last)
    for slug, reader in mesh.readers.items():
        check_reader(mesh, slug, reader)


def assert_dense(found: Sequence[int], last: int) -> None:
    """G8: no gap above what was pruned, and the counter is the last number."""
    first = found[0] if found else last + 1
    assert list(found) == list(range(first, last + 1)), f"G8: {found} up to {last}"


def check_reader(mesh: RealMesh, slug: str, reader: HistoryReader) -> None:
    """G8: who followed `history_id > n` the whole time has every topic message once, in order."""
    reader.look()
    seen = [item["broker_message_id"] for item in reader.seen if item["topic"] is not None]
    stored = mesh.rows(
        "SELECT h.broker_message_id FROM {message_history} h JOIN {mesh} m ON m.id = h.mesh_id"
        f" WHERE m.slug = '{slug}' AND h.destination_kind = 'topic' ORDER BY h.history_id"
    )
    pruned = {
        message for (message,) in mesh.rows("SELECT broker_message_id FROM {message_tombstone}")
    }
    due = [message for (message,) in stored if message in seen or message not in pruned]
    assert seen == due, "G8: the reader missed or repeated something"
