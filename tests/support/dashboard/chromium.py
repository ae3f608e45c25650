"""A real Chromium for the browser tier; Playwright drives it and never downloads one of its own."""

from support import debian

ARGUMENTS = (
    # As root there is no sandbox; everything the browser sees here is ours.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    # Pages of a context share a process: to start one takes longer than to show a page.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
)
"""What each Chromium of the tests is started with."""

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium_path() -> str:
    """Path of a Chromium or Chrome; installed if there is none and that is possible."""
    return debian.program("chromium", *NAMES)
