"""Pieces of Markdown."""

import re
from collections.abc import Callable, Iterable, Sequence

NOTE = "<!-- Made by scripts/generate; do not edit. -->"
BAR = re.compile(r"(?<!\\)\|")
"""What ends a cell."""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold anything but line ends."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(text: str) -> str:
    """Text on one line in which no bar ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Text as code, whatever backquotes it holds; nothing for nothing."""
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def joined(parts: Iterable[str]) -> str:
    """Paragraphs, tables and blocks to a whole page."""
    return "\n\n".join(part for part in parts if part) + "\n"


def with_table(
    document: str, title: str, change: Callable[[list[list[str]]], list[list[str]]]
) -> str:
    """A page whose first table below a heading has other rows; its headings stay."""
    before, heading, rest = document.partition(f"\n## {title}\n")
    if not heading:
        raise ValueError(f"there is no heading {title}")
    lines = rest.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("|")) + 2
    last = next(n for n in range(first, len(lines)) if not lines[n].startswith("|"))
    rows = [[part.strip() for part in BAR.split(line)[1:-1]] for line in lines[first:last]]
    lines[first:last] = ["| " + " | ".join(row) + " |" for row in change(rows)]
    return before + heading + "\n".join(lines)
