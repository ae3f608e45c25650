"""The wheel and the sdist: complete, the same, and enough to run tidelog far from the repository.

The environments are made by uv from the packages that `scripts/install` has fetched; only if they
are no longer in its cache is the package index asked.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

import tidelog
from support.cli.outside import run

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidelog"
BIN = Path(sys.executable).parent
BUILD_SECONDS = 120.0
COMMAND_SECONDS = 60.0


def build(source: Path, target: Path, kind: str) -> Path:
    """A distribution of the project at `source`, by its build backend and without any network."""
    run(
        *(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target),
        cwd=source,
        seconds=BUILD_SECONDS,
    )
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


def make_environment(folder: Path, requirement: str) -> Path:
    """An empty environment with what a user would install, as locked; returns its `bin`."""
    run(BIN / "uv", "venv", "--python", sys.executable, folder, cwd=folder.parent, seconds=60)
    install = (
        *(BIN / "uv", "pip", "install", "--python", folder / "bin" / "python"),
        *("--constraint", ROOT / "requirements.lock", requirement),
    )
    cached = run(*install, "--offline", cwd=folder.parent, seconds=BUILD_SECONDS, check=False)
    if cached.returncode:
        run(*install, cwd=folder.parent, seconds=10 * BUILD_SECONDS)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel and nothing optional."""
    folder = tmp_path_factory.mktemp("plain") / "venv"
    return make_environment(folder, f"tidelog @ {wheel.as_uri()}")


def contents(wheel: Path) -> dict[str, str]:
    """The files of a wheel and what is in them, as digests."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    """SQL, migrations, the dashboard's assets, `py.typed` and whatever else lies in the tree."""
    expected = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in contents(wheel) if name.startswith("tidelog/")}
    assert packed == expected
    assert "tidelog/py.typed" in packed
    for folder, ending in [
        *(
            (f"{owner}/{folder}", ".sql")
            for owner in ("store", "channels", "mesh", "sync")
            for folder in ("migrations", "sql")
        ),
        ("config/migrations", ".sql"),
        ("dashboard/sql", ".sql"),
        ("client/sync/migrations", ".sql"),
        ("daemon/migrations", ".sql"),
        ("pipeline/source/sql", ".sql"),
        ("dashboard/static", ".js"),
        ("web/static", ".js"),
        ("dashboard/static", ".css"),
        ("dashboard/static", ".html"),
    ]:
        start = f"tidelog/{folder}/"
        assert any(name.startswith(start) and name.endswith(ending) for name in packed), start


def test_the_metadata_says_what_it_is(wheel: Path) -> None:
    """Name, version, licence, Python and extras; no requirement is an address."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        found = Parser().parsestr(archive.read(name).decode())
        [entry] = [each for each in archive.namelist() if each.endswith("/entry_points.txt")]
        assert "tidelog = tidelog.cli.main:main" in archive.read(entry).decode()
        assert any(each.endswith("/licenses/LICENSE") for each in archive.namelist())
    assert (found["Name"], found["Version"]) == ("tidelog", tidelog.__version__)
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert {"pipeline", "postgresql"} <= set(found.get_all("Provides-Extra", []))
    assert not [each for each in found.get_all("Requires-Dist", []) if "@" in each]


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """Unpacked anywhere, it makes the same wheel, byte for byte."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [project] = (tmp_path / "unpacked").iterdir()
    rebuilt = build(project, tmp_path / "rebuilt", "wheel")
    assert contents(rebuilt) == contents(wheel)
    assert rebuilt.name == wheel.name
    assert rebuilt.read_bytes() == wheel.read_bytes()


def test_the_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    """Version and help come from the wheel, without the optional packages."""
    python = "import tidelog; print(tidelog.__file__)"
    where = run(installed / "python", "-c", python, cwd=tmp_path, seconds=COMMAND_SECONDS)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    shown = run(installed / "tidelog", "--version", cwd=tmp_path, seconds=COMMAND_SECONDS)
    assert shown.stdout == f"tidelog {tidelog.__version__}\n"
    helped = run(installed / "tidelog", "--help", cwd=tmp_path, seconds=COMMAND_SECONDS)
    for command in ("serve", "backup", "restore", "log", "pipeline", "demo"):
        assert f" {command} " in helped.stdout
    for module in ("pyspark", "asyncpg", "pytest"):
        ended = run(
            *(installed / "python", "-c", f"import {module}"),
            cwd=tmp_path,
            seconds=COMMAND_SECONDS,
            check=False,
        )
        assert ended.returncode == 1, f"{module} came with the plain package"


@contextmanager
def serving(tidelog_command: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """`tidelog serve --dev` of an environment; returns what it says when it is ready."""
    with subprocess.Popen(
        [str(tidelog_command), "serve", "--dev", "--json", "--port", "0"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.terminate()
            assert process.wait(COMMAND_SECONDS) == 0
        finally:
            process.kill()


def test_the_installed_server_serves(installed: Path, tmp_path: Path) -> None:
    """Health, the dashboard and each asset its page names; then the log of that server verifies."""
    with serving(installed / "tidelog", tmp_path) as ready:

        def get(path: str) -> bytes:
            address = urljoin(f"{ready['url']}/dashboard", path)
            with urllib.request.urlopen(address, timeout=COMMAND_SECONDS) as answer:
                content: bytes = answer.read()
                return content

        assert json.loads(get("/healthz"))["ready"] is True
        assert "openapi" in json.loads(get("/openapi.json"))
        assert get("/tidelog.js") == (ROOT / "clients" / "js" / "tidelog.js").read_bytes()
        assets = re.findall(r'(?:src|href)="([^"#:]+\.(?:css|js|svg))"', get("/dashboard").decode())
        assert len(assets) > 1
        for asset in assets:
            assert get(asset)
    verified = run(
        *(installed / "tidelog", "log", "verify", "--json"), cwd=tmp_path, seconds=COMMAND_SECONDS
    )
    assert json.loads(verified.stdout)["sound"] is True
