"""Every decision of the sync protocol is checked by tests that exist."""

import ast
from functools import cache

import pytest

from support.sync.rule_table import ROOT, decisions, fixture_path, read_rules

RULES = read_rules()


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_decision_has_a_row_and_every_row_a_decision() -> None:
    """The protocol and the table name the same decisions."""
    assert sorted(decisions() ^ RULES.keys()) == []


@pytest.mark.parametrize("name", list(RULES))
def test_what_a_row_names_exists(name: str) -> None:
    """A row has a text and at least one test, each once, and every one of them is there."""
    rule = RULES[name]
    assert rule.text.strip()
    assert rule.tests
    assert len(set(rule.tests)) == len(rule.tests)
    for test in rule.tests:
        fixture = fixture_path(test)
        if fixture is not None:
            assert fixture.is_file(), test
        else:
            file, _, function = test.partition("::")
            assert function.startswith("test_"), test
            assert function in functions_of(file), test
