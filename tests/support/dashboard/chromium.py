"""A real Chromium for the browser tier; Playwright drives it and never downloads one of its own."""

from support import debian

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium_path() -> str:
    """Path of a Chromium or Chrome; installed if there is none and that is possible."""
    return debian.program("chromium", *NAMES)
