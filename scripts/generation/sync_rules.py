"""Cases and rules of the sync contract, from tests/conformance/sync."""

import tomllib
from pathlib import Path

import yaml
from scripts.generation.markdown import NOTE, cell, with_table

CASES = Path(__file__).parents[2] / "tests/conformance/sync"

INTRODUCTION = """\
# Sync: which test checks which rule

Made from `tests/conformance/sync/rules.toml`. The rules are the decisions of
[the protocol](sync.md). `fixture:` names a file of `tests/conformance/sync`.

| rule | what it says | tests |
|---|---|---|
"""


def page() -> str:
    """Which test checks which decision."""
    lines = [f"{NOTE}\n\n{INTRODUCTION}"]
    for name, rule in tomllib.loads((CASES / "rules.toml").read_text(encoding="utf-8")).items():
        tests = "<br>".join(f"`{test}`" for test in rule["tests"])
        lines.append(f"| {name} | {cell(rule['text'])} | {tests} |\n")
    return "".join(lines)


def with_cases(document: str) -> str:
    """The contract with number, name and purpose of each fixture."""
    return with_table(document, "20. Cases", lambda _: _cases())


def _cases() -> list[list[str]]:
    rows = []
    for file in sorted(CASES.glob("[0-9]*.yaml")):
        case = yaml.safe_load(file.read_text(encoding="utf-8"))
        rows.append([file.name.partition("-")[0], cell(case["name"]), cell(case["about"])])
    return rows
