"""Figures of the operator's pages: each was measured, or is a setting's default."""

from typing import Any

from support.markdown import Document, code
from tidelog.base.settings import Settings

CAPACITY = Document("operations/capacity.md")


def test_measured_figures_stand_in_the_measurements() -> None:
    """No figure of the capacity page is missing in docs/measurements.md."""
    measured = Document("measurements.md").text
    [figures] = CAPACITY.tables("Capacity")
    assert figures
    missing = [figure for _, figure, _ in figures if figure not in measured]
    assert not missing


def test_defaults_are_those_of_the_settings() -> None:
    """The limits of the capacity page are the defaults of the settings they name."""
    [limits] = CAPACITY.tables("What bounds a server")
    assert limits
    for key, default, _ in limits:
        value: Any = Settings()
        for name in code(key)[0].split("."):
            value = getattr(value, name)
        assert str(value) == default, key
