"""What sync adds to a store: the folders `sql` and `migrations` beside this file."""

from tidelog.store.grouping import Touch
from tidelog.store.schema import packaged

EXTENSION = packaged(
    "tidelog.sync",
    short_reads=("sync_last_event", "sync_setting"),
    touches={"sync_add_partition": Touch("sync_event_partitions", slice(0, 2))},
)
