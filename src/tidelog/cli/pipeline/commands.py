"""`tidelog pipeline`: make tables of the log with Spark, check it, search it, look back."""

import functools
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.base.errors import ConfigError
from tidelog.base.terminal import counted, printable
from tidelog.cli.pipeline import changes, deliver, iceberg, rebuild, service, sql, views
from tidelog.cli.pipeline.workspace import (
    AgainstOption,
    ConfOption,
    LakeOption,
    MasterOption,
    Workspace,
    conf_pairs,
    print_json,
    say_step,
    spark_for,
    spark_if_needed,
    workspace_at,
)
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption
from tidelog.cli.shared.progress import progress_bar

if TYPE_CHECKING:
    from tidelog.pipeline.checks.finding import Verdict
    from tidelog.pipeline.fill.aging import Aged
    from tidelog.pipeline.fill.derived_tables import Built
    from tidelog.pipeline.fill.ingest import Progress
    from tidelog.pipeline.lazy_spark import Spark
    from tidelog.pipeline.search.index_build import Updated

app = typer.Typer(
    help="Tables, checks, search and reports made from the log, with Spark.", no_args_is_help=True
)

SEARCH = "search"
"""What `build` calls the search index."""

FullOption = Annotated[bool, typer.Option("--full", help="Rebuild the named tables from scratch.")]


@app.command()
def ingest(
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep ingesting as the log grows, until interrupted."),
    ] = False,
    roll_back: Annotated[
        bool,
        typer.Option(
            "--roll-back",
            help="First remove what the log has lost by a restore or a failover.",
        ),
    ] = False,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the table `log` up to the head of the log.

    Continues where the last run ended, even after a kill. A few thousand entries need no JVM. With
    --follow and --json it prints a line for each batch. A log that lost entries which the lake has,
    by a restore or a failover, is refused; --roll-back gives those entries up.

    Example: tidelog pipeline ingest --follow --data-dir ./data
    """
    conf_pairs(conf)
    with workspace_at(config, data_dir, store, lake) as workspace:
        from tidelog.pipeline.fill.ingest import catch_up

        head = workspace.store.head().committed_id
        with workspace.lake.writing():
            rolled = _roll_back(workspace, is_shown=not as_json) if roll_back else {}
            workspace.require_same_log()
            began, before = time.monotonic(), workspace.lake.through("log")
        is_done = before == head or (master is None and catch_up(workspace.store, workspace.lake))
        if follow or not is_done:
            tell = print_json if as_json and follow else None
            # However many they are, their rows do not go through the JVM.
            with spark_for(master, conf, rows=0) as spark:
                _ingest(spark, workspace, follow=follow, tell=tell)
        done = _ingested(workspace, before, time.monotonic() - began)
    if as_json:
        print_json(done | rolled)
    else:
        typer.echo(f"{done['rows']:,} entries ingested; the lake is at {done['through']:,}")


def _roll_back(workspace: Workspace, *, is_shown: bool) -> dict[str, int]:
    from tidelog.pipeline.fill.ingest import roll_back

    was = workspace.lake.through("log")
    now = roll_back(workspace.store, workspace.lake)
    if is_shown and now < was:
        typer.echo(f"rolled back from {was:,} to {now:,}; the next build rebuilds the tables")
    elif is_shown:
        typer.echo(f"nothing to roll back: the log has all that the lake has, up to {now:,}")
    return {"rolled_back_from": was, "rolled_back_to": now}


def _ingested(workspace: Workspace, before: int, seconds: float) -> dict[str, Any]:
    through = workspace.lake.through("log")
    return {"through": through, "rows": through - before, "seconds": round(seconds, 3)}


def _ingest(
    spark: "Spark",
    workspace: Workspace,
    *,
    follow: bool = False,
    tell: Callable[[Any], None] | None = None,
) -> None:
    from tidelog.pipeline.fill.ingest import ingest as run_ingest

    until = _stop_on_signal() if follow else nullcontext()
    with progress_bar("following" if follow else "ingesting") as show, until as stop:

        def progress(now: "Progress") -> None:
            show(now.through, now.head)
            if tell is not None:
                tell(now._asdict())

        run_ingest(
            spark,
            workspace.store,
            workspace.lake,
            follow=follow,
            stop=stop,
            progress=progress,
        )


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """An event that an interrupt or a termination sets, instead of what they did before."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt  # whoever asks twice does not want to wait
        # On a thread of its own: the one that was interrupted may hold the lock of the event.
        threading.Thread(target=stop.set).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command()
def build(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...", help="Tables to build; default: all, and `search`, the index."
        ),
    ] = None,
    *,
    full: FullOption = False,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring tables, and what they are made from, up to date with `log`; only stale ones change.

    Example: tidelog pipeline build message activity
    """
    conf_pairs(conf)
    with workspace_at(config, data_dir, store, lake) as workspace:
        names = _require_tables(tables)
        head = workspace.store.head().committed_id
        with workspace.lake.writing():
            workspace.require_same_log()
            updated, aged, is_indexed = None, None, not tables or SEARCH in tables
            unchanged = None if full else workspace.unchanged(names, is_indexed=is_indexed)
            if unchanged is not None:
                built, updated = unchanged
            else:
                with spark_if_needed(master, conf, head) as spark:
                    built = _build(spark, workspace, names, full=full)
                    if not tables:
                        aged = _age(spark, workspace)
                    if is_indexed:
                        updated = _index(spark, workspace, rebuild=full)
    if as_json:
        print_json(
            {
                "tables": [each._asdict() for each in built],
                "retention": _plain_aged(aged),
                "index": _plain_index(updated),
            }
        )
        return
    _show_built(built)
    _show_aged(aged)
    _show_index(updated)


def _require_tables(tables: Sequence[str] | None) -> tuple[str, ...]:
    """The tables that are to be built; the index needs its table.

    Raises:
        ConfigError: there is no such table.
    """
    from tidelog.pipeline.fill.derived_tables import buildable

    known = buildable()
    if unknown := [name for name in tables or () if name not in (*known, SEARCH)]:
        raise ConfigError(
            f"{', '.join(unknown)}: not a table that can be built; there are {', '.join(known)} "
            f"and {SEARCH}"
        )
    if not tables:
        return known
    return tuple(dict.fromkeys("message" if name == SEARCH else name for name in tables))


def _build(
    spark: "Spark",
    workspace: Workspace,
    names: tuple[str, ...],
    *,
    full: bool,
    say: Callable[[str], None] = lambda _text: None,
) -> list["Built"]:
    from tidelog.pipeline.fill.derived_tables import build as run_build
    from tidelog.pipeline.fill.derived_tables import planned

    total = len(planned(names))
    done = 0
    with progress_bar("building") as show:

        def progress(built: "Built") -> None:
            nonlocal done
            done += 1
            show(done, total)
            say(f"{built.name} is built, {done} of {total} tables")

        show(0, total)
        return run_build(
            spark,
            workspace.lake,
            workspace.store,
            names,
            full=full,
            model=workspace.model(),
            progress=progress,
        )


def _show_built(built: list["Built"]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table()
    for name in ("table", "made", "rows written", "seconds", "complete to"):
        shown.add_column(name, justify="left" if name in ("table", "made") else "right")
    for each in built:
        seconds = f"{each.seconds:.1f}"
        shown.add_row(each.name, each.mode, f"{each.rows:,}", seconds, f"{each.through:,}")
    Console().print(shown)
    for each in built:
        for note in each.notes:
            typer.echo(printable(f"{each.name}: {note}"))


def _age(spark: "Spark", workspace: Workspace) -> "Aged | None":
    """Remove content that is too old; None if none is."""
    from tidelog.pipeline.fill.aging import age, too_old
    from tidelog.pipeline.lake.horizon import horizon

    lake = workspace.lake
    through = too_old(lake, workspace.settings.pipeline.retention_days)
    if through <= horizon(lake):
        return None
    with progress_bar("removing old content"):
        return age(spark, lake, through, workspace.model_source())


def _plain_aged(aged: "Aged | None") -> dict[str, Any] | None:
    return None if aged is None else aged._asdict()


def _show_aged(aged: "Aged | None") -> None:
    if aged is not None:
        typer.echo(f"retention: entries up to {aged.through:,} have no content any more")


def _index(spark: "Spark", workspace: Workspace, *, rebuild: bool) -> "Updated":
    from tidelog.pipeline.search.index_build import update_index

    with progress_bar("indexing"):
        return update_index(spark, workspace.lake, rebuild=rebuild)


def _plain_index(updated: "Updated | None") -> Any:
    import msgspec

    return msgspec.to_builtins(updated)


def _show_index(updated: "Updated | None") -> None:
    if updated is not None:
        typer.echo(
            f"search: {updated.documents:,} messages, {updated.shards_written} parts written"
        )


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHECK]...",
            help="continuity, orphans, digest, agreement, retention, tables.",
        ),
    ] = None,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Examine everything, not only what is new.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", min=0, help="Examine the old entries that a check with this seed examined."
        ),
    ] = None,
    against: AgainstOption = None,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the store and the tables made from it; exit 1 and show the first rows that are wrong.

    Examines what came since each check was last sound, and some old entries by chance; --full
    examines everything. Also exits with 1 if a comparison that was asked for could not be made.

    Example: tidelog pipeline check --full --against http://127.0.0.1:8080
    """
    conf_pairs(conf)
    with workspace_at(config, data_dir, store, lake) as workspace:
        from tidelog.pipeline.checks.run import CHECKS

        if unknown := [name for name in names or () if name not in CHECKS]:
            raise ConfigError(f"no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
        head = workspace.store.head().committed_id
        with workspace.lake.writing(), spark_if_needed(master, conf, head) as spark:
            verdicts = _check(
                spark, workspace, names or (), against, full=full, seed=seed, is_shown=not as_json
            )
    if as_json:
        print_json([_plain_verdict(verdict) for verdict in verdicts])
    if not all(verdict.is_sound for verdict in verdicts):
        raise typer.Exit(1)


def _check(
    spark: "Spark",
    workspace: Workspace,
    names: Sequence[str],
    against: str | None,
    *,
    full: bool = False,
    seed: int | None = None,
    is_shown: bool,
) -> list["Verdict"]:
    from tidelog.pipeline.checks.run import CHECKS, run_checks

    done = 0
    seed = secrets.randbits(31) if seed is None else seed
    with progress_bar("checking") as show:

        def told(verdict: "Verdict") -> None:
            nonlocal done
            done += 1
            show(done, len(names) or len(CHECKS))
            if is_shown:
                for line in str(verdict).splitlines():
                    typer.echo(printable(line))

        show(0, len(names) or len(CHECKS))
        verdicts = run_checks(
            names,
            spark,
            workspace.store,
            workspace.lake,
            server=workspace.server(against),
            model=workspace.model_source(),
            full=full,
            seed=seed,
            told=told,
        )
    if is_shown and any(len(verdict.ranges) > 1 for verdict in verdicts):
        typer.echo(f"the old entries were chosen by --seed {seed}; --full examines all")
    return verdicts


def _plain_verdict(verdict: "Verdict") -> dict[str, Any]:
    plain = verdict._asdict()
    plain["findings"] = [
        {name: value for name, value in finding._asdict().items() if name != "ref"}
        for finding in verdict.findings
    ]
    plain["ranges"] = [list(each) for each in verdict.ranges]
    return {**plain, "is_sound": verdict.is_sound}


@app.command()
def run(
    *,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="TIME", help="Go on: a round so often, such as 60s, 5m or 1h."
        ),
    ] = None,
    against: AgainstOption = None,
    output: views.OutputOption = None,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run everything: ingest, build, index, check, report; exit 1 if a check found something.

    With --every it goes on until it is interrupted or terminated, which ends it after the step
    under way. It then prints a line for each round, with --json also for those with nothing new. It
    goes on after what may heal, such as a store that cannot be reached, and ends with 1 on what
    somebody has to look at: a finding, another log, a damaged lake.

    Example: tidelog pipeline run --every 60s --data-dir ./data
    """
    pairs = conf_pairs(conf)
    every_seconds = None if every is None else service.seconds_of(every)
    with workspace_at(config, data_dir, store, lake) as workspace:
        if every_seconds is not None:
            rounds = service.Service(
                workspace,
                functools.partial(spark_if_needed, master, conf),
                pairs,
                functools.partial(_steps, workspace=workspace, against=against),
                functools.partial(views.write_page, workspace, output),
                functools.partial(_tell_round, as_json=as_json, every=every_seconds),
                lambda text: typer.echo(f"tidelog: {printable(text)}", err=True),
            )
            with _stop_on_signal() as stop:
                is_sound = rounds.run(every_seconds, stop)
        else:
            is_sound = _run_once(workspace, master, conf, against, output, as_json=as_json)
    if not is_sound:
        raise typer.Exit(1)


def _run_once(
    workspace: Workspace,
    master: str | None,
    conf: Sequence[str] | None,
    against: str | None,
    output: Path | None,
    *,
    as_json: bool,
) -> bool:
    """All of it; returns whether the checks found nothing."""
    head = workspace.store.head().committed_id
    results: dict[str, Any] = {}
    with workspace.lake.writing():
        workspace.require_same_log()
        began, start_seconds = time.monotonic(), 0.0
        nothing = None if against else workspace.nothing_new()
        if nothing is not None:
            results = nothing
            if not as_json:
                through = workspace.lake.through("log")
                typer.echo(f"nothing is new since {through:,}; every check has passed there")
        else:
            with spark_if_needed(master, conf, head) as spark:
                for name, result in _steps(spark, workspace, against, is_shown=not as_json):
                    results[name] = result
                    if not as_json:
                        _show_step(name, result)
                start_seconds = spark.start_seconds
    written = views.write_page(workspace, output)
    is_sound = all(verdict.is_sound for verdict in results["checks"])
    if as_json:
        print_json(
            {
                "is_sound": is_sound,
                **_plain_steps(results),
                "report": written,
                "start_seconds": round(start_seconds, 3),
                "seconds": round(time.monotonic() - began, 3),
            }
        )
    else:
        views.show_page(written)
    return is_sound


def _steps(
    spark: "Spark", workspace: Workspace, against: str | None, *, is_shown: bool = False
) -> Iterator[tuple[str, Any]]:
    """Everything that `run` does, step by step, with what came of each."""
    before, began = workspace.lake.through("log"), time.monotonic()
    say = say_step if is_shown else lambda _text: None
    say("ingesting")
    _ingest(spark, workspace)
    yield "ingest", _ingested(workspace, before, time.monotonic() - began)
    say("building tables")
    yield "tables", _build(spark, workspace, _require_tables(None), full=False, say=say)
    yield "retention", _age(spark, workspace)
    say("indexing")
    yield "index", _index(spark, workspace, rebuild=False)
    say("checking")
    yield "checks", _check(spark, workspace, (), against, is_shown=is_shown)


def _show_step(name: str, result: Any) -> None:
    """What a step did; the checks have told it themselves."""
    if name == "ingest":
        typer.echo(f"{result['rows']:,} entries ingested")
    elif name == "tables":
        _show_built(result)
    elif name == "retention":
        _show_aged(result)
    elif name == "index":
        _show_index(result)


def _plain_steps(results: dict[str, Any]) -> dict[str, Any]:
    """What steps did, for JSON."""
    plain = dict(results)
    if "tables" in plain:
        plain["tables"] = [each._asdict() for each in plain["tables"]]
    if "retention" in plain:
        plain["retention"] = _plain_aged(plain["retention"])
    if "index" in plain:
        plain["index"] = _plain_index(plain["index"])
    if "checks" in plain:
        plain["checks"] = [_plain_verdict(verdict) for verdict in plain["checks"]]
    return plain


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _tell_round(done: "service.Round", *, as_json: bool, every: float) -> None:
    """A line about a round; without JSON only if there is something to say."""
    if done.error:
        typer.echo(
            f"tidelog: round {done.number} failed: {printable(done.error)} "
            f"The next one begins in {max(0.0, every - done.seconds):.0f} s.",
            err=True,
        )
    unsound = [verdict for verdict in done.verdicts if not verdict.is_sound]
    if as_json:
        plain = done._asdict()
        del plain["results"]
        print_json({**plain, "is_sound": not unsound, **_plain_steps(done.results)})
        return
    if done.is_idle or done.error:
        return
    entries = done.results.get("ingest", {}).get("rows", 0)
    changed = [each.name for each in done.results.get("tables", ()) if each.mode != "current"]
    judged = "sound" if done.verdicts and not unsound else "not sound" if unsound else "not run"
    typer.echo(
        f"{done.began_at} round {done.number}: {_entries(entries)}, "
        f"{counted(len(changed), 'table')} changed, checks {judged}; {done.seconds:.1f} s"
    )
    for verdict in unsound:
        for line in str(verdict).splitlines():
            typer.echo(printable(line))


app.command("rebuild")(rebuild.rebuild)
app.command("search")(views.search)
app.command("as-of")(views.as_of)
app.command("report")(views.report)
app.command("sql")(sql.sql)
app.command("iceberg")(iceberg.iceberg)
app.command("publish")(changes.publish)
app.command("forget")(changes.forget)
app.command("deliver")(deliver.deliver)
