"""What the report shows, read from the aggregates of the lake with Arrow, some rows at a time.

Times are put into buckets here, so that a page of a year has as many points as one of an hour. Only
gold tables are read as a whole. What messages are now is counted file by file, and a count is kept
as long as its file is part of the table.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tidelog.base.errors import TidelogError
from tidelog.channels.protocol.verbs import VERBS
from tidelog.pipeline.report.message_states import message_states
from tidelog.pipeline.search.index import NoIndex, index_root, read_manifest
from tidelog.pipeline.tables import ACTION_COUNTS, TABLES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress

BUCKETS = 120
"""Points of a plot at most: what a phone can still show apart."""

TOP_STREAMS = 12

_WIDTHS = ("1min", "5min", "15min", "1h", "3h", "6h", "12h", "1D", "7D", "30D", "365D")
"""How long a bucket can be."""

SURFACES = ("channels", "sync", "mesh")
ACTIONS = (*VERBS, "event")
STATES = ("visible", "deleted", "purged")
PERCENTILES = ("p50", "p95", "p99")


class Bars(NamedTuple):
    """Numbers with names, to be shown as bars."""

    name: str
    number: int
    note: str = ""


class TableFacts(NamedTuple):
    """How large and how fresh one table is."""

    name: str
    layer: str
    meaning: str
    rows: int
    files: int
    size: int
    """Bytes of its newest version."""
    through: int
    written_at: datetime


class CheckFacts(NamedTuple):
    """What a check said last."""

    name: str
    ran_at: datetime
    through: int
    examined: int
    findings: int
    first: tuple[str, ...]


class Figures(NamedTuple):
    """Everything on the page. A series is a frame with a row for each bucket, or empty."""

    made_at: datetime
    head: int | None
    """Where the log ends; None if the store cannot be read."""
    head_at: datetime | None
    through: int
    """Position of the log through which the lake is complete."""
    last_at: datetime | None
    """When that entry was committed."""
    activity: "pd.DataFrame"
    """Entries by surface."""
    latency: "pd.DataFrame"
    """Milliseconds from commit to acknowledgement, by percentile."""
    changes: "pd.DataFrame"
    """Versions of messages by action."""
    actions: tuple[Bars, ...]
    states: tuple[Bars, ...]
    streams: tuple[Bars, ...]
    stream_count: int
    deliveries: int
    """Deliveries that `latency` is made of."""
    documents: int | None
    """Messages in the search index; None if there is none."""
    tables: tuple[TableFacts, ...]
    checks: tuple[CheckFacts, ...]


STEPS = ("log", "activity", "latency", "message", "tables", "checks")
"""What is read one after the other."""


def gather(
    lake: "Lake", store: "StoreAddress", told: Callable[[str], None] = lambda _step: None
) -> Figures:
    """Read all of it.

    Args:
        lake: What it is about.
        store: Asked where the log ends.
        told: Called with each of `STEPS` when it begins.

    Raises:
        LakeError: nothing was ingested yet, or a table has other columns.
    """
    told("log")
    head = head_at = None
    try:
        known = store.head()
        head, head_at = known.committed_id, _moment(known.committed_at)
    except TidelogError:
        pass  # the page then says that it does not know
    through = lake.through("log")
    times = lake.arrow("log", ["committed_at"], [("committed_id", "=", through)])
    last = times["committed_at"].to_pylist()
    told("activity")
    by_minute, streams = _activity(lake)
    actions = _actions(by_minute)
    told("latency")
    latency = _latency(lake)
    told("message")
    states = message_states(lake)
    told("tables")
    tables = _tables(lake)
    told("checks")
    return Figures(
        made_at=datetime.now(UTC),
        head=head,
        head_at=head_at,
        through=through,
        last_at=_moment(last[0]) if last else None,
        activity=_by_surface(by_minute),
        latency=_percentiles(latency),
        changes=_in_time(actions),
        actions=tuple(Bars(name, _total(actions, name)) for name in ACTIONS),
        states=tuple(Bars(name, states.get(name, 0)) for name in STATES),
        streams=_largest(streams),
        stream_count=streams.num_rows,
        deliveries=int(latency["deliveries"].sum()),
        documents=_documents(lake),
        tables=tables,
        checks=_checks(lake),
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def bucket_width(first: datetime, last: datetime) -> str:
    """The shortest bucket of which not too many lie between two times."""
    import pandas as pd

    span = last - first
    for width in _WIDTHS:
        if span / pd.Timedelta(width) < BUCKETS:
            return width
    return _WIDTHS[-1]


def _activity(lake: "Lake") -> "tuple[pd.DataFrame, pa.Table]":
    """Sums of the table `activity` by surface and minute, and by stream."""
    import pyarrow as pa

    minutes, streams = list[pa.Table](), list[pa.Table]()
    counts = [*ACTION_COUNTS, "writes"]
    columns = ["stream", "surface", "minute", "bytes", *counts]
    for batch in lake.batches("activity", columns):
        rows = pa.Table.from_batches([batch])
        minutes.append(_summed(rows, ["surface", "minute"], counts))
        streams.append(_summed(rows, ["stream"], ["writes", "bytes"]))
    if not minutes:
        kinds = {"stream": pa.string(), "surface": pa.string(), "minute": pa.timestamp("us", "UTC")}
        rows = pa.table({name: pa.array([], kinds.get(name, pa.int64())) for name in columns})
        minutes, streams = [rows.drop(["stream", "bytes"])], [rows.drop(["surface", "minute"])]
    by_minute = _summed(pa.concat_tables(minutes), ["surface", "minute"], counts)
    return by_minute.to_pandas(), _summed(
        pa.concat_tables(streams), ["stream"], ["writes", "bytes"]
    )


def _summed(rows: "pa.Table", keys: list[str], numbers: list[str]) -> "pa.Table":
    sums = rows.group_by(keys).aggregate([(number, "sum") for number in numbers])
    return sums.rename_columns({f"{number}_sum": number for number in numbers})


def _by_surface(by_minute: "pd.DataFrame") -> "pd.DataFrame":
    others = sorted(set(by_minute["surface"]).difference(SURFACES))
    wide = by_minute.pivot_table("writes", "minute", "surface", aggfunc="sum", fill_value=0)
    return _in_time(wide.reindex(columns=[*SURFACES, *others], fill_value=0))


def _actions(by_minute: "pd.DataFrame") -> "pd.DataFrame":
    """Versions of messages by action, minute by minute; what is none of the others is an event."""
    own = by_minute[by_minute["surface"] == "channels"].set_index("minute")
    named = own.rename(columns=ACTION_COUNTS)
    named["event"] = named["writes"] - named[list(ACTION_COUNTS.values())].sum(axis=1)
    return named[list(ACTIONS)]


def _total(rows: "pd.DataFrame", column: str) -> int:
    return int(rows[column].sum())


def _in_time(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Sums by bucket of rows that have minutes as their index; also where nothing happened."""
    import pandas as pd

    if rows.empty:
        return pd.DataFrame()
    width = bucket_width(rows.index.min(), rows.index.max())
    sums = rows.groupby(rows.index.floor(width)).sum()
    every = pd.date_range(sums.index.min(), sums.index.max(), freq=width)
    return sums.reindex(every, fill_value=0).astype("int64")


def _latency(lake: "Lake") -> "pd.DataFrame":
    """The table `latency`; no rows if it was not built yet."""
    import pyarrow as pa

    columns = ["minute", "deliveries", *(f"{name}_ms" for name in PERCENTILES)]
    found = list(lake.batches("latency", columns))
    if not found:
        return pa.table({name: pa.array([], pa.int64()) for name in columns}).to_pandas()
    return pa.Table.from_batches(found).to_pandas()


def _percentiles(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Of each bucket the mean of its minutes' percentiles, weighted by their deliveries."""
    import pandas as pd

    if rows.empty:
        return pd.DataFrame()
    width = bucket_width(rows["minute"].min(), rows["minute"].max())
    buckets, weights = rows["minute"].dt.floor(width), rows["deliveries"]
    total = weights.groupby(buckets).sum()
    made = pd.DataFrame(
        {
            name: (rows[f"{name}_ms"].clip(lower=0) * weights).groupby(buckets).sum() / total
            for name in PERCENTILES
        }
    )
    return made.reindex(pd.date_range(made.index.min(), made.index.max(), freq=width))


def _largest(streams: "pa.Table") -> tuple[Bars, ...]:
    rows = streams.sort_by([("writes", "descending"), ("stream", "ascending")])
    return tuple(
        Bars(row["stream"], row["writes"], shown_bytes(row["bytes"]))
        for row in rows.slice(0, TOP_STREAMS).to_pylist()
    )


def _documents(lake: "Lake") -> int | None:
    try:
        manifest = read_manifest(index_root(lake.root))
    except NoIndex:
        return None
    return None if manifest is None else manifest.documents


def _tables(lake: "Lake") -> tuple[TableFacts, ...]:
    import pyarrow as pa

    facts = []
    for table in TABLES:
        delta = lake.delta(table.name)
        if delta is None:
            continue
        files = pa.table(delta.get_add_actions(flatten=True))
        [newest] = delta.history(1)
        facts.append(
            TableFacts(
                table.name,
                table.layer,
                table.meaning,
                rows=sum(files["num_records"].to_pylist()),
                files=files.num_rows,
                size=sum(files["size_bytes"].to_pylist()),
                through=lake.through(table.name),
                written_at=_moment(newest["timestamp"]),
            )
        )
    return tuple(facts)


def _checks(lake: "Lake") -> tuple[CheckFacts, ...]:
    if lake.delta("verdict") is None:
        return ()
    return tuple(
        CheckFacts(
            row["check"],
            row["ran_at"],
            row["through"],
            row["examined"],
            row["findings"],
            tuple(row["first"] or ()),
        )
        for row in lake.arrow("verdict").sort_by("check").to_pylist()
    )


def shown_bytes(size: int) -> str:
    """A size as people write it."""
    number = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
