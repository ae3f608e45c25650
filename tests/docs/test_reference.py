"""Generated pages are what the program says of itself today."""

import subprocess

from support.walk import ROOT

WAIT_SECONDS = 120.0


def test_the_generated_pages_are_current() -> None:
    """Commands, settings, metrics and routes in docs/reference are those of the program."""
    compared = subprocess.run(
        ["scripts/docs-reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert compared.returncode == 0, (
        f"run: scripts/docs-reference\n{compared.stdout[-4000:]}{compared.stderr[-2000:]}"
    )
