"""From a fresh clone: `scripts/install` and `scripts/run` bring what is asked for and no more.

The clone is the tree as it is now, with an environment of its own that is made of the packages in
the installer's cache; what is not there is fetched, as on a new machine.
"""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.cli.outside import run
from support.mesh.daemon_process import eventually
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 1200.0
"""An empty cache means half a gigabyte over the network."""
DEMO_SECONDS = 480.0
"""The demo promises 90 seconds on a machine that does nothing else; tests run beside others."""
MOST_CORE_BYTES = 100_000_000
MOST_PIPELINE_BYTES = 1_400_000_000
INSTALLERS = {"pip", "setuptools", "uv"}
"""What brought the rest."""


class Tables(dict[str, str]):
    """Tables of a lake as DuckDB reads them: the files that each one's current version names."""

    def __init__(self, lake: Path) -> None:
        super().__init__()
        self._lake = lake

    def __missing__(self, name: str) -> str:
        [folder] = self._lake.glob(f"*/{name}")
        files = DeltaTable(folder).file_uris()
        return f"read_parquet({files})"


LAKE = {
    "entries of channels": "SELECT count(*) FROM {log} WHERE surface = 'channels'",
    "entries of mesh": "SELECT count(*) FROM {log} WHERE surface = 'mesh'",
    "entries of sync": "SELECT count(*) FROM {log} WHERE surface = 'sync'",
    "messages published": "SELECT count(*) FROM {message}",
    "words appended": "SELECT count(*) FROM {message_version} WHERE action = 'append'",
    "changes of the task list": "SELECT count(*) FROM {event}",
    "reports sent": "SELECT count(*) FROM {send}",
}
"""What the demo counts, asked of the files of the lake by DuckDB."""

LEFT = """
import sys
from tidelog.pipeline.spark.class_archive import _Archive
from tidelog.pipeline.spark.jvm import find_jvm

archive = _Archive(find_jvm())._top
for file in archive.parent.glob(f"{archive.stem}*"):
    if file.stat().st_mtime >= float(sys.argv[1]):
        print(file)
"""
"""Says what is new for an archive of classes in the cache of whoever runs the tests."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what installing and running need; nothing is installed in it yet."""
    folder = tmp_path_factory.mktemp("clone") / "tidelog"
    folder.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    for name in ("scripts", "src"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def install(clone: Path, *scope: str, cache: Path | None = None) -> str:
    """Run `scripts/install` there; returns what it says."""
    return run(
        clone / "scripts/install",
        *scope,
        cwd=clone,
        seconds=INSTALL_SECONDS,
        more={} if cache is None else {"UV_CACHE_DIR": str(cache)},
    ).stdout


def packages(clone: Path) -> dict[str, str]:
    """The packages of the clone's environment, but not what installed them, by their versions."""
    [site] = (clone / ".venv/lib").glob("python*/site-packages")
    found = importlib.metadata.distributions(path=[str(site)])
    named = {canonicalize_name(each.name): each.version for each in found}
    return {name: version for name, version in named.items() if name not in INSTALLERS}


def occupied(folder: Path) -> int:
    """Bytes of all files below a folder, each once."""
    files = {(at := path.lstat()).st_ino: at.st_blocks * 512 for path in folder.rglob("*")}
    return sum(files.values())


def expected(*extras: str) -> dict[str, str]:
    """What the lock has for this machine and these extras, and tidelog itself."""
    printed = run(sys.executable, ROOT / "scripts/locked.py", *extras, cwd=ROOT).stdout
    wanted = map(Requirement, re.findall(r"^(\S.*?) \\$", printed, flags=re.MULTILINE))
    here = {
        str(canonicalize_name(each.name)): next(iter(each.specifier)).version
        for each in wanted
        if each.marker is None or each.marker.evaluate()
    }
    return {**here, "tidelog": importlib.metadata.version("tidelog")}


def needed(name: str, extras: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What an installed package asks for on this machine, with the extras it asks for."""
    for text in importlib.metadata.requires(name) or ():
        each = Requirement(text)
        if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield each.name, tuple(sorted(each.extras))


@pytest.mark.parametrize("extras", [(), ("pipeline",), ("otel", "postgresql")])
def test_a_part_of_the_lock_is_what_the_packages_ask_for(extras: tuple[str, ...]) -> None:
    """No package is missing and none is too many, by the metadata of those installed here."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    left: list[tuple[str, tuple[str, ...]]] = [("tidelog", extras)]
    while left:
        if (each := left.pop()) not in found:
            found.add(each)
            left.extend(needed(*each))
    assert {canonicalize_name(name) for name, _ in found} == set(expected(*extras))


def test_the_core_is_light_and_installing_it_again_does_nothing(
    clone: Path, tmp_path: Path
) -> None:
    """Only what a server, a client and a command need, at the locked versions; with no cache."""
    assert "into .venv with Python" in install(clone, "core", cache=tmp_path / "not there")
    assert packages(clone) == expected()
    [site] = (clone / ".venv/lib").glob("python*/site-packages")
    tools = [site / name for name in ("pip", "setuptools") if (site / name).exists()]
    assert occupied(site) - sum(map(occupied, tools)) < MOST_CORE_BYTES
    assert install(clone, "core") == "install: .venv is up to date\n"


def test_a_narrower_install_takes_nothing_away(clone: Path) -> None:
    """Whoever has everything keeps it, also when the note is of the time of one scope only."""
    install(clone, "core")
    note = clone / ".venv/installed"
    before = note.read_text()
    digest = before.split()[0]
    for wider in (f"{digest} all\n", f"{digest} pipeline\n", f"{digest}\n"):
        note.write_text(wider)
        assert install(clone, "core") == "install: .venv is up to date\n"
        assert note.read_text() == wider
    note.write_text(before)
    refused = run(clone / "scripts/install", "everything", cwd=clone, check=False)
    assert refused.returncode == 2
    assert "scripts/install --help" in refused.stderr


def test_the_demo_without_the_pipeline_stays_to_be_looked_at(clone: Path, tmp_path: Path) -> None:
    """The core is enough; the dashboard's address comes before the kill, and traffic stays."""
    with subprocess.Popen(
        [clone / "scripts/run", "--no-pipeline", "--port", "0", "--data-dir", tmp_path / "tour"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={name: text for name, text in os.environ.items() if not name.startswith("TIDELOG_")},
    ) as process:
        assert process.stdout is not None
        told: list[str] = []
        try:
            for line in process.stdout:
                told.append(line)
                if line.startswith("Press Ctrl-C"):
                    break
            text = "".join(told)
            address = re.search(r"http://[\d.:]+/dashboard", text)
            assert address is not None, text
            assert address.start() < text.index("kill -9")
            assert "10 of 10 promises held" in text
            assert "in the lake" not in text
            outbox, inbox = (
                shlex.split(line.partition(" ")[2])
                for line in (text.partition(f"  {name} ")[2] for name in ("outbox", "inbox"))
                for line in [line.partition("\n")[0]]
            )
            assert "done" in run(*outbox, cwd=tmp_path).stdout
            before = head(address[0])
            eventually(lambda: head(address[0]) > before)
            eventually(lambda: "rising" in run(*inbox, cwd=tmp_path).stdout)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def head(dashboard: str) -> int:
    """The position of the last entry of that server's log."""
    address = dashboard.replace("/dashboard", "/healthz")
    with urllib.request.urlopen(address, timeout=60) as answer:
        return int(json.load(answer)["head"])


def test_the_demo_widens_the_core_and_counts_right(clone: Path, tmp_path: Path) -> None:
    """`scripts/run` installs no tools of developers; its numbers are the log's and the lake's."""
    install(clone, "core")
    home, began = tmp_path / "tour", time.time()
    shown = run(
        *(clone / "scripts/run", "--exit", "--json", "--port", "0", "--data-dir", home),
        cwd=tmp_path,
        seconds=INSTALL_SECONDS + DEMO_SECONDS,
        more={BUILDING_VARIABLE: "-Xshare:auto"},  # an archive would stay in the user's cache
    )
    assert packages(clone) == expected("pipeline")
    assert occupied(clone / ".venv") < MOST_PIPELINE_BYTES
    *said, document = shown.stdout.splitlines()
    assert any("Spark is a source package" in line for line in said), "it says what it does"
    summary = json.loads(document)
    assert [claim["promise"] for claim in summary["claims"] if not claim["holds"]] == []
    counted = run(
        *(clone / ".venv/bin/tidelog", "log", "stats", "--json", "--config", summary["config"]),
        cwd=tmp_path,
    )
    stats = json.loads(counted.stdout)
    figures = {figure["what"]: figure for figure in summary["figures"]}
    assert summary["head"] == stats["head"] == sum(each["entries"] for each in stats["surfaces"])
    for surface in stats["surfaces"]:
        assert figures[f"entries of {surface['surface']}"]["log"] == surface["entries"]
    for what, query in LAKE.items():
        [(rows,)] = duckdb.execute(query.format_map(Tables(home / "lake"))).fetchall()
        assert figures[what]["lake"] == figures[what]["log"] == rows > 0, what
    assert Path(summary["report"]).read_text().startswith("<!doctype html>")
    left = run(clone / ".venv/bin/python", "-c", LEFT, str(began), cwd=tmp_path)
    assert left.stdout == ""
