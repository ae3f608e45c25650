"""Tables: every row of every built table is what the log and the store make, and none is missing.

Each table is made once more, up to the position through which it says it is complete, and compared
with what it holds, row by row. Both sides of all tables go through one shuffle as rows of the same
few columns: a table is two frames here, and a range of positions is two smaller ones
(`made_tables`).

What cannot be made again, because relations of the store have changed since, the seal stands for
that every table has (`tidelog.pipeline.lake.seal`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.checks.beside import Ref
from tidelog.pipeline.checks.finding import FIRST_FINDINGS, Finding, Verdict
from tidelog.pipeline.checks.index_documents import search_pair
from tidelog.pipeline.checks.made_tables import CHANGING, PAIRS
from tidelog.pipeline.checks.plain_tables import examined_here
from tidelog.pipeline.checks.view import Key, Pair, View
from tidelog.pipeline.frames import quoted, together
from tidelog.pipeline.lake.forgetting import is_unfinished
from tidelog.pipeline.lake.horizon import begun_horizon, horizon_in_words
from tidelog.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from tidelog.pipeline.lake.lake import Lake

NAME = "tables"

WRITTEN = "written"
SEARCH = "search"
"""The rules that are not called as a table: its files are as written, and that of the index."""

RULES = {
    WRITTEN: "a table holds what the pipeline has written, and nothing else did",
    SEARCH: "the index has the visible messages, as the table has them",
    **{name: f"{name} is what it is made of" for name in PAIRS},
}

BYTES_MOST = 256 * 1024 * 1024
"""Of old files that are read to see whether they are as written, if not everything is examined."""


def subjects(lake: "Lake") -> list[str]:
    """The tables that are built, each with how often it was rebuilt.

    Those that mirror a relation, or are made anew whenever their input changes, are not counted.
    """
    return [
        f"{table.name} {lake.rebuilds(table.name)}"
        for table in TABLES
        if table.name in PAIRS
        and not table.made_by
        and (table.inputs or not table.relations)
        and lake.delta(table.name) is not None
    ]


def through(lake: "Lake") -> int:
    """How far the tables can be compared: as far as all that are built go."""
    built = [name for name in PAIRS if lake.delta(name) is not None and lake.through(name)]
    return min([lake.through("log"), *(lake.through(name) for name in built)])


def confirmed(view: View) -> Verdict:
    """The verdict on the tables, without findings that a second look at their rows does not show.

    The store goes on meanwhile; what is really damaged stays so.
    """
    verdict = check(view)
    only: dict[str, list[Key]] = {}
    refs = list[Ref]()
    for finding in verdict.findings:
        if finding.rule in CHANGING and finding.ref:
            only.setdefault(finding.rule, []).append(finding.ref)
            refs += _refs(finding.rule, finding.ref)
    if not only:
        return verdict
    again = view.again(only, refs)
    pairs = {name: pair for name in only if isinstance(pair := PAIRS[name](again), Pair)}
    there = {(row["table"], tuple(row["parts"])) for row in _differences(pairs, most=1000)[0]}
    gone = [
        each
        for each in verdict.findings
        if each.rule in only and each.ref and (each.rule, each.ref) not in there
    ]
    return verdict.without(gone)


def _refs(name: str, key: Key) -> list[Ref]:
    """What a row of a table is made of in the store."""
    if name == "dedupe":
        return [Ref("key", key)]
    if name == "message":
        number = key[2][-20:]
        return [Ref("entry", (int(number),))] if number.isdecimal() else []
    return [Ref("message", key[:1])]


def check(view: View) -> Verdict:
    """Compare the tables that are built, and the search index."""
    lake = view.lake
    there = [table.name for table in TABLES if lake.delta(table.name) is not None]
    written = _written(view, there)
    if is_unfinished(lake):
        text = "a forget was not finished. Finish it: `tidelog pipeline forget`."
        return _verdict(view, 0, written, uncompared=(text,))
    if begun_horizon(lake) is not None:
        text = "removing content by age was not finished. Finish it: `tidelog pipeline build`."
        return _verdict(view, 0, written, uncompared=(text,))
    built = [name for name in PAIRS if name in there]
    if not built:
        text = "no table is built. Build them: `tidelog pipeline build`."
        return _verdict(view, 0, written, uncompared=(text,) if lake.through("log") else ())
    pairs, notes, known = _pairs(view, built)
    notes += [words] if (words := horizon_in_words(lake)) else []
    rows, total, examined = _differences(pairs)
    found = _findings(pairs, rows)
    return _verdict(view, known + examined, [*written, *found], len(written) + total, notes)


def _written(view: View, names: Iterable[str]) -> list[Finding]:
    """What shows that something else has written to tables.

    Unless everything is examined, of the files themselves those are read that came since, and as
    many others by chance as `BYTES_MOST` allows.
    """
    lake, chosen = view.lake, set[str]()
    names = list(names)
    if not view.is_whole:
        since, left = _last_run(lake), BYTES_MOST
        files = [file for name in names for file in lake.files(name)]
        for file in view.chance.sample(files, len(files)):
            stat = Path(file).stat()
            left -= stat.st_size
            if left >= 0 or stat.st_mtime >= since:
                chosen.add(file)
    return [
        Finding(WRITTEN, f"table {name}", text)
        for name in names
        for text in lake.written_elsewhere(name, None if view.is_whole else chosen)
    ]


def _last_run(lake: "Lake") -> float:
    """When the tables were last examined, in seconds since 1970."""
    if lake.delta("verdict") is None:
        return 0.0
    ran = lake.arrow("verdict", ["ran_at"], [("check", "=", NAME)])["ran_at"].to_pylist()
    return max((at.timestamp() for at in ran), default=0.0)


def _verdict(
    view: View,
    examined: int,
    findings: Sequence[Finding],
    total: int | None = None,
    notes: Sequence[str] = (),
    uncompared: tuple[str, ...] = (),
) -> Verdict:
    if findings:
        notes = [*notes, "to rebuild a table: `tidelog pipeline build TABLE --full`"]
    total = len(findings) if total is None else total
    through, first = view.extent.new.through, tuple(findings[:FIRST_FINDINGS])
    return Verdict(NAME, through, examined, first, total, tuple(notes), uncompared, view.ranges)


def _pairs(view: View, built: Sequence[str]) -> tuple[dict[str, Pair], list[str], int]:
    """What is to be compared, what is not, and how many rows are plainly right."""
    pairs: dict[str, Pair] = {}
    examined = 0
    notes = []
    missing = [name for name in PAIRS if name not in built]
    if missing:
        notes.append(f"not built: {', '.join(missing)}")
    for name in built:
        if view.lake.through("log") and not view.lake.through(name):
            notes.append(f"{name} is not compared: the next build will rebuild it")
            continue
        rows = examined_here(view, name)
        if rows is not None:
            examined += rows
            continue
        found = PAIRS[name](view)
        if isinstance(found, Pair):
            pairs[name] = found
        elif found:
            notes.append(f"{name} is not compared: {found}")
    found = search_pair(view)
    if isinstance(found, Pair):
        pairs[SEARCH] = found
    elif found:
        notes.append(f"the search index is not compared: {found}")
    return pairs, notes, examined


# Comparing.


def _differences(pairs: dict[str, Pair], most: int | None = None) -> "tuple[list[Row], int, int]":
    """Compare both sides of some tables.

    Returns:
        The first rows that are on one side only, or are not the same; the number of all of them;
        and that of the rows of tables that were looked at.
    """
    from pyspark.sql import functions as sql

    most = FIRST_FINDINGS if most is None else most
    if not pairs:
        return [], 0, 0
    sides = [_side(name, pair, is_made=made) for name, pair in pairs.items() for made in (0, 1)]
    grouped = (
        together(sides)
        .groupBy("table", "key", "key_hash")
        .agg(
            *(
                sql.expr(f"{how} FILTER (WHERE is_made = {made})").alias(f"{side}_{column}")
                for side, made in (("made", 1), ("held", 0))
                for column, how in (
                    ("rows", "count(*)"),
                    ("whole", "max(whole)"),
                    ("least", "min(whole)"),
                    ("fixed", "max(fixed)"),
                    ("is_free", "bool_or(is_free)"),
                    ("is_open", "bool_or(is_open)"),
                )
            ),
            sql.min("at").alias("at"),
            sql.first("parts").alias("parts"),
        )
    )
    is_same = (
        "made_whole = held_whole OR held_is_free OR (held_is_open AND made_fixed = held_fixed)"
    )
    problem = sql.expr(
        "CASE WHEN held_rows = 0 THEN CASE WHEN NOT made_is_free THEN 'missing' END "
        "WHEN made_rows = 0 THEN CASE WHEN NOT held_is_free THEN 'foreign' END "
        "WHEN held_rows > made_rows THEN 'double' "
        f"WHEN NOT ({is_same}) OR held_least != held_whole THEN 'other' END"
    )
    judged = grouped.withColumn("problem", problem)
    shown = ("table", "key", "problem", "at", "parts")
    wrong = judged.where("problem IS NOT NULL").orderBy("at", "table", "key").limit(most)
    counts = judged.agg(
        sql.expr("count_if(problem IS NOT NULL)").alias("found"),
        sql.expr(f"sum(held_rows) FILTER (WHERE table != '{SEARCH}')").alias("examined"),
    )
    # Both in one action: the rows come together once.
    kinds = {field.name: field.dataType for field in judged.schema.fields}
    none = [sql.lit(None).cast(kinds[name]).alias(name) for name in shown]
    zero = [sql.lit(0).cast("bigint").alias(name) for name in ("found", "examined")]
    *first, last = (
        wrong.select(*shown, *zero).unionByName(counts.select(*none, "found", "examined")).collect()
    )
    return first, last["found"], last["examined"] or 0


def _findings(pairs: dict[str, Pair], rows: "Sequence[Row]") -> list[Finding]:
    """What is wrong with rows, in words; of those that are not the same, in which columns."""
    others = {
        name: _different_columns(
            pairs[name],
            [row["key"] for row in rows if row["table"] == name and row["problem"] == "other"],
        )
        for name in {row["table"] for row in rows}
    }
    texts = {
        "missing": "is not there",
        "foreign": "is there, and nothing makes it",
        "double": "is there more than once",
    }
    findings = []
    for row in rows:
        differ = others[row["table"]].get(row["key"]) or "it"
        text = texts.get(row["problem"]) or f"is not what it is made of: {differ}"
        at, parts = row["at"], tuple(row["parts"])
        findings.append(Finding(row["table"], f"row {row['key']}", text, at, parts))
    return findings


def _side(name: str, pair: Pair, *, is_made: int) -> "DataFrame":
    """One side of a table in the columns that all tables share."""
    frame = pair.made if is_made else pair.held
    flags = {
        flag: f"coalesce(_{flag}, false)" if f"_{flag}" in frame.columns else "false"
        for flag in ("is_free", "is_open")
    }
    position = next((c for c in ("committed_id", "last_committed_id") if c in pair.columns), None)
    columns = {
        "table": f"'{name}'",
        "key": _key_text(pair),
        "key_hash": f"xxhash64({', '.join(map(quoted, pair.key))})",
        "is_made": str(is_made),
        "whole": _hash(frame, pair.columns),
        "fixed": _hash(frame, pair.fixed or pair.columns),
        **flags,
        "at": f"CAST({quoted(position) if position else 'NULL'} AS bigint)",
        "parts": f"array({_key_parts(pair)})",
    }
    return frame.selectExpr(
        *(f"{made_of} AS {quoted(column)}" for column, made_of in columns.items())
    )


def _key_text(pair: Pair) -> str:
    return f"concat_ws('/', {_key_parts(pair)})"


def _key_parts(pair: Pair) -> str:
    return ", ".join(f"CAST({quoted(name)} AS string)" for name in pair.key)


def _hash(frame: "DataFrame", columns: Iterable[str]) -> str:
    """One number for the values; Spark's hash passes over what is null, so that is told too."""
    values = list[str]()
    for name in columns:
        value = quoted(name)
        values += [value, f"{value} IS NULL"]
        if frame.schema[name].dataType.typeName() == "array":
            values.append(f"size({value})")
    return f"xxhash64({', '.join(values)})"


def _different_columns(pair: Pair, keys: list[str]) -> dict[str, str]:
    """By key: the names of the columns in which the two sides differ."""
    from pyspark.sql import functions as sql

    if not keys:
        return {}
    sides: list[dict[str, Any]] = []
    for frame in (pair.made, pair.held):
        rows = frame.selectExpr("*", f"{_key_text(pair)} AS _key").where(sql.col("_key").isin(keys))
        sides.append({row["_key"]: row for row in rows.collect()})
    made, held = sides
    return {
        key: ", ".join(c for c in pair.columns if made[key][c] != held[key][c])
        for key in made.keys() & held.keys()
    }
