"""That a little of the tables is what the log makes, told without Spark.

A part of each table is made again with what a build makes it with, and compared with what it holds.
Whatever is not plainly the same is left to Spark, which says what is wrong with it; so is what lies
in tables that are compared with relations of meshes, unless there is nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Expression, field

from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.made_tables import EXPIRY_SLACK_MS, sample_of
from tidelog.pipeline.checks.spool import HIGHEST, LOWEST
from tidelog.pipeline.checks.view import View, intervals_of
from tidelog.pipeline.fill.row_files import ROWS
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake.replacing import Gone, common, files_with, others
from tidelog.pipeline.source.relations import typed
from tidelog.pipeline.source.spark_source import id_ranges
from tidelog.pipeline.tables import BY_NAME
from tidelog.pipeline.transforms import activity_rows
from tidelog.pipeline.transforms.message_fold import (
    DELETED,
    KEY,
    PURGED,
    READ,
    VISIBLE,
    combined,
    messages_of,
    steps_of_versions,
)
from tidelog.pipeline.transforms.stored_rows import mirrored

CHUNK_ROWS = 20_000
"""Entries whose rows are compared at once."""

MOST_BYTES = 256 * 1024 * 1024
"""What is held in memory of the wanted messages, or of their versions; of more, Spark looks."""


def is_little(view: View) -> bool:
    """Whether what is wanted may be looked at here."""
    return view.only is None and not view.evidence.log_files and not view.forgets


def examined_here(view: View, name: str) -> int | None:
    """How many rows of a table are plainly as they should be; None if Spark has to look."""
    look = _LOOKS.get(name)
    if look is None or not is_little(view):
        return None
    try:
        return look(view, name)
    except pa.ArrowException:  # files of another program, in types of its own
        return None


def _has_none(view: View, name: str, after: int, through: int) -> bool:
    return not view.lake.between(name, ["committed_id"], after, through).num_rows


def _has_none_outside(view: View, name: str) -> bool:
    """Whether a table has no row beyond what it says it has; nor before the log, if all counts."""
    end = max(view.lake.through(name), view.extent.new.through)
    if not _has_none(view, name, end, HIGHEST):
        return False
    return not view.is_whole or _has_none(view, name, LOWEST, 0)


def _rows_of_entries(view: View, name: str) -> int | None:
    """A table whose rows are each made of one entry."""
    made_by, schema, examined = ROWS[name], arrow_schema(BY_NAME[name]), 0
    if not _has_none_outside(view, name):
        return None
    for chunk in _chunks(view.ranges):
        through = min(chunk.through, view.lake.through(name))
        made = [schema.empty_table()]
        columns = dict.fromkeys((*made_by.columns, "surface"))
        for entries in view.lake.entries_between([*columns], chunk.after, through):
            is_mine = pc.equal(entries["surface"], made_by.surface)
            mine = entries.filter(is_mine) if made_by.surface else entries
            made.append(made_by.make(mine.select(made_by.columns)))
        held = view.lake.between(name, schema.names, chunk.after, chunk.through)
        if not _is_same(pa.concat_tables(made), held, ["committed_id"]):
            return None
        examined += held.num_rows
    return examined if _is_all(view, name, examined) else None


def _is_all(view: View, name: str, examined: int) -> bool:
    """Whether no wanted row was passed over: after what all tables have, or without a position."""
    return not view.is_whole or examined == view.lake.rows(name)


def _chunks(ranges: Sequence[Range]) -> Iterator[Range]:
    for each in ranges:
        for chunk in id_ranges(each.after, each.through, CHUNK_ROWS):
            yield Range(chunk.after, chunk.through)


def _is_same(made: pa.Table, held: pa.Table, key: Sequence[str]) -> bool:
    """Whether two tables have the same rows; no two of them share a key."""
    if made.num_rows != held.num_rows:
        return False
    order = [(name, "ascending") for name in key]
    one, other = (table.sort_by(order).combine_chunks() for table in (made, held))
    return bool(one.equals(other.cast(one.schema)))


def _messages(view: View, name: str) -> int | None:
    """Of all versions of the wanted messages, wherever they are."""
    versions, held = _versions(view), _held_messages(view)
    if versions is None or held is None:
        return None
    made = messages_of(combined(steps_of_versions(versions)))
    there = view.evidence.spooled("channel_messages").scan().to_table(["message"])["message"]
    # What was purged stays so; what is not may be purged since.
    is_gone = pc.and_(
        pc.equal(held["state"], PURGED), pc.invert(pc.is_in(held["first_committed_id"], there))
    )
    before = pc.if_else(pc.equal(held["action"], "delete"), DELETED, VISIBLE)
    state = pc.if_else(is_gone, before, held["state"])
    number = held.column_names.index("state")
    told = held.set_column(number, held.schema.field("state"), state)
    return held.num_rows if _is_same(made, told, ["first_committed_id", *KEY]) else None


def _names(view: View) -> pa.Table:
    columns = zip(*view.messages, strict=True) if view.messages else ((), (), ())
    return pa.table({name: pa.array(c, pa.string()) for name, c in zip(KEY, columns, strict=True)})


def _versions(view: View) -> pa.Table | None:
    from pyarrow.dataset import dataset

    lake = view.lake
    files, wanted = lake.files("message_version"), field("committed_id") <= lake.through("message")
    if not view.is_whole:
        serials = _names(view)["message_serial"]
        files = files_with(files, "message_serial", serials.to_pylist())
        wanted &= field("message_serial").isin(serials.combine_chunks())
    schema = pa.schema([arrow_schema(BY_NAME["message_version"]).field(each) for each in READ])
    found, size = [schema.empty_table()], 0
    if files:
        for batch in dataset(files, format="parquet").to_batches(
            columns=list(READ), filter=wanted, batch_readahead=2, fragment_readahead=1
        ):
            if batch.num_rows:
                found.append(pa.Table.from_batches([batch]).cast(schema))
                size += batch.nbytes
                if size > MOST_BYTES:
                    return None
    rows = pa.concat_tables(found)
    return rows if view.is_whole else common(rows, _names(view))


def _held_messages(view: View) -> pa.Table | None:
    """The rows of the wanted messages; None if others say so too, or if they are too large."""
    rows = view.lake.dataset("message")
    assert rows is not None  # noqa: S101 - it is built
    schema = arrow_schema(BY_NAME["message"])
    if view.is_whole:
        return rows.to_table(schema.names).cast(schema)
    end = max(view.lake.through("message"), view.extent.new.through)
    said = field("last_committed_id") > end
    for column in ("first_committed_id", "last_committed_id"):
        said |= within_any(column, view.ranges)
    wanted = said | within_any("first_committed_id", intervals_of(begins_of(view)))
    names = _names(view)
    if others(rows.to_table(list(KEY), filter=said), names).num_rows:
        return None
    mine, size = [schema.empty_table()], 0
    for batch in rows.to_batches(
        columns=schema.names, filter=wanted, batch_readahead=2, fragment_readahead=1
    ):
        found = common(pa.Table.from_batches([batch]).cast(schema), names)
        mine.append(found)
        size += found.nbytes
        if size > MOST_BYTES:
            return None
    return pa.concat_tables(mine)


def begins_of(view: View) -> list[int]:
    """Where the wanted messages begin."""
    return [int(serial[-20:]) for _, _, serial in view.messages if serial[-20:].isdecimal()]


def within_any(column: str, ranges: Sequence[Range]) -> Expression:
    """Whether a position is in one of some ranges."""
    from pyarrow.dataset import scalar

    found = scalar(value=False)
    for each in ranges:
        found |= (field(column) > each.after) & (field(column) <= each.through)
    return found


def _activity(view: View, name: str) -> int | None:
    """The minutes of the wanted entries, of all entries in them."""
    lake, schema = view.lake, arrow_schema(BY_NAME[name])
    through, stretches = lake.through(name), _stretches(view)
    parts = [
        activity_rows.counted(entries)
        for begin, end in stretches
        for entries in lake.entries_between(
            activity_rows.ENTRY, 0, through, since_ms=begin, until_ms=end
        )
    ]
    rows = lake.dataset(name)
    assert rows is not None  # noqa: S101 - it is built
    if view.is_whole:
        held = rows.to_table(schema.names)
    else:
        held = pa.concat_tables(
            [
                schema.empty_table(),
                *(
                    rows.to_table(schema.names, filter=_in_stretch(each)).cast(schema)
                    for each in stretches
                ),
            ]
        )
    is_same = _is_same(activity_rows.activity_of(parts), held.cast(schema), ["minute", "stream"])
    return held.num_rows if is_same else None


def _in_stretch(stretch: tuple[int, int]) -> Expression:
    begin, end = (datetime.fromtimestamp(each / 1000, UTC) for each in stretch)
    kind = pa.timestamp("us", "UTC")
    minute = field("minute")
    return (minute >= pa.scalar(begin, kind)) & (minute < pa.scalar(end, kind))


def _stretches(view: View) -> list[tuple[int, int]]:
    """Begin and end, in milliseconds, of the wanted minutes; none is in two of them."""
    if view.is_whole:
        return [(0, 2**53)]
    found: list[tuple[int, int]] = []
    for begin, end in sorted(view.minutes):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _keys(view: View, name: str) -> int | None:
    """Keys come with entries; they go when they expire, those of channels with their version."""
    asked, stored = _asked_keys(view), _stored_keys(view)
    if stored is None:
        return None
    if not view.is_whole:
        for page in view.store.named("check_keys_named", sorted(asked - stored.keys())):
            stored |= _by_key(mirrored(name, typed(name, page)))
    held_rows = _held_keys(view, asked | stored.keys())
    held = _by_key(held_rows)
    if len(held) < held_rows.num_rows:
        return None
    through = min(view.lake.through(name), view.lake.through("log"))
    at_ms = view.committed_at(through)
    # Read after the keys: a version and its key go together.
    there = view.evidence.spooled("channel_versions").scan().to_table(["committed_id"])
    versions = set(there["committed_id"].to_pylist())
    soon = view.now_ms + EXPIRY_SLACK_MS

    def is_later(row: Row) -> bool:
        if row["committed_id"] is None:
            return _ms(row["first_seen_at"]) >= at_ms
        return bool(row["committed_id"] > through)

    def has_ended(row: Row) -> bool:
        is_over = row["expires_at"] is not None and _ms(row["expires_at"]) < soon
        of_channels = row["scope"].startswith("channels/")
        return is_over or (of_channels and row["committed_id"] not in versions)

    is_right = all(
        (key not in held and is_later(row)) or (key in held and row == held[key])
        for key, row in stored.items()
        if key not in held or not has_ended(held[key])
    ) and all(has_ended(row) for key, row in held.items() if key not in stored)
    return len(held) if is_right else None


Row = dict[str, Any]


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _by_key(rows: pa.Table) -> dict[tuple[str, str], Row]:
    return {(row["scope"], row["key"]): row for row in rows.to_pylist()}


def _stored_keys(view: View) -> dict[tuple[str, str], Row] | None:
    spool = view.evidence.spooled("keys")
    if spool.files:
        return None
    return _by_key(mirrored("dedupe", typed("dedupe", spool.scan().to_table())))


def _asked_keys(view: View) -> set[tuple[str, str]]:
    """Keys of the table that are looked at: those of the wanted entries, and some by chance."""
    if view.is_whole:
        return set()
    columns = ("scope", "key")
    asked = {(scope, key) for scope, key in sample_of(view, "dedupe", columns)}
    for each in view.ranges:
        known = view.lake.between("dedupe", columns, *each)
        asked.update(zip(*(known[column].to_pylist() for column in columns), strict=True))
    return asked


def _held_keys(view: View, names: set[tuple[str, str]]) -> pa.Table:
    if view.is_whole:
        return view.lake.arrow("dedupe")
    rows = [{"scope": scope, "key": key} for scope, key in sorted(names)]
    schema = pa.schema([("scope", pa.string()), ("key", pa.string())])
    return view.lake.named("dedupe", Gone(pa.Table.from_pylist(rows, schema)))


def _none_of(surface: str) -> Callable[[View, str], int | None]:
    """A table that is made of entries of a surface, if there is no such entry."""

    def look(view: View, name: str) -> int | None:
        if not _has_none_outside(view, name):
            return None
        for each in view.ranges:
            if view.lake.has_entry(surface, *each) or not _has_none(view, name, *each):
                return None
        return 0 if _is_all(view, name, 0) else None

    return look


def _empty(*relations: str, tables: Iterable[str] = ()) -> Callable[[View, str], int | None]:
    """A table without rows, if there is nothing that it could be made of."""

    def look(view: View, name: str) -> int | None:
        has_rows = any(view.lake.rows(each) for each in (name, *tables))
        if has_rows or any(view.evidence.spooled(each).rows for each in relations):
            return None
        return 0

    return look


_LOOKS: dict[str, Callable[[View, str], int | None]] = {
    **dict.fromkeys(ROWS, _rows_of_entries),
    "message": _messages,
    "activity": _activity,
    "event": _none_of("sync"),
    "send": _none_of("mesh"),
    "delivery": _empty("deliveries"),
    "mention": _empty("mentions"),
    "dedupe": _keys,
}
