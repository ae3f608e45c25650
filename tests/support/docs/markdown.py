"""Tables and examples of a document, so that tests can hold it against the program."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


class Document:
    """A file below `docs`, by its numbered or named sections."""

    def __init__(self, name: str) -> None:
        self.text = (DOCS / name).read_text(encoding="utf-8")

    def section(self, title: str) -> str:
        """The text below the heading that begins with this, up to the next heading."""
        found = re.search(
            rf"^#+ {re.escape(title)}(?=\s).*?$(.*?)(?=^#+ |\Z)",
            self.text,
            re.DOTALL | re.MULTILINE,
        )
        assert found is not None, title
        return found[1]

    def tables(self, title: str) -> list[list[list[str]]]:
        """The tables of a section, each a list of rows of cells, without their headings."""
        tables: list[list[list[str]]] = []
        is_inside = False
        for line in self.section(title).splitlines():
            if not line.startswith("|"):
                is_inside = False
                continue
            if not is_inside:
                tables.append([])
                is_inside = True
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            tables[-1].append([cell.strip() for cell in cells])
        return [table[2:] for table in tables]

    def blocks(self, title: str) -> list[str]:
        """The fenced blocks of a section."""
        return re.findall(r"^```\w*\n(.*?)^```", self.section(title), re.DOTALL | re.MULTILINE)


def code(cell: str) -> list[str]:
    """What is written as code in a cell."""
    return re.findall(r"`([^`\n]+)`", cell)
