"""Forgetting: the content of messages, or of all that somebody wrote, leaves every file.

Positions, times, actors and digests stay, so the chain of digests still verifies and nothing is
renumbered. First the lake notes what is to be forgotten; that note makes the rest restartable, and
keeps it true when the log is ingested again or a message that was forgotten is changed later. Then
the files with such content are rewritten without it, the search index follows, and a vacuum
deletes everything that the newest version of each table does not need. With it goes the history of
the tables: no older version can be read afterwards, also not by `as-of` of Delta readers.

A message of a channel is named by its app, and an actor can be: the same name may be somebody else
in another app or on another surface, and what is forgotten does not come back.

A version of a message that somebody wrote may be contained in all that come after it, so those are
forgotten too, whoever wrote them; versions before it stay.

The state of a sync partition is made of its events. With one forgotten it cannot be made from the
lake any more, and one made without it would be wrong: the snapshots of its partitions are removed,
and none is made or published again. The server has its own.

What was erased in the server's store is forgotten with it: whole messages and the keys they were
published under, as there. The store itself is not touched: what it still serves has to be erased
there.
"""

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.forgetting import begin_forgetting, end_forgetting
from tidelog.pipeline.lake.horizon import BASE, horizon
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.reading import forgotten_partitions
from tidelog.pipeline.search.index import index_root
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.relations import RELATIONS
from tidelog.pipeline.tables import BY_NAME, FORGOTTEN, TABLES, TABLES_WITH_CONTENT
from tidelog.pipeline.transforms.erasure import erased, forgotten_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_SHOWN = 5
"""Ids that a refusal names."""

_SLASHES = 2
"""In the name of a message of a channel: no app, channel or serial has one of its own."""


class NothingToForget(TidelogError):  # noqa: N818 - the failure is the noun
    """An id or an actor that the lake does not know: nothing was changed."""


class Forgotten(Struct, frozen=True):
    """What was forgotten, or would be."""

    entities: int
    """Messages, events and sends that were asked for."""
    places: dict[str, int]
    """How many of them each app, mesh and sync has, by what their streams begin with:
    `channels/APP`, `mesh/ID` or `sync`."""
    erased: int
    """Messages that were erased in the store, and that the lake had not forgotten yet."""
    rows: dict[str, int]
    """By table: rows whose content was there."""
    partitions: tuple[str, ...]
    """Sync partitions that have no snapshot in the lake from now on."""
    deleted_files: int
    is_dry_run: bool


class _Found(NamedTuple):
    """What was asked for, as the lake has it."""

    places: dict[str, int]
    """As those of `Forgotten`."""
    partitions: list[str]


def places_of(
    spark: "SparkSession", lake: Lake, *, messages: Sequence[str], actors: Sequence[str]
) -> dict[str, int]:
    """Where `forget` would find what these name, and how much: the `places` of `Forgotten`.

    Raises:
        NothingToForget: a message or an actor is not in the lake.
        LakeLocked: another process writes to the lake.
    """
    with lake.writing():
        asked = _asked(lake.frame(spark, "log").withColumn("partitions", _none()), messages, actors)
        return _found(asked, messages, actors).places


def forget(
    spark: "SparkSession",
    lake: Lake,
    *,
    messages: Sequence[str] = (),
    actors: Sequence[str] = (),
    erased_in_store: "pa.Table | None" = None,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _step: None,
) -> Forgotten:
    """Forget content; without any that is named, finish what was begun.

    Args:
        spark: Runs the work.
        lake: What is to forget.
        messages: `app_id/channel/message_serial`, broker message ids and ids of sync events. Such
            an id with two slashes, or that begins with one, is given after another: `/a/b/c`.
        actors: Everything they wrote: `app_id/actor` in the channels of that app, `actor` wherever
            somebody has that name. One with a slash in the name is given after another: `/a/b`.
        erased_in_store: The relation `channel_erasure` of the store that the lake was made of.
        dry_run: Only say what would be forgotten.
        progress: Told the name of each step.

    Raises:
        NothingToForget: a message or an actor is not in the lake.
        LakeLocked: another process writes to the lake.
    """
    with lake.writing():
        known = lake.frame(spark, "forgotten")
        asked = _asked(_with_partitions(spark, lake), messages, actors).persist()
        orders = _erased_in_store(spark, lake, erased_in_store)
        gone = (known.limit(0) if orders is None else _unlisted(orders, known)).persist()
        try:
            found = _found(asked, messages, actors)
            entities = sum(found.places.values())
            erased = gone.count()
            partitions = tuple(sorted({*found.partitions, *forgotten_partitions(lake)}))
            listed = _merged(known, asked.drop("_name", "_actors").unionByName(gone))
            if dry_run:
                rows = {
                    name: forgotten_rows(name, lake.frame(spark, name), listed).count()
                    for name in TABLES_WITH_CONTENT
                }
                return Forgotten(
                    entities, found.places, erased, rows, partitions, 0, is_dry_run=True
                )
            if entities or erased:
                progress("note")
                begin_forgetting(lake)
                lake.overwrite("forgotten", listed.coalesce(1), lake.through("log"))
        finally:
            asked.unpersist()
            gone.unpersist()
        rows = _erase(spark, lake, partitions, progress)
        if orders is not None:
            progress("dedupe")
            rows["dedupe"] = _remove_keys(spark, lake, orders)
        deleted = _delete_files(lake, progress)
        end_forgetting(lake)
        return Forgotten(
            entities, found.places, erased, rows, partitions, deleted, is_dry_run=False
        )


def _erased_in_store(
    spark: "SparkSession", lake: Lake, orders: "pa.Table | None"
) -> "DataFrame | None":
    """Messages of the lake that the store has erased; None if nothing was ever erased there."""
    from pyspark.sql import functions as sql

    if orders is None or not orders.num_rows:
        return None
    ddl = ", ".join(f"{name} {kind}" for name, kind in RELATIONS["channel_erasure"].items())
    given = frame_of_rows(spark, orders, ddl).withColumnsRenamed(
        {"stream": "_stream", "actor": "_actor", "message": "_message", "through": "_through"}
    )
    entries = (
        lake.frame(spark, "log")
        .where("surface = 'channels'")
        .select("committed_id", "stream", "entity", "actor")
        # A message is called by the position of its create.
        .withColumn("first_committed_id", sql.substring("entity", -20, 20).cast("bigint"))
    )
    in_stream = sql.col("stream") == sql.col("_stream")
    rules = (
        ("_message != 0", in_stream & (sql.col("first_committed_id") == sql.col("_message"))),
        (
            "_message = 0 AND _actor = ''",
            in_stream & (sql.col("first_committed_id") <= sql.col("_through")),
        ),
        (
            "_actor != ''",
            (sql.col("actor") == sql.col("_actor"))
            & sql.col("stream").startswith(sql.col("_stream"))
            & (sql.col("committed_id") <= sql.col("_through")),
        ),
    )
    place = ("stream", "entity", "first_committed_id")
    return functools.reduce(
        lambda one, other: one.unionByName(other),
        (entries.join(given.where(kind), fits, "left_semi").select(*place) for kind, fits in rules),
    ).distinct()


def _unlisted(erased: "DataFrame", known: "DataFrame") -> "DataFrame":
    """Rows of `forgotten` for messages that are not in it yet."""
    from pyspark.sql import functions as sql

    listed = known.select(
        sql.col("stream").alias("_stream"),
        sql.col("entity").alias("_entity"),
        sql.col("first_committed_id").alias("_first"),
    )
    is_listed = (
        (sql.col("stream") == sql.col("_stream"))
        & (sql.col("entity") == sql.col("_entity"))
        & (sql.col("_first") <= sql.col("first_committed_id"))
    )
    return (
        erased.join(listed, is_listed, "left_anti")
        .withColumn("partitions", _none())
        .withColumn("forgotten_at", sql.current_timestamp())
    )


def _with_partitions(spark: "SparkSession", lake: Lake) -> "DataFrame":
    """The log with the partitions of each sync event; of one without a body the table tells."""
    from pyspark.sql import functions as sql

    log = lake.frame(spark, "log")
    body = sql.from_json(sql.col("body").cast("string"), "partitions array<string>")
    told = sql.when(sql.col("surface") == "sync", body["partitions"])
    if not horizon(lake):
        return log.withColumn("partitions", told)
    known = (
        lake.frame(spark, "event")
        .where(sql.col("committed_id") <= horizon(lake))
        .groupBy("committed_id")
        .agg(sql.sort_array(sql.collect_set("partition")).alias("_known"))
    )
    return log.join(known, "committed_id", "left").withColumn(
        "partitions", sql.coalesce(told, "_known")
    )


def _none() -> "Column":
    """No partitions."""
    from pyspark.sql import functions as sql

    return sql.lit(None).cast("array<string>")


def _asked(log: "DataFrame", messages: Sequence[str], actors: Sequence[str]) -> "DataFrame":
    """Rows of `forgotten` for what was asked, each with the names by which it was found."""
    from pyspark.sql import functions as sql

    is_named = _name().isin([_full_name(each) for each in messages])
    full_actors = [_full_actor(each) for each in actors]
    by_actor = sql.array_intersect(
        _actor_names(), sql.array(*map(sql.lit, full_actors)).cast("array<string>")
    )
    # The first condition says no more than the second, but files can be left out by it.
    is_theirs = sql.col("actor").isin([each.partition("/")[2] for each in full_actors]) & (
        sql.size(by_actor) > 0
    )
    return (
        log.where(is_named | is_theirs)
        .groupBy("stream", "entity")
        .agg(
            sql.min("committed_id").alias("first_committed_id"),
            sql.first("partitions", ignorenulls=True).alias("partitions"),
            sql.first(sql.when(is_named, _name()), ignorenulls=True).alias("_name"),
            sql.flatten(sql.collect_set(by_actor)).alias("_actors"),
        )
        .withColumn("forgotten_at", sql.current_timestamp())
    )


def _found(asked: "DataFrame", messages: Sequence[str], actors: Sequence[str]) -> _Found:
    """Where what was asked for is, and its partitions; refuses if something of it is not there."""
    from pyspark.sql import functions as sql

    if not messages and not actors:
        return _Found({}, [])
    found = (
        asked.groupBy(sql.substring_index("stream", "/", 2).alias("place"))
        .agg(
            sql.count(sql.lit(1)).alias("entities"),
            sql.collect_set("_name").alias("names"),
            sql.array_distinct(sql.flatten(sql.collect_set("_actors"))).alias("actors"),
            sql.array_distinct(sql.flatten(sql.collect_set("partitions"))).alias("partitions"),
        )
        .orderBy("place")
        .collect()
    )
    names = {name for row in found for name in row["names"]}
    theirs = {actor for row in found for actor in row["actors"]}
    unknown = [each for each in messages if _full_name(each) not in names]
    unknown += [each for each in actors if _full_actor(each) not in theirs]
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise NothingToForget(
            f"not in the lake: {', '.join(unknown[:_SHOWN])}{more}. Nothing was forgotten. "
            "A message is app_id/channel/message_serial, a broker message id or the id of a sync "
            "event; an actor is app_id/actor, or a name for every app and surface. An id or a "
            "name that has slashes itself is given after one: /a/b/c. What was not ingested yet "
            "is not in the lake."
        )
    return _Found(
        {row["place"]: row["entities"] for row in found},
        [partition for row in found for partition in row["partitions"]],
    )


def is_anywhere(actor: str) -> bool:
    """Whether an actor is named without an app, and so means all who are called that."""
    return _full_actor(actor).startswith("/")


def _full_actor(actor: str) -> str:
    """`app_id/actor`, or `/actor` for whoever has that name: no app has an empty id."""
    return actor if "/" in actor else f"/{actor}"


def _full_name(message: str) -> str:
    """`app_id/channel/message_serial`, or `/id` for what is not in a channel."""
    is_full = message.startswith("/") or message.count("/") == _SLASHES
    return message if is_full else f"/{message}"


def _actor_names() -> "Column":
    """How somebody names who wrote an entry, as `_full_actor` does."""
    from pyspark.sql import functions as sql

    app = sql.substring_index(sql.substring_index("stream", "/", 2), "/", -1)
    in_app = sql.when(sql.col("surface") == "channels", sql.concat_ws("/", app, "actor"))
    return sql.array(sql.concat(sql.lit("/"), "actor"), in_app)


def _name() -> "Column":
    """How somebody names what an entry belongs to, as `_full_name` does."""
    from pyspark.sql import functions as sql

    in_channel = sql.concat_ws("/", sql.substring_index("stream", "/", -2), "entity")
    is_channel = sql.col("surface") == "channels"
    return sql.when(is_channel, in_channel).otherwise(sql.concat(sql.lit("/"), "entity"))


def _merged(known: "DataFrame", asked: "DataFrame") -> "DataFrame":
    """The list with what was asked; what is on it stays, and begins no later."""
    from pyspark.sql import functions as sql

    return (
        known.unionByName(asked)
        .groupBy("stream", "entity")
        .agg(
            sql.min("first_committed_id").alias("first_committed_id"),
            sql.first("partitions", ignorenulls=True).alias("partitions"),
            sql.min("forgotten_at").alias("forgotten_at"),
        )
        .select(*(column.name for column in FORGOTTEN.columns))
    )


def _erase(
    spark: "SparkSession",
    lake: Lake,
    partitions: Sequence[str],
    progress: Callable[[str], None],
) -> dict[str, int]:
    """Rewrite every file with forgotten content; returns how many rows each table had."""
    from pyspark.sql import functions as sql

    listed = lake.frame(spark, "forgotten")
    rows = {}
    for name in TABLES_WITH_CONTENT:
        progress(name)
        rows[name] = lake.rewrite(
            spark,
            name,
            functools.partial(forgotten_rows, name, forgotten=listed),
            functools.partial(erased, name, forgotten=listed),
        )
    is_gone = sql.col("partition").isin(list(partitions))
    for name in ("snapshot", *([BASE] if lake.delta(BASE) is not None else [])):
        progress(name)
        rows[name] = lake.rewrite(
            spark,
            name,
            lambda stored: stored.where(is_gone),
            lambda stored: stored.where(~is_gone),
        )
    if index_root(lake.root).exists() and lake.delta("message") is not None:
        progress("search index")
        update_index(spark, lake)
    return rows


def _remove_keys(spark: "SparkSession", lake: Lake, erased: "DataFrame") -> int:
    """Remove the keys that messages were published under, as the store does with its own."""
    log = lake.frame(spark, "log").select("committed_id", "stream", "entity")
    entries = log.join(erased, ["stream", "entity"], "left_semi").select("committed_id").persist()
    try:
        return lake.rewrite(
            spark,
            "dedupe",
            lambda stored: stored.join(entries, "committed_id", "left_semi"),
            lambda stored: stored.join(entries, "committed_id", "left_anti").select(
                *(column.name for column in BY_NAME["dedupe"].columns)
            ),
        )
    finally:
        entries.unpersist()


def _delete_files(lake: Lake, progress: Callable[[str], None]) -> int:
    """Delete what no newest version needs, also what writes that died have left."""
    progress("vacuum")
    deleted = 0
    for table in TABLES:
        if lake.delta(table.name) is None:
            lake.remove(table.name)
        else:
            deleted += lake.vacuum(table.name, timedelta(0))
    return deleted
