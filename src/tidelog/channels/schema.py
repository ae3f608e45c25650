"""What channels adds to a store: the folders `sql` and `migrations` beside this file."""

from tidelog.store.schema import packaged

EXTENSION = packaged(
    "tidelog.channels",
    short_reads=(
        *("channels_channel", "channels_message", "channels_versions_after", "channels_exists"),
        *("channels_base", "channels_last_event"),
    ),
)
