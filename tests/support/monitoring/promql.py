"""What a PromQL expression names, as far as the expressions of this project go."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAME = re.compile(r"\b(?:tidelog|process)_\w+|\bup\b")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


class Use(NamedTuple):
    """A metric in an expression, with every label that the expression selects or groups it by."""

    metric: str
    labels: frozenset[str]


def uses(expression: str) -> Iterator[Use]:
    """Every metric of an expression; `by (...)` counts for all of them."""
    grouped = {
        label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")
    }
    selected = {name: set(_LABEL.findall(labels)) for name, labels in _SELECTOR.findall(expression)}
    for name in sorted(set(_NAME.findall(_without_texts(expression)))):
        yield Use(name, frozenset(grouped | selected.get(name, set())))


def _without_texts(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)
