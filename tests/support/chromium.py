"""A real Chromium for the browser tier; Playwright drives it and never downloads one of its own."""

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL_SECONDS = 300.0


def _installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _from_system_packages() -> str | None:
    """Debian's own package, where this user may install one."""
    if os.geteuid() or shutil.which("apt-get") is None:
        return None
    for command in (("apt-get", "update"), ("apt-get", "install", "-y", "chromium")):
        subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=INSTALL_SECONDS,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    return _installed()


def chromium_path() -> str:
    """Path of a Chromium or Chrome; installed if there is none and that is possible.

    Raises:
        RuntimeError: There is none, and none can be installed here.
    """
    found = _installed() or _from_system_packages()
    if found is None:
        raise RuntimeError(
            "the browser tests need Chromium or Chrome on PATH "
            f"({', '.join(NAMES)}). Debian: apt-get install chromium, as root"
        )
    return found
