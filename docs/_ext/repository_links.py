"""Links of documents to files of the repository that are not part of the site.

In the repository `[the measuring scripts](../bench)` is a link one can follow. The site holds no
sources, so there it becomes the words followed by the path. A path that does not exist stays as it
is, and the build says so.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "docs"


class RepositoryLinks(SphinxTransform):
    """Replaces links to sources, tests and scripts by their paths."""

    default_priority = 5  # before MyST and Sphinx look for what is meant

    def apply(self, **kwargs: Any) -> None:
        """Look at every reference of one document."""
        del kwargs
        folder = Path(self.env.doc2path(self.env.docname)).parent
        wanted = (nodes.reference, addnodes.pending_xref, addnodes.download_reference)
        for node in list(self.document.findall(lambda node: isinstance(node, wanted))):
            target = node.get("reftarget") or node.get("refuri") or ""
            if not target or "://" in target or target.startswith("#"):
                continue
            path = (folder / target.partition("#")[0]).resolve()
            if not path.exists():  # a document, whose ending MyST has taken off
                path = path.with_name(f"{path.name}.md")
            is_outside = path.is_relative_to(ROOT) and not path.is_relative_to(DOCUMENTS)
            if is_outside and path.exists():
                node.replace_self(_shown(node, str(path.relative_to(ROOT))))


def _shown(link: nodes.Element, path: str) -> nodes.inline:
    """The words of a link and the path; only the path if the words are its end."""
    shown = nodes.inline()
    if path.endswith(link.astext()):
        shown += nodes.literal(path, path)
    else:
        shown += [*link.children, nodes.Text(" ("), nodes.literal(path, path), nodes.Text(")")]
    return shown


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
