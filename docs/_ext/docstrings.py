"""Small things that make our docstrings read as they were meant."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_BEFORE_NAPOLEON = 100
_NOTHING = "\\ "
"""Renders as nothing. Napoleon takes what stands before a colon in the first line of an attribute's
docstring for its type; ours are sentences."""


def keep_sentences(app: Sphinx, what: str, *rest: Any) -> None:
    """Let the docstring of an attribute begin with a line that has no colon."""
    del app
    lines: list[str] = rest[-1]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()  # Python's own words about a field that has none
    if what in ("attribute", "property", "data") and lines:
        lines.insert(0, _NOTHING)


def draw_dashes(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Parameters are set off from their meaning by a dash, not by two hyphens."""
    del app, docname
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \u2013 "))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_sentences, _BEFORE_NAPOLEON)
    app.connect("doctree-resolved", draw_dashes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
