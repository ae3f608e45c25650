"""The decisions of sync's administration: settings, snapshots, the archive."""

from msgspec import Struct

from tidelog.log.decision import Accept, Names, RowChange, View
from tidelog.log.retention import empty_bodies
from tidelog.sync.decide.rules import STREAM
from tidelog.sync.protocol.tree import snapshot_digest


class Setting(Struct, frozen=True):
    """Store one number of the sync surface durably, such as the model version."""

    name: str
    value: int

    def names(self) -> Names:
        """What `decide` reads."""
        return Names()

    def decide(self, view: View) -> Accept:
        """Always accepted: it appends nothing."""
        del view
        return Accept(self.value, rows=(RowChange("sync_put_setting", (self.name, self.value)),))


class PutSnapshot(Struct, frozen=True):
    """Store the state of a partition."""

    partition: str
    state: bytes
    committed_id: int
    model_version: int

    def decide(self, view: View) -> Accept:
        """Always accepted: the state was checked before."""
        values = (
            self.partition,
            self.state,
            self.committed_id,
            view.now_ms,
            self.model_version,
            snapshot_digest(self.state),
        )
        return Accept(None, rows=(RowChange("sync_put_snapshot", values),))


class Archive(Struct, frozen=True):
    """Move the bodies of events to where sync still reads them (sync D57)."""

    events: tuple[tuple[int, int], ...]
    """(committed_id, stream_serial) of each."""

    def decide(self, view: View) -> Accept:
        """The caller has seen that every partition has a snapshot; snapshots never go back."""
        del view
        return Accept(
            len(self.events),
            rows=tuple(RowChange("sync_archive", (at,)) for at, _ in self.events)
            + tuple(empty_bodies(STREAM, serial - 1, serial) for _, serial in self.events),
        )
