"""How the documentation becomes a site: `scripts/docs` builds it into build/site.

Nothing is fetched, neither while it is built nor when a page is opened: no intersphinx, no outside
style, script or font, and no link to another host. `tests/docs` holds all of that.
"""

import gc
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import tidelog  # noqa: E402 - the extensions beside this file are found first

gc.set_threshold(100_000, 50, 100)
"""Trees of pages are kept to the end, and to search them for garbage was a fifth of a build."""

project = "tidelog"
author = "the authors of tidelog"
version = release = tidelog.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
    "lineage",
    "llms",
    "repository_links",
]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_templates"]
templates_path = ["_templates"]

smartquotes = False  # `--dev` is an option, not a dash
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

nitpicky = True
nitpick_ignore_regex = [
    # Types of other packages: their documentation is on other hosts.
    (r"py:.*", r"(?!tidelog\.).*"),
    # Private names and type aliases in signatures; what they mean is said where they are used.
    (r"py:.*", r"tidelog\.(?!client\.[A-Z]).*"),
]

default_role = "literal"  # docstrings here mark names with single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # as the source spells them, not as Python shows a function
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "tidelog"
html_static_path = ["_static"]
html_css_files = ["tidelog.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # would fetch each page found, which files on a disk do not allow
