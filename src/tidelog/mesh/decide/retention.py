"""What goes when its time is over: messages, ids and finished deliveries (mesh 6.4)."""

from typing import NamedTuple

from msgspec import Struct

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.log.retention import empty_bodies
from tidelog.mesh.decide.claims import DeliveryKey
from tidelog.mesh.decide.webhook_posts import webhook_key
from tidelog.mesh.protocol.model import Mesh, stream_name

REASON = "retention"
"""Of the tombstones written here."""


class Old(NamedTuple):
    """A message that is too old."""

    committed_id: int
    history_id: int
    broker_message_id: str
    client_message_id: str


class Expire(Struct, frozen=True):
    """Empty messages that are next to each other in the history of a mesh."""

    mesh_id: str
    messages: tuple[Old, ...]

    def names(self) -> Names:
        """The ids: one may belong to a younger message by now, whose content stays."""
        stream = stream_name(self.mesh_id)
        return Names(dedupe=tuple({(stream, old.client_message_id) for old in self.messages}))

    def decide(self, view: View) -> Accept:
        """Tombstone, id, content and deliveries at once; idempotent, for several nodes do it."""
        stream, now = stream_name(self.mesh_id), view.now_ms
        rows = [
            RowChange("mesh_add_tombstone", (old.broker_message_id, self.mesh_id, now, REASON))
            for old in self.messages
        ]
        rows += [
            RowChange("mesh_expire_deliveries", (old.broker_message_id,)) for old in self.messages
        ]
        rows += [empty_bodies(stream, old.history_id - 1, old.history_id) for old in self.messages]
        gone = []
        for old in self.messages:
            known = view.dedupe(stream, old.client_message_id)
            if known is not None and known.committed_id == old.committed_id:
                gone.append((stream, old.client_message_id))
        rows.append(RowChange("note_retention", (stream, self.messages[-1].history_id)))
        return Accept(len(self.messages), rows=tuple(rows), unavailable=tuple(gone))


class Forget(Struct, frozen=True):
    """Remove ids whose time is over."""

    keys: tuple[tuple[str, str, str], ...]
    """Scope, key and `broker_message_id` of each."""

    def names(self) -> Names:
        """Each may have been used again, or never ended, since it was found."""
        return Names(
            dedupe=tuple((scope, key) for scope, key, _ in self.keys),
            rows=tuple(("mesh_unfinished", (message,)) for _, _, message in self.keys),
        )

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`; an id stays while somebody still waits for its message."""
        ended = []
        for scope, key, message in self.keys:
            row = view.dedupe(scope, key)
            if (
                row is not None
                and row.expires_at is not None
                and row.expires_at < view.now_ms
                and not view.rows("mesh_unfinished", (message,))
            ):
                ended.append((scope, key))
        return Accept(len(ended), forget=tuple(ended)) if ended else Refuse(0)


class Bury(Struct, frozen=True):
    """Deliveries to endpoints that are gone will not happen."""

    deliveries: tuple[tuple[str, str], ...]
    """`broker_message_id` and `endpoint_id` of each."""

    def names(self) -> Names:
        """Nothing: an endpoint that is gone does not come back."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(
            len(self.deliveries),
            rows=tuple(
                RowChange("mesh_bury_delivery", (*webhook_key(*delivery), "endpoint_removed"))
                for delivery in self.deliveries
            ),
        )


class Sweep(Struct, frozen=True):
    """Rows of finished deliveries go."""

    keys: tuple[DeliveryKey, ...]

    def names(self) -> Names:
        """Nothing: what is finished stays finished."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(
            len(self.keys), rows=tuple(RowChange("mesh_remove_delivery", key) for key in self.keys)
        )


def is_misconfigured(mesh: Mesh) -> bool:
    """Whether a mesh keeps messages for longer than the ids that protect them from repetition.

    One that is not told how long to keep messages was not configured, and so not wrongly.
    """
    return (
        mesh.dedupe_retention_mode != "permanent"
        and mesh.message_retention_days is not None
        and mesh.dedupe_retention_days < mesh.message_retention_days
    )
