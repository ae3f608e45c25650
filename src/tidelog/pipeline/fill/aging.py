"""Retention by age: content that is too old leaves every table; places, times and digests stay.

Times never decrease along the log, so what is too old is everything up to one position, the
horizon. A row before it is as if its body had been pruned before it was ingested, so a table that
was emptied in place equals one that is built from the emptied log. The state of a sync partition is
what the application has now, whatever its age: before its events are emptied, the state that they
made is put aside, and later events continue it.

The horizon moves at midnight UTC, so a file in which it lies is written again once a day and not
with every build. Files that lie behind it already are not touched, and what comes after it is not
read. Each table notes the horizon in the commit that empties it: whatever dies in between, the next
build sees which tables are behind, and goes on.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from tidelog.pipeline.fill.sync_states import states_of, tellable_events
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake.horizon import AGING, BASE, begun_horizon, horizon
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import AGED
from tidelog.pipeline.lake.replacing import Gone, Span, common, span_of
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.tables import BY_NAME, TABLES_WITH_CONTENT, Table
from tidelog.pipeline.transforms.message_fold import (
    KEY,
    PURGED,
    READ,
    combined,
    messages_of,
    steps_of_versions,
)

if TYPE_CHECKING:
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.transforms.snapshots import ModelSource

_DAY_MS = 86_400_000

_BATCH_ROWS = 4096
"""Rows that are read at once: few, since the content of an entry may be large."""

_MESSAGES_AT_ONCE = 50_000
"""Messages that are emptied at once, unless a single file has more."""


class Aged(NamedTuple):
    """What became of content that is too old."""

    through: int
    """The horizon now: entries up to it have no content."""
    tables: tuple[str, ...]
    """Tables in which it moved."""


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


def too_old(lake: Lake, retention_days: int, now: datetime | None = None) -> int:
    """Where the horizon belongs: never before where it is.

    Args:
        lake: The lake. Content stays until every table has it.
        retention_days: Full days, in UTC, for which content is kept; 0: for ever.
        now: The time; that of this machine if None.
    """
    known = horizon(lake)
    if not retention_days:
        return known
    now_ms = int((now or utc_now()).timestamp() * 1000)
    before_ms = now_ms - now_ms % _DAY_MS - retention_days * _DAY_MS
    complete = min(lake.through(name) for name in (*TABLES_WITH_CONTENT, "snapshot"))
    wanted = [
        ("committed_id", ">", known),
        ("committed_id", "<=", complete),
        ("committed_at", "<", before_ms),
    ]
    found = (batch["committed_id"] for batch in lake.batches("log", ["committed_id"], wanted))
    return max((pc.max(ids).as_py() for ids in found if len(ids)), default=known)


def is_too_old(lake: Lake, retention_days: int) -> bool:
    """Whether the horizon has to move, or a process died while it did."""
    if begun_horizon(lake) is not None:
        return True
    return retention_days > 0 and too_old(lake, retention_days) > horizon(lake)


def finish(spark: "Spark", lake: Lake, source: "ModelSource") -> None:
    """Finish what a process began that died; the caller may write to the lake."""
    if (begun := begun_horizon(lake)) is not None:
        age(spark, lake, begun, source)


def age(
    spark: "Spark",
    lake: Lake,
    through: int,
    source: "ModelSource",
    told: Callable[[str], None] = lambda _table: None,
) -> Aged:
    """Move the horizon of every table; the caller may write to the lake.

    Args:
        spark: Makes the states of partitions; nothing else needs a session.
        lake: The lake.
        through: Where it goes, see `too_old`.
        source: The model of the sync surface.
        told: Called with the name of each table before it is changed.
    """
    moved = []
    for name in AGING:
        after = lake.noted(name, AGED) or 0
        if after >= through:
            continue
        if name == BASE:
            if not _put_aside(spark, lake, after, through, source, told):
                continue
        elif lake.delta(name) is None:
            continue
        else:
            told(name)
            lake.vacuum(name)  # what was emptied the last time
            if name == "message" and not lake.through(name):
                lake.replace(name, 0, [], notes={AGED: through})  # the next build rebuilds it
            elif name == "message":
                _empty_messages(lake, after, through)
            else:
                _empty(lake, BY_NAME[name], after, through)
        moved.append(name)
    return Aged(max(through, horizon(lake)), tuple(moved))


def _put_aside(
    spark: "Spark",
    lake: Lake,
    after: int,
    through: int,
    source: "ModelSource",
    told: Callable[[str], None],
) -> bool:
    """Keep the states that events made which are to be emptied; returns whether there are any."""
    if lake.delta("event") is None:
        return False
    touched = lake.between("event", ["partition"], after, through)["partition"].unique()
    is_there = lake.delta(BASE) is not None
    if not len(touched):
        if is_there:
            lake.replace(BASE, through, [], notes={AGED: through})
        return is_there
    told(BASE)
    session = session_of(spark)
    of_model = [("model_version", "=", source.model_version)]
    known = lake.arrow(BASE, ["partition"], of_model)["partition"].to_pylist() if is_there else ()
    # Of a partition without a state, all events are needed: if one is gone, it has none now.
    begin = 0 if set(touched.to_pylist()).difference(known) else after
    until = sql.col("committed_id") <= through
    events = lake.frame_from(session, "event", "committed_id", begin + 1).where(until)
    names = events.where(sql.col("committed_id") > after).select("partition").distinct()
    events = tellable_events(session, lake, events.join(names, "partition", "left_semi"))
    log = lake.frame_from(session, "log", "committed_id", after + 1).where(until)
    made = states_of(session, lake, events, log, source)
    # A state that cannot be told any more is none to go on from either: it would lack events.
    gone = Gone(pa.table({"partition": touched}))
    lake.upsert(BASE, made, through, notes={AGED: through}, gone=[gone])
    return True


def _empty(lake: Lake, table: Table, after: int, through: int) -> None:
    """Take the content from rows of a table that lies along the log."""
    files = [
        file
        for file in lake.files(table.name)
        if _reaches(span_of(file, "committed_id"), after, through)
    ]
    lake.rewrite_files(table.name, files, partial(_emptied, table, through), {AGED: through})


def _reaches(span: Span | None, after: int, through: int) -> bool:
    if span is None:
        return True
    return span.least is not None and span.least <= through and span.most > after


def _emptied(table: Table, through: int, file: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file without content that is too old; if all is, it is not read."""
    span = span_of(file, "committed_id")
    is_whole = span is not None and span.most <= through
    names = [column.name for column in table.columns]
    read = [name for name in names if not is_whole or name not in table.content]
    with pq.ParquetFile(file) as stored:
        for batch in stored.iter_batches(_BATCH_ROWS, columns=read):
            is_gone = pc.less_equal(batch["committed_id"], through)
            rows = pa.Table.from_batches([batch])
            yield from without_content(table, rows, is_gone).to_batches()


def without_content(table: Table, rows: pa.Table, is_gone: pa.Array) -> pa.Table:
    """Rows of a table without the content of some of them, with all columns."""
    columns = []
    for field in arrow_schema(table):
        none = pa.nulls(rows.num_rows, field.type)
        if field.name not in rows.column_names:
            columns.append(none)
            continue
        column = rows[field.name].cast(field.type)
        if field.name in table.content:
            column = pc.if_else(is_gone, none, column)
        elif field.name == table.content_flag:
            column = pc.and_(column, pc.invert(is_gone))
        columns.append(column)
    return pa.table(columns, schema=arrow_schema(table))


def _empty_messages(lake: Lake, after: int, through: int) -> None:
    """Empty the messages whose newest version is too old, and fold those anew that went on.

    What a version after the horizon does not say by itself is gone.
    """
    table = BY_NAME["message"]
    schema, complete = arrow_schema(table), lake.through(table.name)
    for files in _message_files(lake, after, through):
        rows = pa.concat_tables([pq.read_table(file, columns=schema.names) for file in files])
        rows = rows.cast(schema).filter(pc.field("first_committed_id") <= through)
        last = pc.field("last_committed_id")
        has_content = pc.field(table.content_flag)
        for column in (*table.content, "history_serial"):
            has_content = has_content | pc.field(column).is_valid()
        old = rows.filter((last <= through) & has_content)
        gone = without_content(table, old, pa.array([True] * old.num_rows, pa.bool_()))
        at = gone.column_names.index("history_serial")
        gone = gone.set_column(at, "history_serial", pa.nulls(old.num_rows, pa.int64()))
        changed = pa.concat_tables([gone, _folded_anew(lake, rows.filter(last > through))])
        if changed.num_rows:
            names = Gone(changed.select(["first_committed_id"]))
            lake.replace(table.name, complete, [names], changed)
    lake.replace(table.name, complete, [], notes={AGED: through})


def _message_files(lake: Lake, after: int, through: int) -> Iterator[list[str]]:
    """Files that may have messages which are too old, some at a time."""
    held, rows = list[str](), 0
    for file in lake.files("message"):
        first, last = span_of(file, "first_committed_id"), span_of(file, "last_committed_id")
        if _reaches(first, 0, through) and _reaches(last, after, 2**63 - 1):
            held.append(file)
            rows += pq.read_metadata(file).num_rows
        if rows >= _MESSAGES_AT_ONCE:
            yield held
            held, rows = [], 0
    if held:
        yield held


def _folded_anew(lake: Lake, known: pa.Table) -> pa.Table:
    """Those of some messages that are not what their versions, as they are now, make."""
    if not known.num_rows:
        return known
    serials = known["message_serial"].unique().to_pylist()
    wanted = [
        ("committed_id", ">=", pc.min(known["first_committed_id"]).as_py()),
        ("committed_id", "<=", lake.through("message")),
        ("message_serial", "in", serials),
    ]
    versions = lake.arrow("message_version", READ, wanted)
    names = known.select(KEY)
    folded = common(messages_of(combined(steps_of_versions(versions))), names)
    order = [(column, "ascending") for column in KEY]
    known = common(known, folded.select(KEY)).sort_by(order)
    folded = folded.sort_by(order)
    state = pc.if_else(pc.equal(known["state"], PURGED), PURGED, folded["state"])
    folded = folded.set_column(folded.column_names.index("state"), "state", state)
    is_other = pc.or_(
        pc.not_equal(folded["is_complete"], known["is_complete"]),
        pc.not_equal(
            pc.fill_null(folded["history_serial"], -1), pc.fill_null(known["history_serial"], -1)
        ),
    )
    return folded.filter(is_other).cast(arrow_schema(BY_NAME["message"]))
