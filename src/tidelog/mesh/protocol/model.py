"""What a mesh and a member are, and what the log and the delivery queue call them."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tidelog.mesh.protocol.negotiation import ConnectionPolicy

SURFACE = "mesh"
DAY_MS = 86_400_000

PUSH = "push"
WEBHOOK = "webhook"
"""Values of `channel` in the delivery queue."""


def stream_name(mesh_id: str) -> str:
    """The stream of a mesh's sends; `history_id` is its serial. It is also their dedupe scope."""
    return f"mesh/{mesh_id}"


def mesh_id_of(stream: str) -> str:
    """The mesh that a stream belongs to."""
    return stream.partition("/")[2]


def queue_recipient(queue_id: str) -> str:
    """Who a message to a queue waits for in the delivery queue; no public key looks like it."""
    return f"queue:{queue_id}"


class Mesh(Struct, frozen=True):
    """A mesh and its settings, as `mesh_by_id` and `mesh_by_slug` return them."""

    id: str
    slug: str
    dedupe_retention_mode: str
    dedupe_retention_days: int
    message_retention_days: int | None
    echo_to_sender: int
    rate_limit: int
    rate_window_ms: int
    shortest_window_days: int | None = None
    """The shortest time its ids were ever kept; None if they have never expired."""
    clone_concurrency_policy: ConnectionPolicy = "prefer_newest"
    """What becomes of two daemons that are connected with one key (mesh 9.6)."""


class Member(Struct, frozen=True, array_like=True):
    """A member of a mesh, as `mesh_member` returns it."""

    id: str
    """Stays the same when the key is exchanged."""
    name: str
    public_hex: str
    """Its address."""


def member_of(rows: Sequence[tuple[Any, ...]], public_hex: str) -> Member | None:
    """Who a key belongs to; None if it is nobody's, or no longer anybody's."""
    if not rows or rows[0][2] is not None:
        return None
    member_id, name, _ = rows[0]
    return Member(member_id, name, public_hex)
