"""Building the tables: in the order of what they are made of, and only what is stale.

Every table says through which position of the log it is complete, and changes in one commit with
that position. So whatever dies in between, the next run sees where each table is and goes on from
there; a table never has half of a step.

What the log alone decides is built from the entries above that position. Relations of the store
change without an entry, so what is made of them is compared with the store each time.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyspark.sql import functions as sql

from tidelog.pipeline.fill.ingest import settled
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.lake import Lake, LakeError
from tidelog.pipeline.source.relations import Moment, read_relations
from tidelog.pipeline.tables import BY_NAME, TABLES, Table
from tidelog.pipeline.transforms.activity import MINUTE_MS, activity
from tidelog.pipeline.transforms.audit import audit
from tidelog.pipeline.transforms.events import events, forgotten_index, without_body
from tidelog.pipeline.transforms.messages import PURGED, fold, mark_purged, message_versions
from tidelog.pipeline.transforms.sends import (
    deliveries,
    mentions,
    newly_ended,
    remembered_keys,
    sends,
)
from tidelog.pipeline.transforms.snapshots import ModelSource, snapshots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.sync.protocol.profiles import Model

Mode = Literal["full", "new", "current"]
"""`full`: all of it was made. `new`: what had changed. `current`: nothing had."""

MODEL_VERSION = "model_version"
"""The setting of the sync surface that says which model version is in use."""


_SHOWN = 5
"""Partitions that a note names."""

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

    spark: "SparkSession"
    lake: Lake
    store: "StoreAddress"
    moment: Moment
    model: "Model | None"
    start: int
    """Position through which the table is complete; 0 if all of it is to be made."""
    target: int
    """Position through which it shall be complete."""

    @property
    def is_full(self) -> bool:
        """Whether all of the table is made."""
        return self.start == 0

    def frame(self, name: str) -> "DataFrame":
        """A table of the lake."""
        return self.lake.frame(self.spark, name)

    def relation(self, name: str) -> "DataFrame":
        """A relation of the store."""
        return self.moment.frame(self.spark, name)

    def new(self, name: str) -> "DataFrame":
        """The rows of a table that lie after `start`."""
        return self.frame(name).filter(sql.col("committed_id") > self.start)


def build(
    spark: "SparkSession",
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
        lake.vacuum("log")
        needed = sorted({relation for table in wanted for relation in table.relations})
        moment = read_relations(store, needed)

        def build_one(table: Table) -> Built:
            begun = time.monotonic()
            has = lake.through(table.name)
            is_full = full and table.name in named
            steps = Steps(spark, lake, store, moment, model, 0 if is_full else has, target)
            rows, mode = _run(table, steps)
            if mode != "current":
                lake.compact(table.name)
                lake.vacuum(table.name)
            through = lake.through(table.name)
            notes = _without_snapshot(lake) if table.name == "snapshot" else ()
            return Built(table.name, rows, time.monotonic() - begun, through, mode, notes)

        return _in_order(wanted, build_one, progress)


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


def planned(names: Iterable[str] | None) -> tuple[str, ...]:
    """The tables that a build of these looks at, in its order.

    Raises:
        LakeError: one of them is not a table that is built.
    """
    return tuple(table.name for table in _with_inputs(_named(names)))


def model_in_use(store: "StoreAddress", model: "Model | None") -> ModelSource:
    """A model in the version that the store says is in use."""
    return _model_source(read_relations(store, ["sync_setting"]), model)


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


def _is_told_by_the_log(table: Table) -> bool:
    """Whether it cannot change unless the log grows."""
    return not table.relations and all(_is_told_by_the_log(BY_NAME[name]) for name in table.inputs)


def _run(table: Table, steps: Steps) -> tuple[int, Mode]:
    is_stale = steps.is_full or steps.start < steps.target
    if not is_stale and _is_told_by_the_log(table):
        return 0, "current"
    return _BUILDERS[table.name](table.name, steps)


# One builder for each way a table grows.

Builder = Callable[[str, Steps], tuple[int, Mode]]


def _growing(make: "Callable[[DataFrame], DataFrame]") -> Builder:
    """A table whose rows never change: each is made of one entry."""

    def grow(name: str, steps: Steps) -> tuple[int, Mode]:
        if steps.is_full:
            rows = steps.lake.overwrite(name, make(steps.frame("log")), steps.target)
            return rows, "full"
        return steps.lake.append(name, make(steps.new("log")), steps.target), "new"

    return grow


def _mirroring(make: "Callable[[DataFrame], DataFrame]") -> Builder:
    """A table that is a relation of the store as it is now."""

    def mirror(name: str, steps: Steps) -> tuple[int, Mode]:
        frame = make(steps.relation(name))
        return steps.lake.overwrite(name, frame, steps.moment.head.committed_id), "full"

    return mirror


def _events(name: str, steps: Steps) -> tuple[int, Mode]:
    log = steps.frame("log") if steps.is_full else steps.new("log")
    index = partition_index(steps.spark, steps.lake, steps.store, log)
    made = events(log, index)
    if steps.is_full:
        return steps.lake.overwrite(name, made, steps.target), "full"
    return steps.lake.append(name, made, steps.target), "new"


def partition_index(
    spark: "SparkSession", lake: Lake, store: "StoreAddress", log: "DataFrame"
) -> "DataFrame | None":
    """The partitions of the events in some rows of `log` that do not tell them; None: all do."""
    if without_body(log).isEmpty():
        return None
    # It may be read at another moment: what is in it never changes.
    relation = "sync_event_partition"
    index = read_relations(store, [relation]).frame(spark, relation)
    if lake.files("forgotten"):
        told = forgotten_index(log, lake.frame(spark, "forgotten"))
        index = index.unionByName(told).distinct()
    return index


def _messages(name: str, steps: Steps) -> tuple[int, Mode]:
    stored = steps.relation("channel_message")
    if steps.is_full:
        messages = fold(steps.frame("message_version"))
        if _is_anything_purged(steps):
            messages = messages.transform(mark_purged, stored)
        return steps.lake.overwrite(name, messages, steps.target), "full"
    key = list(BY_NAME[name].key)
    known = steps.frame(name)
    new = steps.new("message_version").persist()
    try:
        touched = new.select(*key).distinct()
        changed = fold(new, known.join(touched, key, "left_semi"))
        if _is_anything_purged(steps):
            gone = known.filter(sql.col("state") != PURGED).join(
                stored.select(sql.col("message").alias("first_committed_id")),
                "first_committed_id",
                "left_anti",
            )
            changed = changed.unionByName(gone.join(touched, key, "left_anti"))
            changed = changed.transform(mark_purged, stored)
        return _put_changes(name, steps, changed)
    finally:
        new.unpersist()


def _is_anything_purged(steps: Steps) -> bool:
    """Whether the server lacks any message; where nothing is purged, this saves several joins."""
    import pyarrow.compute as pc

    there = steps.moment.tables["channel_message"]["message"]
    is_new = [("committed_id", ">", steps.start), ("action", "in", ["create", "event"])]
    begun = [steps.lake.arrow("message_version", ["committed_id"], is_new)["committed_id"]]
    if not steps.is_full:
        known = steps.lake.arrow("message", ["first_committed_id"])
        begun.append(known["first_committed_id"])
    return any(pc.all(pc.is_in(numbers, there)).as_py() is False for numbers in begun)


def _sends(name: str, steps: Steps) -> tuple[int, Mode]:
    ends = steps.relation("tombstone")
    if steps.is_full:
        frame = sends(steps.frame("log"), ends)
        return steps.lake.overwrite(name, frame, steps.target), "full"
    new = sends(steps.new("log"), ends)
    known_ends = steps.lake.arrow(name, ["deleted_at"])["deleted_at"]
    if steps.moment.tables["tombstone"].num_rows > len(known_ends) - known_ends.null_count:
        new = new.unionByName(newly_ended(steps.frame(name), ends))
    elif steps.start < steps.target:
        return steps.lake.append(name, new, steps.target), "new"
    return _put_changes(name, steps, new)


def _activity(name: str, steps: Steps) -> tuple[int, Mode]:
    log = steps.frame("log")
    if steps.is_full:
        return steps.lake.overwrite(name, activity(log), steps.target), "full"
    # Times never decrease, so minutes before that of the first new entry are over.
    new = steps.lake.arrow("log", ["committed_at"], [("committed_id", "=", steps.start + 1)])
    [first] = new["committed_at"].to_pylist()
    begin = first - first % MINUTE_MS
    changed = activity(log.filter(sql.col("committed_at") >= begin))
    return steps.lake.upsert(name, changed, steps.target), "new"


def _whole(name: str, steps: Steps) -> tuple[int, Mode]:
    """A table that is made anew of its one input."""
    table = BY_NAME[name]
    [made_of] = table.inputs
    through, made = steps.lake.through(made_of), table.make(steps.frame(made_of))
    return steps.lake.overwrite(name, made, through, made_of=made_of), "full"


def _snapshots(name: str, steps: Steps) -> tuple[int, Mode]:
    source = _model_source(steps.moment, steps.model)
    before = steps.frame(name)
    if steps.is_full or _has_other_model(steps, source.model_version):
        none = before.limit(0)
        made = snapshots(_events_of(steps), none, steps.frame("log"), source)
        return steps.lake.overwrite(name, made, steps.target), "full"
    if steps.start >= steps.target:
        return 0, "current"
    known_events = _events_of(steps)
    needed = known_events.filter(sql.col("committed_id") > steps.start)
    if begun := _partitions_without_state(steps):
        # Without a state to continue, all events of a partition are needed.
        earlier = known_events.filter(sql.col("committed_id") <= steps.start)
        names = frame_of_rows(steps.spark, [(each,) for each in begun], "partition string")
        needed = needed.unionByName(earlier.join(names, "partition", "left_semi"))
    made = snapshots(needed, before, steps.new("log"), source)
    return steps.lake.upsert(name, made, steps.target), "new"


def _events_of(steps: Steps) -> "DataFrame":
    return tellable_events(steps.spark, steps.lake, steps.frame("event"))


def _partitions_without_state(steps: Steps) -> list[str]:
    """The partitions that have a new event and no snapshot yet."""
    import pyarrow.compute as pc

    is_new = [("committed_id", ">", steps.start)]
    touched = steps.lake.arrow("event", ["partition"], is_new)["partition"].unique()
    known = steps.lake.arrow("snapshot", ["partition"])["partition"]
    begun: list[str] = touched.filter(pc.invert(pc.is_in(touched, known))).to_pylist()
    return begun


def _without_snapshot(lake: Lake) -> tuple[str, ...]:
    """Says which partitions have events and no snapshot."""
    import pyarrow.compute as pc

    named = lake.arrow("event", ["partition"])["partition"].unique()
    known = lake.arrow("snapshot", ["partition"])["partition"]
    lacking: list[str] = sorted(named.filter(pc.invert(pc.is_in(named, known))).to_pylist())
    if not lacking:
        return ()
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    note = (
        f"no snapshot of {', '.join(lacking[:_SHOWN])}{more}: content of their events is gone or "
        "forgotten, or their trees are too deep to be written"
    )
    return (note,)


def _has_other_model(steps: Steps, model_version: int) -> bool:
    made_with = steps.lake.arrow("snapshot", ["model_version"])["model_version"].unique()
    return made_with.to_pylist() not in ([], [model_version])


def tellable_events(spark: "SparkSession", lake: Lake, events: "DataFrame") -> "DataFrame":
    """Events of partitions of which none is forgotten: of others nobody can tell the state."""
    if not lake.files("forgotten"):
        return events
    gone = lake.frame(spark, "forgotten").select(sql.explode("partitions").alias("partition"))
    return events.join(gone, "partition", "left_anti")


def _model_source(moment: Moment, model: "Model | None") -> ModelSource:
    settings = moment.tables["sync_setting"].to_pylist()
    stored = {row["name"]: row["value"] for row in settings}.get(MODEL_VERSION)
    configured = 1 if model is None else model.model_version
    targets = {} if model is None else model.targets
    return ModelSource.of(targets, configured if stored is None else stored)


def _put_changes(name: str, steps: Steps, changed: "DataFrame") -> tuple[int, Mode]:
    """Write the rows that are new or other than before, if there are any or the log has grown."""
    changed = changed.persist()
    try:
        if steps.start >= steps.target and changed.isEmpty():
            return 0, "current"
        return steps.lake.upsert(name, changed, steps.target), "new"
    finally:
        changed.unpersist()


_BUILDERS: dict[str, Builder] = {
    "message_version": _growing(message_versions),
    "message": _messages,
    "event": _events,
    "send": _sends,
    "delivery": _mirroring(deliveries),
    "mention": _mirroring(mentions),
    "dedupe": _mirroring(remembered_keys),
    "activity": _activity,
    "audit": _growing(audit),
    "snapshot": _snapshots,
    **{table.name: _whole for table in TABLES if table.made_by},
}
