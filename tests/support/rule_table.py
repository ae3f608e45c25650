"""The table of which tests check which decision of the sync protocol, and the page made from it."""

import argparse
import re
import tomllib
from pathlib import Path

from msgspec import Struct, convert

ROOT = Path(__file__).parents[2]
RULES = ROOT / "tests/conformance/sync/rules.toml"
SPECIFICATION = ROOT / "docs/protocol/sync.md"
PAGE = ROOT / "docs/protocol/sync-conformance.md"
FIXTURE = "fixture:"

_HEADER = """# Sync: which test checks which rule

Made from `tests/conformance/sync/rules.toml` by `python tests/support/rule_table.py --write`; do not edit.
The rules are the decisions of [the protocol](sync.md). `fixture:` names a file of `tests/conformance/sync`.

| rule | what it says | tests |
|---|---|---|
"""  # noqa: E501 - lines of the page


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


def render() -> str:
    """The page."""
    lines = []
    for name, rule in read_rules().items():
        text = rule.text.replace("|", "\\|")
        tests = "<br>".join(f"`{test}`" for test in rule.tests)
        lines.append(f"| {name} | {text} | {tests} |\n")
    return _HEADER + "".join(lines)


def main() -> int:
    """Write the page, or tell whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    if parser.parse_args().write:
        PAGE.write_text(render(), encoding="utf-8")
        return 0
    return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == render() else 1


if __name__ == "__main__":
    raise SystemExit(main())
