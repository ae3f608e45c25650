"""The cases of tests/conformance/mesh/cases.yaml, and which test modules claim them.

A test module claims cases by the very call that makes its parameters,
`mesh_cases.params("section")` or `mesh_cases.params("section", "Q01", "Q02")`, with literal
arguments: the registry reads the calls from the source.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.mark import ParameterSet

TESTS = Path(__file__).parents[2]
FILE = TESTS / "conformance" / "mesh" / "cases.yaml"

Case = dict[str, Any]


@cache
def load() -> dict[str, Any]:
    """The whole file."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


def sections() -> list[str]:
    """Names of the lists of cases."""
    return [name for name, value in load().items() if isinstance(value, list)]


def case_id(case: Case) -> str:
    """The id of a case; the backoff rows have none and are named by their attempts."""
    return str(case.get("id", f"attempts-{case.get('attempts')}"))


def cases(section: str, *ids: str) -> list[Case]:
    """The cases of a section, or those of them that are named."""
    found = [case for case in load()[section] if not ids or case_id(case) in ids]
    if ids and len(found) != len(ids):
        raise KeyError(f"{section} has not all of {ids}")
    return found


def params(section: str, *ids: str) -> list[ParameterSet]:
    """`cases` for `pytest.mark.parametrize`, each under its id."""
    return [pytest.param(case, id=case_id(case)) for case in cases(section, *ids)]


def claimed() -> dict[str, list[str]]:
    """Section and id to the test modules that have it as a parameter: `Q01` is `requeue/Q01`."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mesh_cases" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "params"
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "mesh_cases"
            ):
                section, *ids = [ast.literal_eval(argument) for argument in node.args]
                for case in cases(section, *ids):
                    key = f"{section}/{case_id(case)}"
                    found.setdefault(key, []).append(str(file.relative_to(TESTS)))
    return found
