"""The table of which tests check which decision of the sync protocol."""

import re
import tomllib
from pathlib import Path

from msgspec import Struct, convert

ROOT = Path(__file__).parents[3]
RULES = ROOT / "tests/conformance/sync/rules.toml"
SPECIFICATION = ROOT / "docs/protocol/sync.md"
FIXTURE = "fixture:"


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """One decision."""

    text: str
    tests: tuple[str, ...]


def read_rules() -> dict[str, Rule]:
    """All rows by the name of their decision."""
    return convert(tomllib.loads(RULES.read_text(encoding="utf-8")), dict[str, Rule])


def decisions() -> set[str]:
    """Every decision that the protocol names."""
    return set(re.findall(r"\bD[0-9]+\b", SPECIFICATION.read_text(encoding="utf-8")))


def fixture_path(test: str) -> Path | None:
    """The file of a named fixture; None for a test function."""
    if not test.startswith(FIXTURE):
        return None
    return RULES.parent / f"{test.removeprefix(FIXTURE)}.yaml"
