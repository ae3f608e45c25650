"""No case of the contract is forgotten."""

from support.mesh import mesh_cases


def test_every_case_is_the_parameter_of_some_test() -> None:
    """Each id of cases.yaml is claimed by a test module."""
    every = {
        f"{section}/{mesh_cases.case_id(case)}"
        for section in mesh_cases.sections()
        for case in mesh_cases.cases(section)
    }
    assert every - set(mesh_cases.claimed()) == set()
