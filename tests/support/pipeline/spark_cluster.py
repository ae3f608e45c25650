"""A real standalone Spark cluster on this machine, from the jars of the `pyspark` wheel.

A master and a worker, each a process of its own; executors, of which there is room for two, are
further processes that the worker starts. Nothing is faked: a driver on it differs from one
elsewhere by its address alone.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from tidelog.pipeline.spark import class_archive
from tidelog.pipeline.spark.jvm import find_jvm
from tidelog.pipeline.spark.session import SMALL_JVM, SMALL_SETTINGS

EXECUTORS = 2
"""At the same time; a second worker would be one more JVM, with none of our code in it."""

UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Spark's classes are not looked through when they are loaded."""
SHORT_LIVED = " ".join((*SMALL_JVM, UNVERIFIED))
"""For a JVM of a test: the better compiler costs more than it brings within a minute, and half of
all processor time."""

START_SECONDS = 240.0
END_SECONDS = 20.0


class SparkCluster:
    """A running cluster."""

    def __init__(self, home: Path, port: int, options: str) -> None:
        self.home = home
        """Logs of master and worker, and below `work` of executors."""
        self.master = f"spark://127.0.0.1:{port}"
        """What `--master` is given."""
        self.conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": options,
            **SMALL_SETTINGS,
        }
        """What a driver is told so that it gets two executors."""

    def options(self) -> list[str]:
        """What a command is given to run its jobs here."""
        pairs = ("=".join(pair) for pair in self.conf.items())
        return ["--master", self.master, *(text for pair in pairs for text in ("--conf", pair))]

    def is_at_work(self) -> bool:
        """Whether an executor has started Python, as it does for the first task that needs it."""
        with suppress(psutil.Error):
            return any(process.children() for process in self._executors())
        return False

    def kill_executors(self) -> int:
        """`kill -9` of every executor; returns how many there were. The worker starts others."""
        dead = 0
        for process in self._executors():
            with suppress(psutil.Error):
                process.kill()
                dead += 1
        return dead

    def _executors(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cwd", "name"]):
            where = process.info["cwd"]  # that of an executor is its own folder
            is_there = where and Path(where).match(f"{self.home}/work/app-*/*")
            if is_there and process.info["name"] == "java":
                found.append(process)
        return found

    def log_text(self) -> str:
        """What master, worker and executors have logged."""
        files = [*self.home.glob("*.log"), *self.home.glob("work/app-*/*/stderr")]
        return "\n".join(f"{f}:\n{f.read_text(errors='replace')[-3000:]}" for f in files)


@contextmanager
def spark_cluster(home: Path) -> Iterator[SparkCluster]:
    """A cluster for the length of the block, with its files under `home`."""
    jvm = find_jvm()
    options = " ".join([SHORT_LIVED, *class_archive.options(jvm)])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = SparkCluster(home, port, options)
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    processes = []
    with jvm.chosen():
        environment["JAVA_HOME"] = os.environ["JAVA_HOME"]

    def start(name: str, *command: str) -> None:
        with (home / f"{name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [Path(pyspark.__file__).parent / "bin" / "spark-class", *command],
                    env=environment,
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    try:
        start("master", "org.apache.spark.deploy.master.Master", *place, "--port", str(port))
        room = ("--cores", str(EXECUTORS), "--memory", f"{EXECUTORS}g")
        folder = ("--work-dir", str(home / "work"))
        worker = "org.apache.spark.deploy.worker.Worker"
        start("worker", worker, *place, *room, *folder, cluster.master)
        _wait_for_worker(home / "master.log")
        yield cluster
    finally:
        for process in reversed(processes):
            _end(process)


def _wait_for_worker(log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "Registering worker" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM first: a worker then takes its executors with it."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
