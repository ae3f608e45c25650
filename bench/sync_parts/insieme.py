"""npm's insieme: installed once, run as a process."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INSTALL_SECONDS = 1200.0
"""Its SQLite driver is compiled, for a minute on a quiet machine."""
HERE = Path(__file__).parent.parent


def install_insieme(directory: Path) -> None:
    """Put insieme, a WebSocket server and an SQLite driver into `directory`, once."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "server.mjs"):
        shutil.copyfile(HERE / "insieme" / name, directory / name)
    if (directory / "node_modules" / "insieme").exists() and _loads(directory) is None:
        return
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise RuntimeError(f"{name} is not installed")
    # npm takes what an interrupted install left for whole, and does not compile again.
    shutil.rmtree(directory / "node_modules", ignore_errors=True)
    with subprocess.Popen(
        ["npm", "install", "--no-audit", "--no-fund"],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own: its compiler ends with it
    ) as npm:
        try:
            _, said = npm.communicate(timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(npm.pid, signal.SIGKILL)
            raise RuntimeError(f"npm install took over {INSTALL_SECONDS:.0f} s") from None
    if npm.returncode:
        raise RuntimeError(f"npm install failed: {said[-600:]}")
    if problem := _loads(directory):
        raise RuntimeError(f"its SQLite driver does not load: {problem}")


def _loads(directory: Path) -> str | None:
    """Why the SQLite driver cannot be used, or None."""
    script = "import D from 'better-sqlite3'; new D(':memory:').close()"
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return node.stderr[-600:] if node.returncode else None


@contextmanager
def insieme_server(directory: Path, database: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """A running server: what it says of itself, and its process id."""
    with subprocess.Popen(
        ["node", "server.mjs", str(database)],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("its server did not start; see standard error")
            yield json.loads(line), process.pid
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()
