"""Where the contracts are cited, and whether what is cited is there.

There is one form: `channels 6.4`, `sync D25`, `mesh 4.1 to 4.3`, `channels check 12`,
`sync case 03`, `mesh case P15`, `runs R2`. An invariant of docs/architecture.md is `L3`, a fault
case of the mesh `FT-07`, and a fault point of it `fault point D6`. Only a contract's own page
leaves out its name.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.docs.markdown import Document
from support.docs.walk import ROOT
from support.mesh import mesh_cases

CONTRACTS = ("channels", "runs", "sync", "mesh")
FOLDERS = ("src", "tests", "bench", "scripts", "docs", "deploy")

OWN_PAGES = {f"docs/protocol/{contract}.md": contract for contract in CONTRACTS} | {
    "docs/protocol/sync-conformance.md": "sync"
}
_NOT_READ = ("docs/reference/", "tests/support/docs/citations.py", "tests/docs/test_citations.py")
"""Generated from what is read, or about references themselves."""

_COMMENTS = {
    ".sql": re.compile(r"--.*"),
    ".toml": re.compile(r"^\s*#.*|\s# .*", re.MULTILINE),
    ".yaml": re.compile(r"^\s*#.*|\s# .*", re.MULTILINE),
    ".js": re.compile(r"^\s*//.*|/\*.*?\*/", re.DOTALL | re.MULTILINE),
}
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

_NUMBER = r"\d{1,2}(?:\.\d{1,2})?(?![.\d]*\w)"
_CASE = r"(?:[A-Z]\d\d|\d\d[a-z]?)\b"
_ONE = rf"(?:{_NUMBER}|[DR]\d+|checks? \d+|cases? {_CASE})"
_MORE = rf"(?:,? and |, | to )(?:{_ONE}|{_CASE})"
_LIST = rf"{_ONE}(?:{_MORE})*"
_CITATION = re.compile(rf"\b([Cc]hannels|[Rr]uns|[Ss]ync|[Mm]esh) ({_LIST})")
_UNIT = r"(?! ?(?:s|ms|min|h|KiB|MiB|GiB|%|seconds|minutes|hours)\b)"
_SECTION = r"\d{1,2}\.\d{1,2}"
_OWN = re.compile(
    rf"\(({_LIST})\)|\(({_SECTION})[,;:]|\b[Ss]ections? ({_LIST})|\b(D\d+)\b"
    rf"| \| ({_SECTION}) \|$|\b(?:of|in|by|see) ({_SECTION})\b{_UNIT}",
    re.MULTILINE,
)
"""What a page says of itself."""
_PART = re.compile(rf"\b(check|case)s? |\b([DR]\d+)\b|\b(\d+\.\d+|{_CASE}|\d+)\b")

_POINT = re.compile(r"\bfault points? ([DKR]\d)\b")
_FAULT_CASE = re.compile(r"\bFT-\d\d\b")
_INVARIANT = re.compile(r"\bL\d\b")
_FOREIGN = re.compile(r"\bRFC \d+(?:, section)? [\d.]+")

_UNCLEAR = re.compile(r"§|\b[Ss]ections? \d+(?:\.\d+)?|\bD\d{1,2}\b|\bspec\b")
"""What looks like a reference and does not say to what."""
_UNCLEAR_IN_CODE = re.compile(
    rf"{_UNCLEAR.pattern}|(?<!protocol/)\b(?:channels|runs|sync|mesh)\.md\b"
    rf"|(?<!\w)\((?:{_SECTION}|[3-9]|1\d)(?:(?:, | and | to )\d{{1,2}}(?:\.\d{{1,2}})?)*\)"
    rf"|\b(?:of|in|by|see|table) {_SECTION}\b(?!\.\d){_UNIT}"
)


_ANYTHING = re.compile(
    "|".join(
        f"(?:{pattern.pattern})"
        for pattern in (_CITATION, _POINT, _FAULT_CASE, _INVARIANT, _UNCLEAR_IN_CODE)
    )
)
"""What a source must have somewhere for any of its comments to refer to something."""


class Prose(NamedTuple):
    """A comment, a docstring, or a page."""

    place: str
    """File and line."""
    text: str
    is_code: bool
    """Whether it stands in a source."""
    own: str = ""
    """The surface whose page it is."""


@cache
def targets(surface: str) -> frozenset[str]:
    """Everything of a contract that can be cited."""
    page = Document(f"protocol/{surface}.md")
    found = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", page.text, re.MULTILINE))
    match surface:
        case "channels":
            found |= {row[0] for row in page.tables("0.")[0]}
            found |= {f"check {row[0]}" for table in page.tables("10.") for row in table}
        case "runs":
            found |= {row[0] for row in page.tables("0.")[0]}
            found |= {f"check {row[0]}" for row in page.tables("9.")[0]}
        case "sync":
            for names in re.findall(r"\bDecision (D\d+(?:, D\d+)*)", page.text):
                found |= set(names.split(", "))
            found |= set(re.findall(r"^\| (D\d+) ", page.text, re.MULTILINE))
            found |= {f"case {row[0]}" for row in page.tables("20.")[0]}
        case _:
            found |= {row[0] for row in page.tables("15.")[0]}
            for section in mesh_cases.sections():
                found |= {f"case {mesh_cases.case_id(case)}" for case in mesh_cases.cases(section)}
    return frozenset(found)


@cache
def named() -> frozenset[str]:
    """What is cited by a name that only one page gives: invariants, fault cases, fault points."""
    mesh = Document("protocol/mesh.md")
    found = set(re.findall(r"^\| (L\d) \|", Document("architecture.md").text, re.MULTILINE))
    found |= {row[0] for table in mesh.tables("16.4") for row in table}
    found |= {f"fault point {row[0]}" for row in mesh.tables("16.3")[0]}
    return frozenset(found)


def sources() -> Iterator[Path]:
    """Every file whose references are checked."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".md", *_COMMENTS) and not name.startswith(_NOT_READ):
                yield path
    yield from sorted(ROOT.glob("*.md"))


def prose(path: Path) -> Iterator[Prose]:
    """Comments and docstrings of a source, or all of a page but its examples."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".md":
            yield Prose(name, _FENCED.sub("", text), is_code=False, own=OWN_PAGES.get(name, ""))
        case ".py":
            if _ANYTHING.search(text) is None:
                return  # to take it apart takes longer
            for line, said in _docstrings_and_comments(text):
                yield Prose(f"{name}:{line}", said, is_code=True)
        case suffix:
            for found in _COMMENTS[suffix].finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield Prose(f"{name}:{line}", found[0], is_code=True)


def _docstrings_and_comments(text: str) -> Iterator[tuple[int, str]]:
    is_statement = True  # a string that begins one is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and is_statement):
            yield token.start[0], token.string
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            is_statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _parts(listed: str) -> Iterator[str]:
    """The references of a list: `4.1 and D6`, `checks 3 to 5`."""
    kind = ""
    for word, decision, name in _PART.findall(listed):
        if word:
            kind = f"{word} "
        else:
            yield decision or f"{kind}{name}"


def citations(said: Prose) -> Iterator[tuple[str, str]]:
    """Surface and reference of everything that a text cites of the contracts."""
    for surface, listed in _CITATION.findall(said.text):
        yield from ((surface.lower(), reference) for reference in _parts(listed))
    if said.own:
        for groups in _OWN.findall(_CITATION.sub("", said.text)):
            listed = next(filter(None, groups))
            yield from ((said.own, reference) for reference in _parts(listed))


def missing(said: Prose) -> list[str]:
    """References of a text that lead nowhere."""
    wrong = [
        f"{said.place}: {surface} {reference}"
        for surface, reference in citations(said)
        if reference not in targets(surface)
    ]
    names = {*_INVARIANT.findall(said.text), *_FAULT_CASE.findall(said.text)}
    names |= {f"fault point {point}" for point in _POINT.findall(said.text)}
    return wrong + [f"{said.place}: {name}" for name in sorted(names - named())]


def unclear(said: Prose) -> list[str]:
    """References of a text that do not say what they refer to."""
    if said.own:
        return []
    text = said.text
    for known in (_CITATION, _POINT, _FOREIGN):
        text = known.sub("", text)
    pattern = _UNCLEAR_IN_CODE if said.is_code else _UNCLEAR
    return [f"{said.place}: {found[0]}" for found in pattern.finditer(text)]
