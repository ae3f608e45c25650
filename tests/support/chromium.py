"""A real Chromium for the browser tier; Playwright drives it and never downloads one of its own."""

import shutil

from support import debian

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def _installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def chromium_path() -> str:
    """Path of a Chromium or Chrome; installed if there is none and that is possible.

    Raises:
        RuntimeError: There is none, and none can be installed here.
    """
    if _installed() is None:
        debian.install("chromium")
    found = _installed()
    if found is None:
        raise RuntimeError(
            "the browser tests need Chromium or Chrome on PATH "
            f"({', '.join(NAMES)}). Debian: apt-get install chromium, as root"
        )
    return found
