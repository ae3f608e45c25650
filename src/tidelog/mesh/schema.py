"""What mesh adds to a store: the folders `sql` and `migrations` beside this file."""

from tidelog.base.faultpoint import FaultPoint
from tidelog.store.grouping import Touch
from tidelog.store.schema import packaged

_DELIVERY = Touch("mesh_delivery_queue", slice(0, 4))

EXTENSION = packaged(
    "tidelog.mesh",
    short_reads=(
        *("mesh_by_slug", "mesh_member", "mesh_known_ids", "mesh_take_shares", "mesh_use_tokens"),
        *("mesh_waiting", "mesh_recipients", "mesh_entry"),
    ),
    kept_reads=("mesh_by_id", "mesh_member", "mesh_topic", "mesh_webhooks"),
    touches={
        "mesh_add_delivery": _DELIVERY,
        "mesh_claim_delivery": _DELIVERY,
        "mesh_finish_delivery": _DELIVERY,
        "mesh_add_mention": Touch("mesh_mention_index", slice(0, 2)),
    },
    fault_points={
        "mesh_add_delivery": FaultPoint.DELIVERIES_WRITTEN,
        "mesh_add_mention": FaultPoint.MENTIONS_WRITTEN,
    },
)
