"""Running checks: they share one reading of the store, and what they say is kept in the lake.

Each examines what came since it was last sound, and something old, see `extent`. What is noted of
it afterwards goes as far as it was sound, and back to where something was found.
"""

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidelog.base.errors import ConfigError
from tidelog.pipeline.checks import agreement, continuity, digest, orphans, retention, tables
from tidelog.pipeline.checks.evidence import FOLDER, Evidence
from tidelog.pipeline.checks.extent import (
    CHECKS,
    OLD_MOST,
    POSITION,
    Extent,
    Noted,
    Range,
    begun,
    checks_are_current,
    extent_of,
    noted,
)
from tidelog.pipeline.checks.finding import Finding, Verdict
from tidelog.pipeline.checks.view import View
from tidelog.pipeline.fill.ingest import noted_position
from tidelog.pipeline.lake.errors import SchemaDrift
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.lazy_spark import is_local, with_settings
from tidelog.pipeline.spark.session import SMALL_ROWS, SMALL_SETTINGS
from tidelog.pipeline.tables import VERDICT

if TYPE_CHECKING:
    from tidelog.pipeline.checks.served import Server
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.source.store_address import StoreAddress, StoreHead
    from tidelog.pipeline.transforms.snapshots import ModelSource

__all__ = ["CHECKS", "checks_are_current", "run_checks"]

CHECKS_AT_ONCE = 2
"""A check waits for one processor much of the time; two fill a small machine."""


def run_checks(
    names: Iterable[str],
    spark: "Spark",
    address: "StoreAddress",
    lake: "Lake",
    *,
    server: "Server | None" = None,
    model: "ModelSource | None" = None,
    now_ms: int | None = None,
    full: bool = False,
    seed: int | None = None,
    told: Callable[[Verdict], None] = lambda _verdict: None,
) -> list[Verdict]:
    """Run checks and write their verdicts to the table `verdict`; the caller may write to the lake.

    Args:
        names: Of `CHECKS`; none means all.
        spark: The session.
        address: The store.
        lake: What agreement and tables compare, and where verdicts are kept.
        server: To be asked by agreement.
        model: Of the sync surface, for agreement and tables.
        now_ms: What expiry is judged by; the time of this machine if None.
        full: Examine everything, not only what is new and something old.
        seed: Decides what of the old is examined; by chance if None.
        told: Called with each verdict, in the order of `CHECKS`.

    Raises:
        ConfigError: there is no such check.
    """
    wanted = set(names) or set(CHECKS)
    if unknown := sorted(wanted.difference(CHECKS)):
        raise ConfigError(f"no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    seed = random.SystemRandom().getrandbits(31) if seed is None else seed
    head, known = address.head(), _known(lake)
    compared_tables = tables.subjects(lake)
    extents = {
        name: extent_of(
            known.get(name),
            _through(name, lake, head),
            address,
            seed,
            full=full,
            subjects=compared_tables if name == tables.NAME else (),
        )
        for name in CHECKS
        if name in wanted
    }
    verdicts = []
    with (
        _suited(spark, extents.values()),
        _evidence(spark, address, head, extents, lake, seed) as (evidence, of_tables),
    ):

        def of_the_same_log(look: Callable[[Extent], Verdict], name: str) -> Verdict:
            """A lake of another history differs in everything; that is not what a finding is."""
            place = noted_position(lake)
            other = place and address.other_history(place)
            if other:
                return Verdict(name, 0, 0, uncompared=(str(other),))
            return look(extents[name])

        def compared(extent: Extent) -> Verdict:
            return agreement.check(evidence, lake, extent.ranges, server=server, model=model)

        def made_again(extent: Extent) -> Verdict:
            view = View(spark, lake, of_tables, extent, model, now_ms)
            return tables.confirmed(view)

        def beside(extent: Extent) -> Verdict:
            verdict = orphans.check(evidence, extent.ranges, now_ms)
            return orphans.confirmed(evidence, verdict, now_ms)

        looks: dict[str, Callable[[Extent], Verdict]] = {
            continuity.NAME: lambda extent: continuity.check(evidence, extent.ranges),
            orphans.NAME: beside,
            digest.NAME: lambda extent: digest.check(evidence, extent.ranges),
            retention.NAME: lambda extent: retention.check(evidence, extent.ranges),
            agreement.NAME: lambda _: of_the_same_log(compared, agreement.NAME),
            tables.NAME: lambda _: of_the_same_log(made_again, tables.NAME),
        }

        def judge(name: str) -> Verdict:
            return _with_position(looks[name](extents[name]), extents[name])

        with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
            for verdict in pool.map(judge, extents):
                told(verdict)
                verdicts.append(verdict)
        now_known = {
            verdict.check: _moved(
                known.get(verdict.check) or begun(head.log_id, head.incarnation),
                verdict,
                extents[verdict.check],
                head,
                evidence,
                lake,
            )
            for verdict in verdicts
        }
    _keep(lake, verdicts, now_known, seed, {tables.NAME: compared_tables})
    return verdicts


def _through(name: str, lake: "Lake", head: "StoreHead") -> int:
    """How far a check looks."""
    if name == agreement.NAME:
        return min(lake.through("log"), head.committed_id)
    return tables.through(lake) if name == tables.NAME else head.committed_id


@contextlib.contextmanager
def _suited(spark: "Spark", extents: Iterable[Extent]) -> Iterator[None]:
    """The settings of a small log while only a little of a long one is examined."""
    most = max(sum(each.entries for each in extent.ranges) for extent in extents)
    is_small = is_local(spark) and most <= SMALL_ROWS + OLD_MOST
    with with_settings(spark, SMALL_SETTINGS if is_small else {}):
        yield


@contextlib.contextmanager
def _evidence(
    spark: "Spark",
    address: "StoreAddress",
    head: "StoreHead",
    extents: dict[str, Extent],
    lake: "Lake",
    seed: int,
) -> Iterator[tuple[Evidence, Evidence]]:
    """One reading of the store for all checks; another for tables, if they need other entries."""
    root = lake.root / FOLDER
    shutil.rmtree(root, ignore_errors=True)  # of checks that were killed

    def reading(names: Iterable[str]) -> Evidence:
        ranges = [each for name in names if name in extents for each in extents[name].ranges]
        return Evidence(spark, address, head, ranges, root / uuid4().hex, seed=seed)

    shared = reading(name for name in CHECKS if name != tables.NAME)
    own = reading([tables.NAME])
    try:
        yield shared, shared if shared.has(own.ranges) else own
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _with_position(verdict: Verdict, extent: Extent) -> Verdict:
    """A verdict that also says what is wrong with what was noted."""
    notes = (*verdict.notes, extent.note) if extent.note else verdict.notes
    if not extent.problem:
        return verdict._replace(notes=notes)
    found = Finding(POSITION, "table verdict", f"{extent.problem}; everything was examined")
    return verdict._replace(
        notes=notes, findings=(found, *verdict.findings), total=verdict.total + 1
    )


def _moved(
    known: Noted,
    verdict: Verdict,
    extent: Extent,
    head: "StoreHead",
    evidence: Evidence,
    lake: "Lake",
) -> Noted:
    """What is noted of a check that has just run."""
    if extent.is_whole:
        known = begun(head.log_id, head.incarnation)
    found = [each for each in verdict.findings if each.rule != POSITION]
    if verdict.uncompared and not found:
        return known._replace(findings=verdict.total + len(verdict.uncompared))
    if found:
        begin = min(known.sound.committed_id, *(max(0, (each.at or 1) - 1) for each in found))
        digest_there = evidence.address.entry_digest_at(begin)
        if digest_there is None:
            begin, digest_there = 0, begun("", "").sound.digest
        sound = known.sound._replace(
            committed_id=begin, digest=digest_there, incarnation=head.incarnation
        )
        return Noted(sound, begin, verdict.total + len(verdict.uncompared))
    new = extent.new
    if verdict.check == tables.NAME:
        examined, last = _in_lake(lake, new)
    else:
        examined = evidence.entries(new)
        last = evidence.digest_at(new.through)
    covered = (0 if extent.is_whole else known.covered) + examined
    sound = head.position._replace(committed_id=new.through, digest=last or b"")
    return Noted(sound, covered, verdict.total)


def _in_lake(lake: "Lake", wanted: Range) -> tuple[int, bytes | None]:
    """How many entries of a range the lake has, and the digest of its last one."""
    if not wanted.through:
        return 0, begun("", "").sound.digest
    inside = [("committed_id", ">", wanted.after), ("committed_id", "<=", wanted.through)]
    rows = lake.arrow("log", ["committed_id"], inside).num_rows if wanted.entries else 0
    at = [("committed_id", "=", wanted.through)]
    digests: list[bytes] = lake.arrow("log", ["digest"], at)["digest"].to_pylist()
    return rows, digests[0] if digests else None


def _known(lake: "Lake") -> dict[str, Noted]:
    """What is noted; a table of an earlier version noted no positions, and begins anew."""
    try:
        return noted(lake)
    except SchemaDrift:
        lake.remove("verdict")
        return {}


def _keep(
    lake: "Lake",
    verdicts: Sequence[Verdict],
    now_known: dict[str, Noted],
    seed: int,
    subjects: dict[str, list[str]],
) -> None:
    """Write what was said, in the place of what was said before; without Spark, it is little."""
    import pyarrow as pa

    now = datetime.now(UTC)
    rows = {
        verdict.check: {
            "check": verdict.check,
            "ran_at": now,
            "through": verdict.through,
            "examined": verdict.examined,
            "findings": verdict.total + len(verdict.uncompared),
            "first": list(verdict.told),
            "ranges": [str(each) for each in verdict.ranges],
            "subjects": subjects.get(verdict.check, []),
            "seed": seed,
            "sound_through": known.sound.committed_id,
            "covered": known.covered,
            "log_id": known.sound.log_id,
            "incarnation": known.sound.incarnation,
            "digest": known.sound.digest.hex(),
        }
        for verdict in verdicts
        for known in (now_known[verdict.check],)
    }
    before: list[dict[str, Any]] = []
    if lake.delta("verdict") is not None:
        before = [row for row in lake.arrow("verdict").to_pylist() if row["check"] not in rows]
    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<string>": pa.list_(pa.string()),
    }
    schema = pa.schema([(column.name, kinds[column.kind]) for column in VERDICT.columns])
    table = pa.Table.from_pylist([*before, *rows.values()], schema)
    file = lake.new_folder("verdict") / "verdict.parquet"
    write_parquet(file, schema, table.to_batches())
    through = max((verdict.through for verdict in verdicts), default=0)
    lake.overwrite_files("verdict", [file], through)
