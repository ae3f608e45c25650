"""A CI job is recognised by the variables that CI services set."""

import pytest

from tidelog.daemon.continuous_integration import VARIABLES, is_ci


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_is_enough(name: str) -> None:
    """Whatever its value says, unless it says no."""
    assert is_ci({name: "true"})
    assert is_ci({name: "2026.1"})


@pytest.mark.parametrize(
    "environ", [{}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}, {"PATH": "/bin"}]
)
def test_other_variables_are_not(environ: dict[str, str]) -> None:
    """A person who has `CI=false` is no job."""
    assert not is_ci(environ)
