"""The lineage of the tables: Mermaid in the document, a drawing on the site.

Where documents are read in the repository, Mermaid is drawn by whoever shows them. The site loads
no such script, so it shows the picture that scripts/generate made from the same tables.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCUMENT = "pipeline"
PICTURE = "pictures/lineage.svg"
WORDS = "What each table is made of; dashed: from relations of the store"


class DrawnLineage(SphinxTransform):
    """Replaces the one Mermaid block of the pipeline's page."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Look at one document."""
        del kwargs
        if self.env.docname != DOCUMENT:
            return
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                block.replace_self(nodes.image(uri=PICTURE, alt=WORDS))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(DrawnLineage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
