"""Entries of channels as rows of `message_version`, over Arrow tables."""

from typing import TYPE_CHECKING

from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

ENTRY = (
    *("committed_id", "stream", "stream_serial", "kind", "entity", "actor", "committed_at"),
    "body",
)
"""The columns of `log` that a version is made of."""

VERSION_DDL = ", ".join(f"{each.name} {each.kind}" for each in BY_NAME["message_version"].columns)


def versions_of(entries: "pa.Table") -> "pa.Table":
    """The versions that some entries of channels are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.pipeline.frames import arrow_schema
    from tidelog.pipeline.transforms.bodies import read_bodies

    def part_of_stream(number: int) -> "Callable[[pa.Array], pa.Array]":
        return lambda streams: pc.list_element(pc.split_pattern(streams, "/"), number)

    def last_word(kinds: "pa.Array") -> "pa.Array":
        return pc.replace_substring_regex(kinds, r"^.*[.]", "")

    schema = arrow_schema(BY_NAME["message_version"])
    columns = {
        **read_bodies(entries["body"].to_pylist()),
        "committed_id": entries["committed_id"],
        "app_id": _by_value(entries["stream"], part_of_stream(1)),
        "channel": _by_value(entries["stream"], part_of_stream(2)),
        "message_serial": entries["entity"],
        "delivery_serial": entries["stream_serial"],
        "action": _by_value(entries["kind"], last_word),
        "actor": entries["actor"],
        "committed_at": entries["committed_at"].cast(pa.timestamp("ms", "UTC")),
    }
    return pa.table({name: columns[name] for name in schema.names}).cast(schema)


def _by_value(column: "pa.ChunkedArray", change: "Callable[[pa.Array], pa.Array]") -> "pa.Array":
    """A column with few different values, each of which is changed once."""
    encoded = column.combine_chunks().dictionary_encode()
    return change(encoded.dictionary).take(encoded.indices)
