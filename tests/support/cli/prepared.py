"""An environment that has the locked packages before the lines of a page are run."""

import sys
from pathlib import Path

from support.cli.outside import run

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
SECONDS = 120.0


def prepare(folder: Path) -> None:
    """Make `.venv` in a folder with what the core needs, from the installer's cache.

    The lines that install are run as printed then, and pip adds what is left. To fetch and unpack
    everything takes it ten seconds of a processor; that it can be fetched, at the locked versions
    and by their hashes, is tested with `scripts/install` and an empty cache.
    """
    locked = folder / "locked.txt"
    printed = run(sys.executable, ROOT / "scripts/locked.py", cwd=ROOT).stdout
    locked.write_text(printed, encoding="utf-8")
    environment = folder / ".venv"
    run(BIN / "uv", "venv", "--python", sys.executable, environment, cwd=folder)
    install = (
        *(BIN / "uv", "pip", "install", "--python", environment / "bin/python"),
        *("--require-hashes", "-r", locked),
    )
    cached = run(*install, "--offline", cwd=folder, seconds=SECONDS, check=False)
    if cached.returncode:
        run(*install, cwd=folder, seconds=10 * SECONDS)
    locked.unlink()
