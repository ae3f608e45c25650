"""The class-data archive: Spark's classes as the JVM wants them, so that it starts faster.

It is built once per Java and Spark, by a small job that is run for it alone, and kept in the cache
directory. That costs more than it saves one start, so it is built after the second command has done
its work, by a process of its own for which nobody waits. It only ever saves time: whatever goes
wrong with it, Spark starts without.
"""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tidelog.base.errors import TidelogError
from tidelog.base.own_program import own_program
from tidelog.pipeline.spark.jvm import Jvm, cache_directory, find_jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUILD_SECONDS = 1800.0
"""A build that takes longer is given up. It takes some fifteen seconds on two idle cores, but it
has the lowest priority, and nobody waits for it."""

RETRY_SECONDS = 24 * 3600.0
"""After a build that failed, starts go without for so long."""

KEPT = 3
"""Archives that stay, the newest: each has about 190 MB, and every environment has its own."""

BUILDING_VARIABLE = "TIDELOG_TEST_CLASS_ARCHIVE_OPTIONS"
"""Set for the job that is run for the archive: the options its own JVM gets."""

_NICENESS = 19
"""Whatever else runs comes first."""

_WISHES = 20
_WISH_SECONDS = 0.15

_SILENT = "-Xshare:auto -Xlog:disable -Xlog:all=off"


def options(jvm: Jvm) -> list[str]:
    """What the JVM is told so that it uses the archive; nothing if there is none."""
    if BUILDING_VARIABLE in os.environ:
        return [os.environ[BUILDING_VARIABLE]]
    with contextlib.suppress(OSError, TidelogError):
        archive = _Archive(jvm)
        if archive.is_there:
            return archive.options
    return []


def build_afterwards(jvm: Jvm) -> "subprocess.Popen[bytes] | None":
    """Have the archive built, if this was not the first command and there is none yet.

    To be called when the work is done. Returns the process that builds it, if there is one; it goes
    on by itself when this one ends.
    """
    if BUILDING_VARIABLE in os.environ:
        return None
    with contextlib.suppress(OSError, TidelogError):
        if _Archive(jvm).is_due():
            return subprocess.Popen(  # noqa: S603 - ourselves
                own_program(__name__, "--build"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
    return None


class _Archive:
    """The archive of one Java and one Spark."""

    def __init__(self, jvm: Jvm) -> None:
        locations = f"{jvm.runtime} {Path(pyspark.__file__).parent}"
        name = (
            f"java-{jvm.version}-spark-{pyspark.__version__}-"
            f"{hashlib.sha256(locations.encode()).hexdigest()[:12]}"
        )
        folder = cache_directory() / "classes"
        folder.mkdir(exist_ok=True)
        self._jvm = jvm
        self._top = folder / f"{name}.jsa"
        own = jvm.runtime / "lib" / "server" / "classes.jsa"
        self._base = None if own.exists() else folder / f"{name}.base.jsa"
        """The archive of Java's own classes, on which ours stands; some Javas come without it."""
        self._started = folder / f"{name}.started"
        """Left by the first command."""
        self._failed = folder / f"{name}.failed"
        self._lock = folder / f"{name}.lock"

    @property
    def is_there(self) -> bool:
        """Whether it was built."""
        return self._top.exists() and (self._base is None or self._base.exists())

    @property
    def options(self) -> list[str]:
        """What the JVM is told so that it uses the archive."""
        files = [self._top] if self._base is None else [self._base, self._top]
        return [f"-XX:SharedArchiveFile={':'.join(map(str, files))}", *_SILENT.split()]

    def is_due(self) -> bool:
        """Whether it is to be built now; the first time this is asked, it is not."""
        if self.is_there:
            return False
        if not self._started.exists():
            self._started.touch()
            return False
        if not self._failed.exists():
            return True
        return time.time() - self._failed.stat().st_mtime >= RETRY_SECONDS

    def build(self) -> bool:
        """Whether it is there now; not if another process is building it."""
        with self._lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self.is_there:
                return True
            try:
                if self._base is not None:
                    with _becoming(self._base) as file:
                        self._build_base(file)
                with _becoming(self._top) as file:
                    self._build_top(file)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or b""
                self._failed.write_bytes(f"{error}\n".encode() + said[-4000:])
                return False
            self._forget_oldest()
            return True

    def _forget_oldest(self) -> None:
        """Remove what other environments left; one that is still there builds its own again."""
        archives = [file for file in self._top.parent.glob("*.jsa") if ".base." not in file.name]
        for old in sorted(archives, key=lambda file: file.stat().st_mtime, reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)
            old.with_suffix(".base.jsa").unlink(missing_ok=True)

    def _build_base(self, file: Path) -> None:
        subprocess.run(  # noqa: S603 - the Java that was chosen
            [self._jvm.runtime / "bin" / "java", "-Xshare:dump", f"-XX:SharedArchiveFile={file}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BUILD_SECONDS,
            check=True,
        )

    def _build_top(self, file: Path) -> None:
        told = f"-XX:ArchiveClassesAtExit={file} {_SILENT}"
        if self._base is not None:
            told = f"-XX:SharedArchiveFile={self._base} {told}"
        command = own_program("tidelog.pipeline.spark.class_archive")
        with subprocess.Popen(  # noqa: S603 - ourselves
            command,
            env={**os.environ, BUILDING_VARIABLE: told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(timeout=BUILD_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):  # its JVM too
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, stderr=said)


@contextlib.contextmanager
def _becoming(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place when the block ends well, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        file = Path(folder) / path.name
        yield file
        file.replace(path)


def run_for_archive() -> None:
    """Load the classes that the pipeline's jobs load, then end the JVM, which writes them down."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    from tidelog.pipeline.spark.session import spark_session

    spark = spark_session()
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.range(10).select(
            sql.col("id"), sql.to_json(sql.struct("id")).alias("json"), sql.lit(b"x").alias("bytes")
        )
        frame.write.parquet(f"{folder}/table")
        read = spark.read.parquet(f"{folder}/table")
        window = Window.partitionBy(sql.col("id") % 3).orderBy("id")
        read = read.withColumn("number", sql.row_number().over(window))
        read.join(read.groupBy("number").count(), "number").orderBy("id").collect()
        stream = spark.readStream.schema("id bigint").parquet(f"{folder}/table")
        query = (
            stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .foreachBatch(_pass)
            .start()
        )
        query.awaitTermination(int(BUILD_SECONDS))
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - no other way to its end
    spark.stop()
    process.stdin.close()
    process.wait(BUILD_SECONDS)


def _pass(batch: "DataFrame", _number: int) -> None:
    batch.mapInArrow(lambda batches: batches, "id bigint").collect()


def _give_way() -> None:
    """Leave the processors to whatever else wants them; a sandbox may not allow it."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    # Linux may share them out by session first, and this process began one of its own. It takes no
    # more than ten such wishes a second, from all processes together.
    with contextlib.suppress(OSError):
        for _ in range(_WISHES):
            try:
                Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")
                return
            except BlockingIOError:
                time.sleep(_WISH_SECONDS)


def main() -> None:
    """Build the archive; or, in the process that was started for that, load what goes into it."""
    if BUILDING_VARIABLE in os.environ:
        run_for_archive()
    else:
        _give_way()
        _Archive(find_jvm()).build()


if __name__ == "__main__":
    main()
