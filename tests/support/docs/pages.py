"""The pages of the repository, and who checks each code block of them.

Every block is run or checked. By default a page is a walk (see support/docs/walk.py): its `sh`,
`python` and `text` blocks, and those whose fence names a file, are run by tests/docs/test_walks.py,
and a `toml` block without a name is read as settings. Where that does not fit, the page
itself says what does, by a comment that readers do not see:

| Comment | What it says |
|---|---|
| `<!-- blocks sh, python: tests/x.py::test_y -->` | that test runs all blocks of these kinds here |
| `<!-- checked by tests/x.py::test_y -->` | right before a block: that test checks this one |
| `<!-- not run: why -->` | right before a block: nobody does, for this reason |
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from support.docs.walk import ROOT, RUN, Block, blocks

GENERATED = "docs/reference/"
"""Pages of which every line is generated; tests/docs/test_generated.py compares them."""

BUILT = ("{toctree}", "{eval-rst}", "{include}")
"""Blocks that are instructions to the site's builder; tests/docs/test_site.py builds it."""

SETTINGS_TEST = "tests/docs/test_examples.py::test_settings_are_accepted"
WALK_TEST = "tests/docs/test_walks.py::test_a_walk_works_as_printed"

_BLOCKS = re.compile(r"<!-- blocks ([^:]+): (\S+) -->")
_CHECKED = re.compile(r"<!-- checked by (\S+) -->")


class Check(NamedTuple):
    """A test that a page names for blocks."""

    document: str
    test: str
    kinds: tuple[str, ...]


def documents() -> list[str]:
    """Every page of the repository, by its path from the root; the site has the changelog."""
    found = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    top = sorted(path.name for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")
    return [*top, *map(str, found)]


def checks_of_kinds(document: str) -> list[Check]:
    """The tests that a page names for all its blocks of some kinds."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        Check(document, test, tuple(kind.strip() for kind in kinds.split(",")))
        for kinds, test in _BLOCKS.findall(text)
    ]


def checks_of_blocks(document: str) -> list[Check]:
    """The tests that a page names for single blocks."""
    return [
        Check(document, found[1], (block.kind,))
        for block in blocks(document)
        if (found := _CHECKED.fullmatch(block.mark))
    ]


def checkers(document: str) -> list[tuple[Block, str | None]]:
    """Each block of a page with the test that runs or checks it, or why none does.

    None is for a block that nobody answers for.
    """
    by_kind = {kind: check.test for check in checks_of_kinds(document) for kind in check.kinds}
    return [(block, _checker(block, by_kind)) for block in blocks(document)]


def _checker(block: Block, by_kind: Mapping[str, str]) -> str | None:
    if block.kind in BUILT:
        return "tests/docs/test_site.py"
    if block.why_not:
        return block.why_not
    if found := _CHECKED.fullmatch(block.mark):
        return found[1]
    if block.kind in by_kind:
        return by_kind[block.kind]
    if block.kind == "toml" and not block.name:
        return SETTINGS_TEST
    return WALK_TEST if block.name or block.kind in (*RUN, "text") else None


@cache
def checked_by(test: str) -> list[str]:
    """The pages that have blocks which this test is to check."""
    return [page for page in documents() if test in {found for _, found in checkers(page)}]
