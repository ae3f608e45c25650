"""Programs that tests need and that no package index has: Debian's own, where they can be had.

Parts of `scripts/test` run side by side, and several need the same program. One of them installs
it while the others wait: an `apt-get update` beside an installation may delete the packages under
it, as it does in images made for containers, and leaves the machine with half of them.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL_SECONDS = 600.0
_LOCK = Path(tempfile.gettempdir()) / "tidelog-test-apt.lock"


def program(package: str, *names: str) -> str:
    """Path of a program under one of its names; its package is installed if there is none.

    Raises:
        RuntimeError: There is none, and none can be installed here.
    """
    if found := _found(names):
        return found
    advice = f"{names[0]} is not on PATH. As root: apt-get install {package}"
    if os.geteuid() or shutil.which("apt-get") is None:
        raise RuntimeError(advice)
    with _LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = "" if _found(names) else _install(package)
    if found := _found(names):
        return found
    raise RuntimeError(f"{advice}. It was tried:\n{said[-2000:]}")


def _found(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def _install(package: str) -> str:
    """Install a package; returns what the commands said."""
    said = ""
    # Packages are kept where nobody else's `update` looks for some to delete.
    with tempfile.TemporaryDirectory(prefix="tidelog-apt-") as archives:
        (Path(archives) / "partial").mkdir()
        options = (
            f"-oDir::Cache::archives={archives}",
            "-oAPT::Sandbox::User=root",
            f"-oDPkg::Lock::Timeout={INSTALL_SECONDS:.0f}",
        )
        for command in ("update",), ("install", "-y", "--no-install-recommends", package):
            done = subprocess.run(
                ["apt-get", *options, *command],
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_SECONDS,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
            said += done.stdout
    return said
