"""What the commands of `tidelog pipeline` share: where store and lake are, Spark, and errors.

Nothing of the pipeline is imported before a command runs: `tidelog --help` needs none of it, and a
server is installed without it.
"""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.progress import progress_bar
from tidelog.config.lake_location import lake_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.config.settings import Settings
    from tidelog.pipeline.checks.served import Server
    from tidelog.pipeline.fill.derived_tables import Built
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.lazy_spark import LazySpark
    from tidelog.pipeline.search.index_build import Updated
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.transforms.snapshots import ModelSource
    from tidelog.sync.protocol.profiles import Model

LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Directory of the lake, or s3://BUCKET/FOLDER; default `lake` in the data directory.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", help="Spark cluster, such as spark://HOST:PORT; default: this machine."
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting; may be repeated."),
]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="URL", help="Also compare with what this server returns."),
]

_LOG_LEVEL = "FATAL"
"""What ends a command is told in one line; Spark would put its own traces before it, also when it
only tries again."""

LIBRARIES = (
    "adbc_driver_sqlite",
    "deltalake",
    "matplotlib",
    "obstore",
    "pyarrow",
    "pyspark",
    "tantivy",
)
"""Of the extra `pipeline`; whoever lacks one of them lacks the extra."""


class Workspace(NamedTuple):
    """Where a command reads and writes."""

    settings: "Settings"
    lake: "Lake"
    store: "StoreAddress"

    def model(self) -> "Model":
        """The model of the server's sync surface."""
        from tidelog.sync.front.files import read_model

        return read_model(self.settings.sync)

    def model_source(self) -> "ModelSource":
        """The model in the version the store says is in use."""
        from tidelog.pipeline.fill.sync_model import model_in_use

        return model_in_use(self.store, self.model())

    def server(self, url: str | None) -> "Server | None":
        """A server to compare with, and what the settings know to open it."""
        if url is None:
            return None
        from tidelog.pipeline.checks.served import AppKey, Server

        apps = tuple(AppKey(app.id, app.key, app.secret) for app in self.settings.configured_apps)
        return Server(url, apps, self.settings.administration_token)

    def is_anything_new(self) -> bool:
        """Whether a run would change a table or check something that was not checked yet."""
        return self.nothing_new() is None

    def nothing_new(self) -> dict[str, Any] | None:
        """What the steps of a run say that has nothing to do, without a JVM; None if it has."""
        from tidelog.pipeline.checks.extent import CHECKS, checks_are_current
        from tidelog.pipeline.checks.finding import Verdict

        through = self.lake.through("log")
        unchanged = self.unchanged(None, is_indexed=True)
        if unchanged is None or not checks_are_current(self.lake, self.store.head()):
            return None
        rows = self.lake.arrow("verdict", ["check", "through", "examined"]).to_pylist()
        kept = {row["check"]: Verdict(**row) for row in rows}
        return {
            "ingest": {"through": through, "rows": 0, "seconds": 0.0},
            "tables": unchanged[0],
            "retention": None,
            "index": unchanged[1],
            "checks": [kept[name] for name in CHECKS],
        }

    def unchanged(
        self, names: Sequence[str] | None, *, is_indexed: bool
    ) -> "tuple[list[Built], Updated | None] | None":
        """What a build says that has nothing to do, without a JVM; None if it has."""
        from tidelog.pipeline.fill.aging import is_too_old
        from tidelog.pipeline.fill.derived_tables import unchanged
        from tidelog.pipeline.fill.freshness import unchanged_index

        if is_too_old(self.lake, self.settings.pipeline.retention_days):
            return None
        built = unchanged(self.lake, self.store, names, model=self.model())
        updated = unchanged_index(self.lake) if is_indexed else None
        return None if built is None or (is_indexed and updated is None) else (built, updated)

    def require_same_log(self) -> None:
        """Fail before a JVM starts: another log, other columns, a store that is not there."""
        from tidelog.pipeline.fill.ingest import settled
        from tidelog.pipeline.tables import TABLES, VERDICT

        for table in TABLES:
            if table is not VERDICT:  # that of an earlier version is written anew by the checks
                self.lake.delta(table.name)
        settled(self.lake, self.store)


@contextlib.contextmanager
def workspace_at(
    config: Path | None, data_dir: str | None, store: str | None, lake: str | None
) -> Iterator[Workspace]:
    """The workspace that the options name; what goes wrong in the block is told in one line."""
    settings = settings_from(config, data_dir=data_dir, store=store)
    place = settings.lake if lake is None else lake_location(lake, "--lake", settings.lake_cache)
    require_libraries()
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.spark.failure import explained

    # Executors have other working directories.
    tables = Lake(place.root.absolute(), place.url)
    tables.waiting = lambda: _notice(f"waiting for another process that writes to {tables.name}")
    try:
        yield Workspace(settings, tables, StoreAddress(_absolute(settings)))
    except Exception as error:
        meant = explained(error)
        if meant is None or meant is error:
            raise
        raise meant from error


def _absolute(settings: "Settings") -> str:
    location = settings.store_location
    return location if settings.is_postgresql else str(Path(location).absolute())


def require_libraries() -> None:
    """Make sure that the extra is installed.

    Raises:
        TidelogError: it is not.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise TidelogError(
            f"the pipeline needs {', '.join(missing)}. Install: pip install 'tidelog[pipeline]'"
        )


@contextlib.contextmanager
def spark_for(
    master: str | None, conf: Sequence[str] | None, rows: int | None = None
) -> Iterator["SparkSession"]:
    """A session for the block; one that is already there is used and left alone.

    Args:
        master: a cluster; this machine if None.
        conf: settings of Spark as they were given.
        rows: about how many entries are to be read, if that is known.
    """
    settings = conf_pairs(conf)
    from pyspark import SparkContext

    from tidelog.pipeline.spark.session import (
        build_archive_afterwards,
        refuse_connect,
        spark_session,
    )

    refuse_connect(master, dict(settings))
    # Which session is active is another question on every thread.
    is_ours = SparkContext._active_spark_context is None  # noqa: SLF001
    session = spark_session(master, settings, rows=rows, log_level=_LOG_LEVEL, notice=_notice)
    try:
        yield session
    finally:
        if is_ours:
            session.stop()
    if is_ours:
        build_archive_afterwards()


@contextlib.contextmanager
def spark_if_needed(
    master: str | None, conf: Sequence[str] | None, rows: int | None = None
) -> Iterator["LazySpark"]:
    """The same, started by whoever needs it first; what is small needs none."""
    settings = conf_pairs(conf)
    from tidelog.pipeline.lazy_spark import LazySpark
    from tidelog.pipeline.spark.session import is_of_this_machine, is_submitted, refuse_connect

    refuse_connect(master, dict(settings))
    with contextlib.ExitStack() as held:
        lazy = LazySpark(
            lambda: held.enter_context(spark_for(master, conf, rows)),
            is_local=is_of_this_machine(master, settings),
        )
        if is_submitted():  # what cannot work there is told before anything else
            lazy.session()
        yield lazy


@contextlib.contextmanager
def waiting(what: str, *, is_silent: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Says on a terminal what is being waited for; nothing where a program reads the result."""
    if is_silent:
        yield lambda _done, _total: None
        return
    with progress_bar(what) as show:
        yield show


def conf_pairs(conf: Sequence[str] | None) -> list[tuple[str, str]]:
    """Settings of Spark as they were given.

    Raises:
        ConfigError: one has no value.
    """
    pairs = [text.partition("=") for text in conf or ()]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise ConfigError(f"--conf {key}: write KEY=VALUE, such as spark.driver.memory=4g")
    return [(key, value) for key, _, value in pairs]


def _notice(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"tidelog: {text}\n")


def say_step(text: str) -> None:
    """Say what a long command does now, where no bar shows it: in a file, or to a program."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"tidelog: {text}\n")
        sys.stderr.flush()


def print_json(value: Any) -> None:
    """One line of JSON on standard output, at once."""
    typer.echo(json.dumps(value, default=_plain))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat()  # what is left in rows of the lake is a time
