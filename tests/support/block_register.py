"""tests/docs/blocks.toml: who answers for each code block of the documents."""

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from support.walk import ROOT, RUN, Block, blocks

GENERATED = "docs/reference/"
"""Pages the program writes; tests/docs/test_reference.py compares them."""

BUILT = ("{toctree}", "{eval-rst}", "{include}")
"""Blocks that are instructions to the site's builder; tests/docs/test_site.py builds it."""


class Answer(NamedTuple):
    """One test that runs or checks blocks of one document."""

    document: str
    test: str
    kinds: dict[str, int]


def documents() -> list[str]:
    """Every document of the repository, by its path from the root."""
    found = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *map(str, found)]


class Register:
    """What blocks.toml says."""

    def __init__(self) -> None:
        self._said = tomllib.loads((ROOT / "tests/docs/blocks.toml").read_text(encoding="utf-8"))

    @property
    def walks(self) -> list[str]:
        """Documents that are run as a whole."""
        return list(self._said["walks"])

    @property
    def settings(self) -> list[str]:
        """Documents whose `toml` blocks are read as a server reads them."""
        return list(self._said["settings"]["documents"])

    def answers(self) -> Iterator[Answer]:
        """Tests that are named for blocks."""
        for said in self._said["answers"]:
            yield Answer(said["document"], said["test"], said["blocks"])
        for document in self.settings:
            found = Counter(block.kind for block in blocks(document) if not block.name)
            yield Answer(document, self._said["settings"]["test"], {"toml": found["toml"]})

    def templates(self) -> list[str]:
        """Documents with commands that are not run as they stand."""
        return [said["document"] for said in self._said["templates"]]

    def expected(self, document: str) -> Counter[str]:
        """Blocks of a document that somebody answers for, by kind."""
        count: Counter[str] = Counter()
        for answer in self.answers():
            if answer.document == document:
                count.update(answer.kinds)
        declared: list[dict[str, Any]] = self._said["templates"] + self._said["drawings"]
        for said in declared:
            if said["document"] == document:
                count.update(said["blocks"])
        return count

    def complaint(self, document: str, found: Sequence[Block]) -> str | None:
        """What is wrong with the blocks of a document: some that nobody answers for, or fewer."""
        others = [block for block in found if not self.is_walked(block) and block.kind not in BUILT]
        places = [f"{block.place} {block.kind}" for block in others]
        if document.startswith(GENERATED):
            return f"the program writes no blocks into its pages: {places}" if others else None
        count, expected = Counter(block.kind for block in others), self.expected(document)
        if count == expected:
            return None
        return (
            f"{document} has {dict(count)} ({places}), and tests/docs/blocks.toml answers for "
            f"{dict(expected)}. Let a test run the new block, and name the test there."
        )

    def is_walked(self, block: Block) -> bool:
        """Whether a walk runs, writes or compares it."""
        return block.document in self.walks and (bool(block.name) or block.kind in (*RUN, "text"))
