"""What the report shows, read from the tables of the lake with Arrow.

Times are put into buckets here, so that a page of a year has as many points as one of an hour.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tidelog.base.errors import TidelogError
from tidelog.channels.protocol.verbs import VERBS
from tidelog.pipeline.search.index import NoIndex, index_root, read_manifest
from tidelog.pipeline.tables import TABLES

if TYPE_CHECKING:
    import pandas as pd

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
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


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


def gather(lake: "Lake", store: "StoreAddress") -> Figures:
    """Read all of it.

    Raises:
        LakeError: nothing was ingested yet, or a table has other columns.
    """
    head = head_at = None
    try:
        known = store.head()
        head, head_at = known.committed_id, _moment(known.committed_at)
    except TidelogError:
        pass  # the page then says that it does not know
    through = lake.through("log")
    times = lake.arrow("log", ["committed_at"], [("committed_id", "=", through)])
    last = times["committed_at"].to_pylist()
    by_stream = _by_stream(lake)
    changes = _frame(lake, "message_version", ["committed_at", "action"])
    actions = changes["action"].value_counts()
    states = _frame(lake, "message", ["state"])["state"].value_counts()
    delivered = _frame(lake, "delivery", ["created_at", "delivered_at"]).dropna()
    return Figures(
        made_at=datetime.now(UTC),
        head=head,
        head_at=head_at,
        through=through,
        last_at=_moment(last[0]) if last else None,
        activity=_activity(lake),
        latency=_latency(delivered),
        changes=_counted(changes, "committed_at", "action", ACTIONS),
        actions=tuple(Bars(name, int(actions.get(name, 0))) for name in ACTIONS),
        states=tuple(Bars(name, int(states.get(name, 0))) for name in STATES),
        streams=by_stream[:TOP_STREAMS],
        stream_count=len(by_stream),
        deliveries=len(delivered),
        documents=_documents(lake),
        tables=_tables(lake),
        checks=_checks(lake),
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _frame(lake: "Lake", name: str, columns: list[str]) -> "pd.DataFrame":
    """Columns of a table; no rows if it was not built yet."""
    import pandas as pd

    if lake.delta(name) is None:
        return pd.DataFrame({column: pd.Series(dtype="object") for column in columns})
    frame: pd.DataFrame = lake.arrow(name, columns).to_pandas()
    return frame


def bucket_width(first: datetime, last: datetime) -> str:
    """The shortest bucket of which not too many lie between two times."""
    import pandas as pd

    span = last - first
    for width in _WIDTHS:
        if span / pd.Timedelta(width) < BUCKETS:
            return width
    return _WIDTHS[-1]


def _in_buckets(times: "pd.Series[pd.Timestamp]") -> "tuple[pd.Series[pd.Timestamp], str]":
    width = bucket_width(times.min(), times.max())
    return times.dt.floor(width), width


def _activity(lake: "Lake") -> "pd.DataFrame":
    rows = _frame(lake, "activity", ["surface", "minute", "writes"])
    others = sorted(set(rows["surface"]).difference(SURFACES))
    return _counted(rows, "minute", "surface", (*SURFACES, *others), "writes")


def _counted(
    rows: "pd.DataFrame", time: str, what: str, names: tuple[str, ...], number: str | None = None
) -> "pd.DataFrame":
    """How many of each there are in each bucket; also in those in which nothing happened."""
    import pandas as pd

    if rows.empty:
        return pd.DataFrame()
    buckets, width = _in_buckets(rows[time])
    grouped = rows.groupby([buckets, rows[what]])
    counts = (grouped.size() if number is None else grouped[number].sum()).unstack(fill_value=0)
    every = pd.date_range(counts.index.min(), counts.index.max(), freq=width)
    return counts.reindex(index=every, columns=list(names), fill_value=0).astype("int64")


def _latency(delivered: "pd.DataFrame") -> "pd.DataFrame":
    import pandas as pd

    if delivered.empty:
        return pd.DataFrame()
    took = (delivered["delivered_at"] - delivered["created_at"]) / pd.Timedelta(milliseconds=1)
    buckets, width = _in_buckets(delivered["created_at"])
    grouped = took.clip(lower=0).groupby(buckets)
    made = pd.DataFrame({name: grouped.quantile(share) for name, share in PERCENTILES.items()})
    return made.reindex(pd.date_range(made.index.min(), made.index.max(), freq=width))


def _by_stream(lake: "Lake") -> tuple[Bars, ...]:
    rows = _frame(lake, "activity", ["stream", "writes", "bytes"])
    if rows.empty:
        return ()
    sums = rows.groupby("stream").sum().sort_values("writes", ascending=False)
    return tuple(
        Bars(str(stream), int(writes), shown_bytes(int(size)))
        for stream, writes, size in sums.itertuples()
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
