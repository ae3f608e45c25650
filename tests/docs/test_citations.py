"""Every reference to a contract leads somewhere, and says to which one."""

import re

import pytest

from support.docs.citations import Prose, citations, missing, prose, sources, unclear
from support.docs.markdown import Document
from support.docs.walk import ROOT
from support.mesh import mesh_cases


def code(text: str) -> Prose:
    """A comment in some source."""
    return Prose("here", text, is_code=True)


def test_every_reference_leads_somewhere() -> None:
    """In sources, tests and pages: the section, decision, check, case or invariant is there."""
    wrong: list[str] = []
    count = 0
    for path in sources():
        for said in prose(path):
            count += sum(1 for _ in citations(said))
            wrong += missing(said) + unclear(said)
    assert not wrong, "\n".join(["not there, or not cited as `channels 6.4`:", *wrong])
    assert count > 800, "the references are not found any more"


@pytest.mark.parametrize(
    "text",
    [
        "channels 5.14",
        "channels 6.1, 6.9",
        "channels D23",
        "checks 3 to 5 of channels 10, channels check 99",
        "runs 4.9",
        "runs R9",
        "runs check 99",
        "sync 17.12",
        "sync D25, D99",
        "sync case 06",
        "Mesh 17",
        "mesh 4.1 to 4.9",
        "mesh case P30",
        "FT-26",
        "fault point D8",
        "L9",
    ],
)
def test_a_wrong_reference_is_noticed(text: str) -> None:
    """Whatever kind it is of."""
    assert len(missing(code(f"Why it is so ({text})."))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "(6.4)",
        "(2.5, 7)",
        "(17)",
        "(D6)",
        "the table of 7.3",
        "section 3",
        "§ 4",
        "spec 8",
        "sync.md",
    ],
)
def test_an_unclear_reference_is_noticed(text: str) -> None:
    """It does not say which contract it is about."""
    assert unclear(code(f"Why it is so, {text}."))


@pytest.mark.parametrize(
    "text",
    [
        "(channels 6.4, D6)",
        "channels 4 and 5",
        "channels check 68",
        "runs 4.1, R2 and R3",
        "sync case 15b",
        "mesh case FT-07",
        "mesh case P15",
        "fault point K5",
        "FT-25, L1 to L8",
        "RFC 6455, section 5.2",
        "unshare(2)",
        "a share of 0.5 s",
    ],
)
def test_a_right_reference_is_none(text: str) -> None:
    """Nor is what only looks like one."""
    assert missing(code(text)) + unclear(code(text)) == []


def test_a_page_refers_to_itself() -> None:
    """A number alone is a section of the contract whose page it is on."""
    said = Prose("page", "it (4.1, 9.9), section 12, of 6.12, D66", is_code=False, own="mesh")
    assert missing(said) == [f"page: mesh {name}" for name in ("9.9", "6.12", "D66")]


def test_the_checks_of_channels() -> None:
    """No number is missing, and each has tests that are named after it."""
    tables = Document("protocol/channels.md").tables("10.")
    numbers = [int(row[0]) for table in tables for row in table]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    files = (ROOT / "tests/conformance/channels").glob("test_*.py")
    names = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert {int(number) for number in re.findall(r"def test_check_(\d\d)_", names)} == set(numbers)


def test_the_checks_of_runs() -> None:
    """Likewise; some of them kill processes, or are about the client."""
    [table] = Document("protocol/runs.md").tables("9.")
    numbers = [int(row[0]) for row in table]
    assert numbers == list(range(1, len(numbers) + 1))
    folders = ("tests/conformance/channels", "tests/clients", "tests/crash")
    files = [file for folder in folders for file in (ROOT / folder).glob("test_*.py")]
    names = "\n".join(file.read_text(encoding="utf-8") for file in files)
    found = {int(number) for number in re.findall(r"def test_run_check_(\d\d)_", names)}
    assert found == set(numbers)


def test_the_cases_of_mesh() -> None:
    """The page has the first and the last of each list of cases."""
    listed = [row[0] for row in Document("protocol/mesh.md").tables("16.1")[0]]
    expected = []
    for section in mesh_cases.sections():
        ids = [mesh_cases.case_id(case) for case in mesh_cases.cases(section)]
        if ids[0][0].isupper():
            expected.append(f"{ids[0]} to {ids[-1]}")
    assert sorted(listed) == sorted(expected)
