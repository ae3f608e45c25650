"""A search index of one shard, made without Spark."""

from pathlib import Path

import msgspec

from tidelog.pipeline.search.index import FORMAT, Manifest, Shard, write_manifest
from tidelog.pipeline.search.shard import ShardWriter

DELETED = "(deleted)"
"""In place of a text: the message is not visible any more."""


def put(root: Path, before: Shard | None, *words: tuple[str, str | None]) -> Shard | None:
    """Write a shard: serials and their texts; None erases a message, DELETED only deletes it.

    Serials from `m5` on are in the channel `hall`, the others in `room`.
    """
    writer = ShardWriter(root, 0, before)
    for at, (serial, text) in enumerate(words, 1):
        writer.put(
            {
                "app_id": "app",
                "channel": "room" if serial < "m5" else "hall",
                "message_serial": serial,
                "name": "greeting",
                "data": None if text is None else msgspec.json.encode(text).decode(),
                "committed_id": at,
                "updated_at": 1000 * at,
                "is_searchable": text not in (None, DELETED),
                "is_erased": text is None,
            }
        )
    return writer.finish()


def publish(root: Path, shard: Shard, through: int = 9) -> None:
    """Make one shard the index."""
    write_manifest(root, Manifest(FORMAT, through, "t", (), 1, {"0": shard}))
