"""Links between documents, and names of files in them, lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from support.docs.pages import documents
from support.docs.walk import ROOT

PATHS = re.compile(r"(?<![\w/.-])((?:tests|src|bench|scripts|docs)/[\w./-]*\w)")
"""A path of the repository in running text or inline code."""

HOSTS = re.compile(r"\b(?:https?|wss?|postgresql|spark)://(?:[^\s/@\"'`]*@)?([^\s/:\"'`)<>,]+)")
HERE = ("127.0.0.1", "0.0.0.0", "localhost")


def inline(text: str) -> Iterator[Token]:
    """Tokens inside paragraphs, tables and headings."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield from token.children or ()


def anchors(path: Path) -> set[str]:
    """What `#...` may name in a document: its headings, as GitHub and the site spell them."""
    tokens = MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8"))
    headings = [
        tokens[index + 1].content
        for index, token in enumerate(tokens)
        if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", documents())
def test_links_lead_somewhere(document: str) -> None:
    """Every link and picture names a file that is there, every anchor a heading; none a host."""
    path = ROOT / document
    wrong = []
    for token in inline(path.read_text(encoding="utf-8")):
        target = str(token.attrs.get("href") or token.attrs.get("src") or "")
        if token.type not in ("link_open", "image") or not target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if "://" in target or not found.exists() or not found.is_relative_to(ROOT):
            wrong.append(target)
        elif anchor and anchor not in anchors(found):
            wrong.append(f"{target} (no such heading)")
    assert not wrong, wrong


@pytest.mark.parametrize("document", documents())
def test_named_files_exist(document: str) -> None:
    """A test, source or script that a document names by its path is there."""
    text = (ROOT / document).read_text(encoding="utf-8")
    named = {match.partition("::")[0] for match in PATHS.findall(text)}
    missing = [name for name in sorted(named) if not (ROOT / name).exists()]
    assert not missing, missing


@pytest.mark.parametrize("document", documents())
def test_no_host_of_the_internet_is_named(document: str) -> None:
    """An address is this machine's, or a word to be filled in."""
    found = HOSTS.findall((ROOT / document).read_text(encoding="utf-8"))
    assert [host for host in found if host not in HERE and "." in host.strip(".")] == []


def test_a_wrong_anchor_is_noticed() -> None:
    """Anchors are those of headings, and nothing else passes."""
    found = anchors(ROOT / "docs/pipeline.md")
    assert "on-a-cluster" in found
    assert "on-the-moon" not in found
