"""What the commands of `tidelog pipeline` share: where store and lake are, Spark, and errors.

Nothing of the pipeline is imported before a command runs: `tidelog --help` needs none of it, and a
server is installed without it.
"""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.cli.shared.options import settings_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.config.settings import Settings
    from tidelog.pipeline.checks.served import Server
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.transforms.snapshots import ModelSource
    from tidelog.sync.protocol.profiles import Model

LakeOption = Annotated[
    Path | None,
    typer.Option("--lake", help="Directory of the lake; default `lake` in the data directory."),
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

_SILENCE = ("spark.log.level", "FATAL")
"""What ends a command is told in one line; Spark would put its own traces before it, also when it
only tries again."""

LIBRARIES = ("adbc_driver_sqlite", "deltalake", "matplotlib", "pyarrow", "pyspark", "tantivy")
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
        from tidelog.pipeline.fill.derived_tables import model_in_use

        return model_in_use(self.store, self.model())

    def server(self, url: str | None) -> "Server | None":
        """A server to compare with, and what the settings know to open it."""
        if url is None:
            return None
        from tidelog.pipeline.checks.served import AppKey, Server

        apps = tuple(AppKey(app.id, app.key, app.secret) for app in self.settings.configured_apps)
        return Server(url, apps, self.settings.administration_token)

    def require_same_log(self) -> None:
        """Fail before a JVM starts: another log, other columns, a store that is not there."""
        from tidelog.pipeline.fill.ingest import settled
        from tidelog.pipeline.tables import TABLES

        for table in TABLES:
            self.lake.delta(table.name)
        settled(self.lake, self.store)


@contextlib.contextmanager
def workspace_at(
    config: Path | None, data_dir: str | None, store: str | None, lake: Path | None
) -> Iterator[Workspace]:
    """The workspace that the options name; what goes wrong in the block is told in one line."""
    settings = settings_from(config, data_dir=data_dir, store=store)
    require_libraries()
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.spark.failure import explained

    root = settings.lake_path if lake is None else lake
    try:
        # Executors have other working directories.
        yield Workspace(settings, Lake(root.absolute()), StoreAddress(_absolute(settings)))
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
    settings = [_SILENCE, *conf_pairs(conf)]
    from pyspark.sql import SparkSession

    from tidelog.pipeline.spark.session import spark_session

    is_ours = SparkSession.getActiveSession() is None
    session = spark_session(master, settings, rows=rows, notice=_notice)
    try:
        yield session
    finally:
        if is_ours:
            session.stop()


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


def print_json(value: Any) -> None:
    """One line of JSON on standard output, at once."""
    typer.echo(json.dumps(value, default=_plain))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat()  # what is left in rows of the lake is a time
