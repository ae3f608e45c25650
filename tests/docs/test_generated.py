"""Generated files are what the program and the tests say today."""

import subprocess

from support.docs.walk import ROOT

WAIT_SECONDS = 120.0


def test_the_generated_files_are_current() -> None:
    """`scripts/generate` would write nothing."""
    compared = subprocess.run(
        ["scripts/generate", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert compared.returncode == 0, (
        f"run: scripts/generate\n{compared.stdout[-4000:]}{compared.stderr[-2000:]}"
    )
