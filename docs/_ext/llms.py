"""Writes `llms.txt` into the site: its pages, each in a line."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).parents[2]))

from scripts.generation.llms import document


def _write(app: Sphinx, failure: Exception | None) -> None:
    if failure is None:
        text = document(lambda page: f"{page}.html")
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
