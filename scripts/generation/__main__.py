"""Writes every generated file, or names those that are not what would be written."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.generation import (
    asyncapi,
    commands,
    configuration,
    figures,
    http,
    metrics,
    pictures,
    sync_rules,
    tables,
)

ROOT = Path(__file__).parents[2]
SHOWN_LINES = 40
"""Of a difference; enough to see what it is about."""


def whole(make: Callable[[], str]) -> Callable[[str], str]:
    """A file of which every line is generated: what it was does not matter."""
    return lambda _: make()


GENERATED: dict[str, Callable[[str], str]] = {
    "docs/reference/cli.md": whole(commands.page),
    "docs/reference/configuration.md": whole(configuration.page),
    "docs/reference/metrics.md": whole(metrics.page),
    "docs/reference/http.md": whole(http.page),
    "docs/reference/openapi.json": whole(http.document),
    "docs/reference/asyncapi.md": whole(asyncapi.page),
    "docs/reference/asyncapi.json": whole(asyncapi.document),
    "docs/protocol/sync-conformance.md": whole(sync_rules.page),
    "docs/pictures/flow.svg": whole(pictures.flow),
    "docs/pictures/batch.svg": whole(pictures.batch),
    "docs/pictures/rooms.svg": whole(pictures.rooms),
    "docs/pictures/lineage.svg": whole(pictures.lineage),
    "docs/protocol/sync.md": sync_rules.with_cases,
    "CONTRIBUTING.md": figures.with_budgets,
    "docs/operations/capacity.md": figures.with_defaults,
    "docs/pipeline.md": tables.with_reference,
}
"""Each file, and how its text is made from the text it has. The last ones are written by hand but
for a part of them."""


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, show differences")
    is_check = parser.parse_args().check
    stale = []
    for name, make in GENERATED.items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        text = make(before)
        if text == before:
            continue
        stale.append(name)
        if is_check:
            lines = difflib.unified_diff(
                before.splitlines(), text.splitlines(), name, "as it is now", lineterm=""
            )
            print("\n".join(list(lines)[:SHOWN_LINES]))
        else:
            path.write_text(text, encoding="utf-8")
            print(f"generate: wrote {name}")
    if is_check and stale:
        print(
            f"generate: not up to date: {', '.join(stale)}\nrun scripts/generate", file=sys.stderr
        )
        return 1
    if not stale:
        print(f"generate: all {len(GENERATED)} generated files are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
