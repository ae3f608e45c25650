"""Every fault case of mesh 16.4 has a test that carries its number.

Where a stranger finds them, all of them real processes (`tests/crash`):

| Cases | Module | Broker |
|---|---|---|
| FT-01 to FT-05, 07, 12, 13, 18 | `test_mesh_pair` | `tidelog serve`, both engines |
| FT-01 to FT-06, 12, 21, 23, 25 | `test_mesh_faults` | scripted; these are the daemon's own |
| FT-08 to FT-11, 19 | `test_mesh_broker_faults` | `tidelog serve`, both engines |
| FT-14 to FT-17 | `test_mesh_races` | `tidelog serve`, both engines, two nodes on PostgreSQL |
| FT-20 | `test_mesh_disk` | scripted; inside the transaction `tidelog serve`, both engines |
| FT-22 | `test_mesh_power` | scripted |
| FT-23 c, FT-24 | `test_mesh_time` | `tidelog serve`, both engines |

`scripts/soak` repeats the races and the retention case 200 times.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
CASES = TESTS.parent / "docs" / "protocol" / "mesh.md"

_NAME = re.compile(
    r"^(?:async )?def test_ft_(\d\d)[a-z]?(?:_to_(\d\d)|((?:_\d\d)*))_", re.MULTILINE
)


def numbers_in(source: str) -> set[int]:
    """The cases that the names of test functions claim: `test_ft_01_to_05_`, `test_ft_04_05_`."""
    found: set[int] = set()
    for first, last, more in _NAME.findall(source):
        found |= set(range(int(first), int(last or first) + 1))
        found |= {int(number) for number in more.split("_") if number}
    return found


def claims() -> dict[int, set[str]]:
    """By case the modules of the crash tier that have a test of it."""
    found: dict[int, set[str]] = {}
    for module in (TESTS / "crash").glob("test_*.py"):
        for number in numbers_in(module.read_text(encoding="utf-8")):
            found.setdefault(number, set()).add(module.stem)
    return found


def test_every_fault_case_has_a_test_of_processes() -> None:
    """No number of mesh 16.4 is without a test, and no test has a number that is not there."""
    text = CASES.read_text(encoding="utf-8")
    cases = {int(number) for number in re.findall(r"^\| FT-(\d\d) \|", text, re.MULTILINE)}
    assert cases == set(range(1, 26))
    assert claims().keys() == cases


def test_the_table_says_where_they_are() -> None:
    """The table above names for each case every module that has it, and no other."""
    assert __doc__ is not None
    told: dict[int, set[str]] = {}
    for cells in re.findall(r"^\| (FT-.*?) \| `(\w+)` \|", __doc__, re.MULTILINE):
        for first, last in re.findall(r"(\d\d)(?: to FT-(\d\d))?", cells[0]):
            for number in range(int(first), int(last or first) + 1):
                told.setdefault(number, set()).add(cells[1])
    assert told == claims()


def test_names_are_read_as_they_are_meant() -> None:
    """Ranges, lists and letters after a number."""
    assert numbers_in("def test_ft_01_to_05_x() -> None:") == {1, 2, 3, 4, 5}
    assert numbers_in("async def test_ft_04_05_x() -> None:") == {4, 5}
    assert numbers_in("def test_ft_23c_x() -> None:\n    # test_ft_99_x") == {23}
