"""Figures of pages that are written by hand: defaults of limits, and budgets of the tests."""

from operator import attrgetter

from scripts.generation.markdown import with_table
from scripts.tiers import TIERS

from tidelog.config.settings import Settings


def with_defaults(document: str) -> str:
    """docs/operations/capacity.md with the defaults; which limits it names is written by hand."""
    return with_table(document, "What bounds a server", _with_defaults)


def with_budgets(document: str) -> str:
    """CONTRIBUTING.md with the budget of each tier; what is in them is written by hand."""
    return with_table(document, "Run tests", _budgeted)


def _budgeted(rows: list[list[str]]) -> list[list[str]]:
    budgets = {f"`{tier.name}`": f"{tier.budget_seconds} s" for tier in TIERS}
    if missing := budgets.keys() - {row[0] for row in rows}:
        raise ValueError(f"CONTRIBUTING.md lacks the tiers {', '.join(sorted(missing))}")
    return [[name, about, budgets[name]] for name, about, _ in rows]


def _with_defaults(rows: list[list[str]]) -> list[list[str]]:
    settings = Settings()
    return [
        [name, str(attrgetter(name.strip("`"))(settings)), meaning] for name, _, meaning in rows
    ]
