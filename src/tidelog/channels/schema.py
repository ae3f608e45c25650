"""What channels adds to a store: the folders `sql` and `migrations` beside this file."""

from tidelog.store.grouping import Touch
from tidelog.store.schema import packaged

EXTENSION = packaged(
    "tidelog.channels",
    short_reads=(
        *("channels_channel", "channels_message", "channels_versions_after", "channels_exists"),
        *("channels_base", "channels_last_event"),
    ),
    touches={
        "channels_note_history": Touch("channels_channel", slice(0, 1), may_repeat=True),
        "channels_add_message": Touch("channels_message", slice(0, 1)),
        "channels_add_version": Touch("channels_version", slice(0, 2)),
        "channels_fold": Touch("channels_message", slice(0, 1), may_repeat=True),
    },
)
