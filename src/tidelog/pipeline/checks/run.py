"""Running checks: each looks at the store at one moment, and what they say is kept in the lake."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidelog.base.errors import ConfigError
from tidelog.pipeline.checks import agreement, continuity, digest, orphans, retention, tables
from tidelog.pipeline.checks.evidence import confirmed, take
from tidelog.pipeline.checks.finding import Verdict
from tidelog.pipeline.fill.ingest import noted_position
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.source.relations import read_relations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.checks.served import Server
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.transforms.snapshots import ModelSource

CHECKS = (
    *(continuity.NAME, orphans.NAME, digest.NAME),
    *(agreement.NAME, retention.NAME, tables.NAME),
)
"""All checks, in the order they run."""

CHECKS_AT_ONCE = 2
"""A check waits for one processor much of the time; two fill a small machine."""


def run_checks(
    names: Iterable[str],
    spark: "SparkSession",
    address: "StoreAddress",
    lake: "Lake",
    *,
    server: "Server | None" = None,
    model: "ModelSource | None" = None,
    now_ms: int | None = None,
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
        told: Called with each verdict, in the order of `CHECKS`.

    Raises:
        ConfigError: there is no such check.
    """
    wanted = list(names) or list(CHECKS)
    if unknown := [name for name in wanted if name not in CHECKS]:
        raise ConfigError(f"no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms

    def of_the_same_log(name: str, look: Callable[[], Verdict]) -> Verdict:
        """A lake of another history differs in everything, which is not what a finding is for."""
        noted = noted_position(lake)
        other = noted and address.other_history(noted)
        return Verdict(name, 0, 0, uncompared=(str(other),)) if other else look()

    looks: dict[str, Callable[[], Verdict]] = {
        continuity.NAME: lambda: continuity.check(take(spark, address, continuity.NEEDS)),
        orphans.NAME: lambda: orphans.check(take(spark, address, orphans.NEEDS), now_ms),
        digest.NAME: lambda: digest.check(take(spark, address, digest.NEEDS)),
        retention.NAME: lambda: retention.check(take(spark, address, retention.NEEDS)),
        agreement.NAME: lambda: of_the_same_log(
            agreement.NAME,
            lambda: agreement.check(
                take(spark, address, agreement.NEEDS), lake, server=server, model=model
            ),
        ),
        tables.NAME: lambda: of_the_same_log(
            tables.NAME,
            lambda: tables.check(
                tables.View(
                    spark, lake, address, read_relations(address, tables.NEEDS), model, now_ms
                )
            ),
        ),
    }
    verdicts = []
    with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
        for verdict in pool.map(confirmed, (looks[name] for name in CHECKS if name in wanted)):
            told(verdict)
            verdicts.append(verdict)
    _keep(spark, lake, verdicts)
    return verdicts


def _keep(spark: "SparkSession", lake: "Lake", verdicts: list[Verdict]) -> None:
    from tidelog.pipeline.tables import VERDICT

    now = datetime.now(UTC)
    rows = [
        (
            verdict.check,
            now,
            verdict.through,
            verdict.examined,
            verdict.total + len(verdict.uncompared),
            list(verdict.told),
        )
        for verdict in verdicts
    ]
    through = max((verdict.through for verdict in verdicts), default=0)
    lake.upsert("verdict", frame_of_rows(spark, rows, VERDICT.ddl), through)
