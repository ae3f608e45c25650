"""No case of the contract is forgotten."""

from support import mesh_cases

OPEN_SECTIONS = {"broker_phases"}
"""Sections whose tests are still to be written."""

OPEN_CASES = {"requeue/Q11"}
"""Single cases whose tests are still to be written."""


def test_every_case_is_the_parameter_of_some_test() -> None:
    """Each id of cases.yaml is claimed by a test module, or listed here as open."""
    claimed = mesh_cases.claimed()
    missing = {
        f"{section}/{mesh_cases.case_id(case)}"
        for section in mesh_cases.sections()
        for case in mesh_cases.cases(section)
        if f"{section}/{mesh_cases.case_id(case)}" not in claimed and section not in OPEN_SECTIONS
    }
    assert missing == OPEN_CASES


def test_every_open_section_is_really_open() -> None:
    """A section that has tests is not listed as open any more."""
    assert not [key for key in mesh_cases.claimed() if key.split("/")[0] in OPEN_SECTIONS]
