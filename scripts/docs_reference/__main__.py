"""Writes the generated pages, or says which of them are not what would be written."""

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.docs_reference import (
    asyncapi,
    commands,
    configuration,
    http,
    metrics,
    pictures,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[2] / "docs"
SHOWN_LINES = 40
"""Of a difference; enough to see what it is about."""


def pages() -> dict[str, str]:
    """Every generated file below docs, by name."""
    described = http.described()
    made: dict[str, Callable[[], str]] = {
        "reference/cli.md": commands.page,
        "reference/configuration.md": configuration.page,
        "reference/metrics.md": metrics.page,
        "reference/http.md": lambda: http.page(described),
        "reference/openapi.json": lambda: http.document(described),
        "reference/asyncapi.md": asyncapi.page,
        "reference/asyncapi.json": asyncapi.document,
        "pictures/flow.svg": pictures.flow,
        "pictures/batch.svg": pictures.batch,
        "pictures/rooms.svg": pictures.rooms,
        "pictures/lineage.svg": pictures.lineage,
    }
    return {name: make() for name, make in made.items()}


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/docs-reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, show differences")
    is_check = parser.parse_args().check
    stale = 0
    for name, text in pages().items():
        path = FOLDER / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == before:
            continue
        stale += 1
        if is_check:
            lines = difflib.unified_diff(
                before.splitlines(), text.splitlines(), f"docs/{name}", "as it is now"
            )
            print("\n".join(list(lines)[:SHOWN_LINES]))
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs-reference: wrote docs/{name}")
    if is_check and stale:
        print("docs-reference: not up to date; run scripts/docs-reference", file=sys.stderr)
        return 1
    if not stale:
        print("docs-reference: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
