"""Programs that tests need and that no package index has: Debian's own, where they can be had."""

import os
import shutil
import subprocess

INSTALL_SECONDS = 300.0


def install(package: str) -> None:
    """Try to install a package of Debian; nothing happens where this user may not."""
    if os.geteuid() or shutil.which("apt-get") is None:
        return
    for command in (("apt-get", "update"), ("apt-get", "install", "-y", package)):
        subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=INSTALL_SECONDS,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
