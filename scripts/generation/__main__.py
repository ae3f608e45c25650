"""Writes every generated file, or names those that are not what would be written."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.generation import (
    asyncapi,
    client_types,
    commands,
    configuration,
    figures,
    http,
    llms,
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


def page(make: Callable[[], str], read_next: str) -> Callable[[str], str]:
    """A page of which every line is generated, and what to read after it."""
    return lambda _: f"{make().rstrip()}\n\nRead next: {read_next}\n"


GENERATED: dict[str, Callable[[str], str]] = {
    "docs/reference/cli.md": page(
        commands.page, "[all settings](configuration.md), or [operations](../operations/index.md)."
    ),
    "docs/reference/configuration.md": page(
        configuration.page, "[how settings are given](../operations/configuration.md)."
    ),
    "docs/reference/metrics.md": page(
        metrics.page, "[observability](../operations/observability.md), for what to watch."
    ),
    "docs/reference/http.md": page(http.page, "[what is sent over WebSockets](asyncapi.md)."),
    "docs/reference/openapi.json": whole(http.document),
    "docs/reference/asyncapi.md": page(
        asyncapi.page, "[the routes of HTTP](http.md), or [the protocols](../protocol/channels.md)."
    ),
    "docs/reference/asyncapi.json": whole(asyncapi.document),
    "docs/protocol/sync-conformance.md": page(
        sync_rules.page, "[the protocol of sync](sync.md), whose rules these are."
    ),
    "llms.txt": whole(llms.repository),
    "docs/pictures/flow.svg": whole(pictures.flow),
    "docs/pictures/batch.svg": whole(pictures.batch),
    "docs/pictures/rooms.svg": whole(pictures.rooms),
    "docs/pictures/lineage.svg": whole(pictures.lineage),
    "src/tidelog/web/static/tidelog.js": whole(
        lambda: (ROOT / "clients/js/tidelog.js").read_text(encoding="utf-8")
    ),
    "clients/js/tidelog.d.ts": client_types.with_actions,
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
