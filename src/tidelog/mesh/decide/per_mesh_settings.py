"""How the settings of one mesh change (mesh 6.3, 6.4, 9.4)."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.model import Mesh
from tidelog.mesh.protocol.per_mesh_settings import changed, shown
from tidelog.mesh.protocol.replies import Reply
from tidelog.store.rows import Becomes


class ChangeMesh(Struct, frozen=True):
    """Change settings; ids that are stored keep the time they were given."""

    mesh: Mesh
    """As the caller knows it; what is stored counts."""
    fields: Mapping[str, Any]
    """Checked before, by `changed`."""

    def names(self) -> Names:
        """What `decide` reads."""
        mesh = self.mesh
        return Names(rows=(("mesh_by_id", (mesh.id,)), ("mesh_by_slug", (mesh.slug,))))

    def decide(self, view: View) -> Accept | Refuse:
        """Idempotent; two changes of different settings at once both count."""
        found = view.rows("mesh_by_id", (self.mesh.id,))
        if not found:
            return Refuse(replies.mesh_not_found())
        before = Mesh(*found[0])
        after = changed(before, self.fields)
        reply = Reply(200, shown(after))
        if after == before:
            return Refuse(reply)
        values = (
            after.id,
            after.dedupe_retention_mode,
            after.dedupe_retention_days,
            after.message_retention_days,
            after.echo_to_sender,
            after.rate_limit,
            after.rate_window_ms,
            after.shortest_window_days,
            after.clone_concurrency_policy,
        )
        rows = (structs.astuple(after),)
        return Accept(
            reply,
            rows=(
                RowChange("mesh_change", values, Becomes("mesh_by_id", (after.id,), rows)),
                RowChange("mesh_change", values, Becomes("mesh_by_slug", (after.slug,), rows)),
            ),
        )
