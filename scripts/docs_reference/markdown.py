"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence

NOTE = "<!-- Made by scripts/docs-reference; do not edit. -->"


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
