"""Building the tables: in the order of what they are made of, and only what is stale.

Every table says through which position of the log it is complete, and changes in one commit with
that position. So whatever dies in between, the next run sees where each table is and goes on from
there; a table never has half of a step.

What the log alone decides is built from the entries after that position. Relations of the store
change without an entry. The store numbers such alterations, and a table that is made of a relation
says through which of them it is complete, in the same commit.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from tidelog.pipeline.fill.aging import finish
from tidelog.pipeline.fill.alterations import slices
from tidelog.pipeline.fill.freshness import is_current
from tidelog.pipeline.fill.ingest import settled
from tidelog.pipeline.fill.message_files import fold_files
from tidelog.pipeline.fill.message_growth import follow, with_purged
from tidelog.pipeline.fill.mirrors import Mode, mirror
from tidelog.pipeline.fill.relation_files import relation_files, relation_rows
from tidelog.pipeline.fill.row_files import ROWS, write_rows
from tidelog.pipeline.fill.sync_model import model_source
from tidelog.pipeline.fill.sync_states import states_of, tellable_events
from tidelog.pipeline.frames import arrow_schema, frame_of_rows
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import ALTERATIONS, MODEL
from tidelog.pipeline.lake.reading import frame_of
from tidelog.pipeline.lake.replacing import Gone, files_in_minutes, files_with, written
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.source.relations import Moment, read_relations, relation_frame
from tidelog.pipeline.source.spark_source import is_read_here
from tidelog.pipeline.source.store_address import AlterationNumbers
from tidelog.pipeline.tables import BY_NAME, TABLES, Table
from tidelog.pipeline.transforms import activity_rows
from tidelog.pipeline.transforms.activity import activity
from tidelog.pipeline.transforms.activity_rows import MINUTE_MS
from tidelog.pipeline.transforms.events import events, forgotten_index, without_body
from tidelog.pipeline.transforms.latency import latencies
from tidelog.pipeline.transforms.sends import newly_ended, sends
from tidelog.pipeline.transforms.shape import minute_of
from tidelog.pipeline.transforms.snapshots import snapshots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.sync.protocol.profiles import Model


_SHOWN = 5
"""Partitions that a note names."""

REFOLD_ENTRIES = 500_000
"""More new entries than this, and more than there are old ones: then all messages are folded again,
which Spark does faster."""

NOTE_ALTERATIONS = 20_000
"""A table that has none of so many alterations notes that: they are not looked at again."""

TABLES_AT_ONCE = 2
"""A table is many small steps, of which some wait for one processor; two fill a small machine, and
share the memory of one, as the tasks of Spark do."""


class Built(NamedTuple):
    """What became of one table."""

    name: str
    rows: int
    """Rows written; some of them because they share a file with one that changed."""
    seconds: float
    through: int
    """Position through which it is complete now."""
    mode: Mode
    notes: tuple[str, ...] = ()
    """What it lacks, and why that is no failure."""


class Steps(NamedTuple):
    """What one table's build is given."""

    session: "Spark"
    lake: Lake
    store: "StoreAddress"
    altered: AlterationNumbers
    """What the store can tell of its relations; read before any of them."""
    settings: Moment
    model: "Model | None"
    start: int
    """Position through which the table is complete; 0 if all of it is to be made."""
    target: int
    """Position through which it shall be complete."""

    @property
    def spark(self) -> "SparkSession":
        """The session, for what is not small; it starts if it was not needed yet."""
        return session_of(self.session)

    @property
    def is_small(self) -> bool:
        """Whether what is new is read here, without Spark."""
        return is_read_here(self.session, self.target - self.start)

    @property
    def notes(self) -> dict[str, int]:
        """What a table notes that has everything."""
        return {ALTERATIONS: self.altered.last}

    @property
    def is_full(self) -> bool:
        """Whether all of the table is made."""
        return self.start == 0

    def frame(self, name: str) -> "DataFrame":
        """A table of the lake."""
        return self.lake.frame(self.spark, name)

    def new(self, name: str) -> "DataFrame":
        """The rows of a table that lie after `start`; files without any are not opened."""
        return self.lake.frame_from(self.spark, name, "committed_id", self.start + 1)

    def has_new(self, surface: str) -> bool:
        """Whether an entry after `start` is of a surface."""
        return self.lake.has_entry(surface, self.start, self.target)

    def noted(self, name: str) -> int | None:
        """The last alteration that a table has, if what came after it can be told."""
        noted = self.lake.noted(name, ALTERATIONS)
        return noted if noted is not None and self.altered.has_after(noted) else None


def build(
    spark: "Spark",
    lake: Lake,
    store: "StoreAddress",
    names: Iterable[str] | None = None,
    *,
    full: bool = False,
    model: "Model | None" = None,
    progress: Callable[[Built], None] = lambda _built: None,
) -> list[Built]:
    """Bring tables up to the table `log`, and those they are made of before them.

    Args:
        spark: the session.
        lake: where the tables are.
        store: the store that `log` was ingested from.
        names: tables to build; all of them if None.
        full: rebuild the named tables, whatever they hold.
        model: the model of the server's sync surface; without one states are empty, as they are on
            a server without a model file.
        progress: called after each table, as soon as it is there.

    Raises:
        LogReplaced: the lake was made from another log than this store holds.
        LakeLocked: another process writes to the lake.
    """
    named = _named(names)
    wanted = _with_inputs(named)
    with lake.writing():
        target = settled(lake, store)[0].committed_id
        lake.tidy("log")
        _, altered = store.now()
        settings = read_relations(store, ["sync_setting"])
        finish(spark, lake, model_source(settings, model))

        def build_one(table: Table) -> Built:
            begun = time.monotonic()
            has = 0 if full and table.name in named else lake.through(table.name)
            steps = Steps(spark, lake, store, altered, settings, model, has, target)
            rows, mode = _run(table, steps)
            if mode != "current":
                lake.tidy(table.name)
            through = lake.through(table.name)
            is_told = table.name == "snapshot" and mode != "current"
            notes = _without_snapshot(lake, has, target) if is_told else ()
            return Built(table.name, rows, time.monotonic() - begun, through, mode, notes)

        return _in_order(wanted, build_one, progress)


def unchanged(
    lake: Lake,
    store: "StoreAddress",
    names: Iterable[str] | None = None,
    *,
    model: "Model | None" = None,
) -> list[Built] | None:
    """What `build` would return if it had nothing to do, decided without Spark; None if it has."""
    target = lake.through("log")
    head, altered = store.now()
    version = model_source(read_relations(store, ["sync_setting"]), model).model_version
    tables = _with_inputs(_named(names))
    place = (target, altered, version)
    if not target or target != head.committed_id:
        return None
    if not all(is_current(lake, store, table, *place) for table in tables):
        return None
    return [Built(table.name, 0, 0.0, target, "current") for table in tables]


def _in_order(
    tables: Sequence[Table],
    build_one: Callable[[Table], Built],
    progress: Callable[[Built], None],
) -> list[Built]:
    """Build tables, each after what it is made of; if one fails, no other is begun."""
    done: dict[str, Built] = {}
    waiting, running = list(tables), dict[Future[Built], Table]()
    names = {table.name for table in tables}
    with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
        while waiting or running:
            for table in list(waiting):
                if (
                    len(running) < TABLES_AT_ONCE
                    and names.intersection(table.inputs) <= done.keys()
                ):
                    waiting.remove(table)
                    running[pool.submit(build_one, table)] = table
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                built = ended.result()
                done[running.pop(ended).name] = built
                progress(built)
    return [done[table.name] for table in tables]


def buildable() -> tuple[str, ...]:
    """The tables that `build` makes, each after what it is made of."""
    return tuple(table.name for table in TABLES if table.name in _BUILDERS)


def told_by_the_log() -> tuple[str, ...]:
    """The tables that `build` makes of the log alone."""
    return tuple(
        name
        for name in buildable()
        if BY_NAME[name].inputs == ("log",) and not BY_NAME[name].relations
    )


def build_whole(name: str, steps: Steps) -> int:
    """Make all of a table, whatever else is stale; returns its rows."""
    return _BUILDERS[name](name, steps)[0]


def planned(names: Iterable[str] | None) -> tuple[str, ...]:
    """The tables that a build of these looks at, in its order.

    Raises:
        LakeError: one of them is not a table that is built.
    """
    return tuple(table.name for table in _with_inputs(_named(names)))


def _named(names: Iterable[str] | None) -> frozenset[str]:
    known = buildable()
    named = frozenset(known if names is None else names)
    if unknown := sorted(named.difference(known)):
        raise LakeError(
            f"{', '.join(unknown)}: not a table that can be built. Tables: {', '.join(known)}."
        )
    return named


def _with_inputs(names: frozenset[str]) -> list[Table]:
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in _BUILDERS and name not in wanted:
            wanted.add(name)
            pending += BY_NAME[name].inputs
    return [table for table in TABLES if table.name in wanted]


def _run(table: Table, steps: Steps) -> tuple[int, Mode]:
    version = model_source(steps.settings, steps.model).model_version
    place = (steps.lake, steps.store, table, steps.target, steps.altered, version)
    if not steps.is_full and is_current(*place):
        noted = steps.noted(table.name) or 0
        if table.relations and steps.altered.last - noted > NOTE_ALTERATIONS:
            steps.lake.replace(table.name, steps.target, [], notes=steps.notes)
        return 0, "current"
    return _BUILDERS[table.name](table.name, steps)


# One builder for each way a table grows.

Builder = Callable[[str, Steps], tuple[int, Mode]]


def _growing(name: str, steps: Steps) -> tuple[int, Mode]:
    """A table whose rows never change: each is made of one entry."""
    folder = steps.lake.new_folder(name)
    log = steps.lake.files("log", after=steps.start)
    files = write_rows(steps.session, name, log, steps.start, steps.target, folder)
    if steps.is_full:
        return steps.lake.overwrite_files(name, files, steps.target), "full"
    return steps.lake.append_files(name, files, steps.target, {}, lambda: None), "new"


def _mirror(name: str, steps: Steps) -> tuple[int, Mode]:
    """A table that is a relation of the store as it is now."""
    place = (steps.start, steps.target)
    return mirror(name, steps.session, steps.lake, steps.store, steps.altered, *place)


def _events(name: str, steps: Steps) -> tuple[int, Mode]:
    if not steps.has_new("sync"):
        if steps.is_full:
            return steps.lake.overwrite_files(name, [], steps.target), "full"
        return steps.lake.replace(name, steps.target, []), "new"
    log = steps.frame("log") if steps.is_full else steps.new("log")
    index = partition_index(steps.spark, steps.lake, steps.store, log, steps.start, steps.target)
    made = events(log, index)
    if steps.is_full:
        return steps.lake.overwrite(name, made, steps.target), "full"
    return steps.lake.append(name, made, steps.target), "new"


def partition_index(
    spark: "SparkSession",
    lake: Lake,
    store: "StoreAddress",
    log: "DataFrame",
    after: int,
    through: int,
) -> "DataFrame | None":
    """The partitions of the events in some rows of `log` that do not tell them; None: all do.

    Args:
        spark: Asks the rows.
        lake: Tells what was forgotten.
        store: Tells the rest.
        log: The rows.
        after: All of them lie after this position.
        through: And none after this one.
    """
    if without_body(log).isEmpty():
        return None
    # It may be read at another moment: what is in it never changes.
    relation = "sync_event_partition"
    index = relation_frame(spark, relation, relation_rows(store, relation, after, through))
    if lake.files("forgotten"):
        told = forgotten_index(log, lake.frame(spark, "forgotten"))
        index = index.unionByName(told).distinct()
    return index


def _messages(name: str, steps: Steps) -> tuple[int, Mode]:
    lake, new = steps.lake, steps.target - steps.start
    is_much = new > max(steps.start, REFOLD_ENTRIES)
    if steps.is_full or is_much or steps.noted(name) is None:
        folder = lake.new_folder(name)
        mark = partial(with_purged, steps.store)
        files = fold_files(steps.session, lake.files("message_version"), folder, mark)
        return lake.overwrite_files(name, files, steps.target, steps.notes), "full"
    return follow(lake, steps.store, steps.altered, steps.start, steps.target), "new"


def _sends(name: str, steps: Steps) -> tuple[int, Mode]:
    """Sends of new entries, and those that retention took since."""
    lake, store, noted = steps.lake, steps.store, steps.noted(name)
    is_full = steps.is_full or noted is None
    start = 0 if is_full else steps.start
    has_new = lake.has_entry("mesh", start, steps.target)
    if is_full:
        if not has_new:
            return lake.overwrite_files(name, [], steps.target, steps.notes), "full"
        made = _new_sends(name, steps, start)
        return lake.overwrite(name, made, steps.target, notes=steps.notes), "full"
    rows = 0
    assert noted is not None  # noqa: S101 - else it is full
    for part in slices(store, "tombstone", noted, steps.altered.last, start):
        if part.rows.num_rows:
            gone = Gone(part.rows.select(["broker_message_id"]))
            ended = newly_ended(lake.named(name, gone), part.rows)
            rows += lake.replace(name, start, [gone], ended, notes={ALTERATIONS: part.number})
    if has_new:
        made = _new_sends(name, steps, start)
        rows += lake.append(name, made, steps.target, notes=steps.notes)
    else:
        lake.replace(name, steps.target, [], notes=steps.notes)
    return rows, "new"


def _new_sends(name: str, steps: Steps, start: int) -> "DataFrame":
    """Sends of the entries after a position, with what is known of their end."""
    folder = steps.lake.new_folder(name)
    place = (start, steps.target, folder)
    ends = relation_files(steps.session, steps.store, "tombstone", *place, lambda page: page)
    log = steps.new("log") if start else steps.frame("log")
    return sends(log, relation_frame(steps.spark, "tombstone", ends))


def _activity(name: str, steps: Steps) -> tuple[int, Mode]:
    lake = steps.lake
    if not steps.is_small and steps.is_full:
        return lake.overwrite(name, activity(steps.frame("log")), steps.target), "full"
    # Times never decrease, so minutes before that of the first new entry are over.
    if not steps.is_small:
        log = lake.frame_from(steps.spark, "log", "committed_at", _minute_after(steps))
        return lake.upsert(name, activity(log), steps.target), "new"
    place = (steps.start, steps.target)
    new = [
        activity_rows.counted(each) for each in lake.entries_between(activity_rows.ENTRY, *place)
    ]
    if steps.is_full:
        made, folder = activity_rows.activity_of(new), lake.new_folder(name)
        files = written(made, BY_NAME[name].order, folder, lake.part_rows(name, made.num_rows))
        return lake.overwrite_files(name, files, steps.target), "full"
    if not new:
        return lake.replace(name, steps.target, []), "new"
    minutes = Gone(pa.concat_tables(new).select(["minute", "stream"]))
    made = activity_rows.activity_of(new, lake.named(name, minutes), _actors_before(steps))
    return lake.replace(name, steps.target, [minutes], made), "new"


def _actors_before(steps: Steps) -> pa.Table:
    """Who was where in the minute of the first new entry, before it."""
    columns = ("stream", "surface", "actor", "committed_at")
    begin = _minute_after(steps)
    parts = [
        activity_rows.actors_of(each)
        for each in steps.lake.entries_between(columns, 0, steps.start, since_ms=begin)
    ]
    none = activity_rows.actors_of(pa.table({name: pa.array([], _ARROW[name]) for name in columns}))
    return pa.concat_tables([none, *parts])


_ARROW = {
    **dict.fromkeys(("stream", "surface", "actor"), pa.string()),
    "committed_at": pa.int64(),
}


def _minute_after(steps: Steps) -> int:
    """The minute of the first new entry, in milliseconds since 1970."""
    new = steps.lake.between("log", ["committed_at"], steps.start, steps.start + 1)
    [first] = new["committed_at"].to_pylist()
    return int(first - first % MINUTE_MS)


def _latency(name: str, steps: Steps) -> tuple[int, Mode]:
    """The minutes of new messages, and those of messages of which a delivery has changed."""
    lake, noted = steps.lake, steps.noted(name)
    if steps.is_full or noted is None:
        through, notes = steps.target, steps.notes
        if not lake.rows("delivery"):
            return lake.overwrite_files(name, [], through, notes, made_of="delivery"), "full"
        made = latencies(steps.frame("delivery"))
        return lake.overwrite(name, made, through, made_of="delivery", notes=notes), "full"
    times = [
        at
        for page in steps.store.related("delivery_times", noted, steps.altered.last)
        for at in page["committed_at"].to_pylist()
    ]
    minutes = {at - at % MINUTE_MS for at in times}
    if steps.start < steps.target:
        minutes.update(_minutes_of_sends(steps))
    rows = 0
    if minutes:
        named = _minute_table(minutes)
        deliveries = deliveries_of(steps.spark, lake, named)
        made = latencies(deliveries).toArrow().cast(arrow_schema(BY_NAME[name]))
        rows = lake.replace(
            name, steps.target, [Gone(named)], made, made_of="delivery", notes=steps.notes
        )
    else:
        lake.replace(name, steps.target, [], made_of="delivery", notes=steps.notes)
    return rows, "new"


def _minutes_of_sends(steps: Steps) -> set[int]:
    """The minutes in which new messages of meshes were committed."""
    new = steps.lake.between("log", ["committed_at", "surface"], steps.start, steps.target)
    times = new.filter(pc.equal(new["surface"], "mesh"))["committed_at"].unique().to_pylist()
    return {at - at % MINUTE_MS for at in times}


def _minute_table(minutes: "Iterable[int]") -> pa.Table:
    times = pa.array([minute * 1000 for minute in sorted(minutes)], pa.int64())
    return pa.table({"minute": times.cast(pa.timestamp("us", "UTC"))})


def deliveries_of(spark: "SparkSession", lake: Lake, minutes: pa.Table) -> "DataFrame":
    """The rows of `delivery` whose messages were committed in some minutes."""
    files = files_in_minutes(lake.files("delivery"), "created_at", minutes["minute"].to_pylist())
    wanted = frame_of_rows(spark, minutes, "minute timestamp")
    stored = frame_of(spark, BY_NAME["delivery"], files)
    return (
        stored.withColumn("minute", minute_of("created_at"))
        .join(sql.broadcast(wanted), "minute", "left_semi")
        .drop("minute")
    )


def _whole(name: str, steps: Steps) -> tuple[int, Mode]:
    """A table that is made anew of its one input."""
    table = BY_NAME[name]
    [made_of] = table.inputs
    through, made = steps.lake.through(made_of), table.make(steps.frame(made_of))
    return steps.lake.overwrite(name, made, through, made_of=made_of), "full"


def _snapshots(name: str, steps: Steps) -> tuple[int, Mode]:
    lake, source = steps.lake, model_source(steps.settings, steps.model)
    notes = {MODEL: source.model_version}
    if steps.is_full or _has_other_model(lake, source.model_version):
        if not lake.rows("event"):
            return lake.overwrite_files(name, [], steps.target, notes), "full"
        made = states_of(steps.spark, lake, _events_of(steps), steps.frame("log"), source)
        return lake.overwrite(name, made, steps.target, notes=notes), "full"
    if steps.start >= steps.target:
        return 0, "current"
    touched = lake.between("event", ["partition"], steps.start, steps.target)["partition"].unique()
    if not len(touched):
        return lake.replace(name, steps.target, [], notes=notes), "new"
    files = files_with(lake.files(name), "partition", touched.to_pylist())
    before = frame_of(steps.spark, BY_NAME[name], files)
    needed = tellable_events(steps.spark, lake, steps.new("event"))
    if begun := _partitions_without_state(files, touched):
        # Without a state to continue, all events of a partition are needed. One that is too old to
        # have content had a state when it lost it; if that is not there, it was not to be told.
        earlier = _events_of(steps).filter(sql.col("committed_id") <= steps.start)
        names = frame_of_rows(steps.spark, [(each,) for each in begun], "partition string")
        needed = needed.unionByName(earlier.join(names, "partition", "left_semi"))
    made = snapshots(needed, before, steps.new("log"), source)
    return lake.upsert(name, made, steps.target, notes=notes), "new"


def _events_of(steps: Steps) -> "DataFrame":
    return tellable_events(steps.spark, steps.lake, steps.frame("event"))


def _partitions_without_state(files: Sequence[str], touched: pa.Array) -> list[str]:
    """Those of some partitions that none of the files has a snapshot of."""
    known = {
        partition
        for file in files
        for partition in pq.read_table(file, columns=["partition"])["partition"].to_pylist()
    }
    return [partition for partition in touched.to_pylist() if partition not in known]


def _without_snapshot(lake: Lake, after: int, through: int) -> tuple[str, ...]:
    """Says which partitions have events in a range of positions and no snapshot."""
    named = lake.between("event", ["partition"], after, through)["partition"].unique()
    files = files_with(lake.files("snapshot"), "partition", named.to_pylist())
    lacking = sorted(_partitions_without_state(files, named))
    if not lacking:
        return ()
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    note = (
        f"no snapshot of {', '.join(lacking[:_SHOWN])}{more}: content of their events is gone or "
        "forgotten, or their trees are too deep to be written"
    )
    return (note,)


def _has_other_model(lake: Lake, model_version: int) -> bool:
    if (made_with := lake.noted("snapshot", MODEL)) is not None:
        return made_with != model_version
    found = lake.arrow("snapshot", ["model_version"])["model_version"].unique()
    return found.to_pylist() not in ([], [model_version])


_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(ROWS, _growing),
    "message": _messages,
    "event": _events,
    "send": _sends,
    "delivery": _mirror,
    "mention": _mirror,
    "dedupe": _mirror,
    "activity": _activity,
    "snapshot": _snapshots,
    **{table.name: _whole for table in TABLES if table.made_by},
    "latency": _latency,
}
