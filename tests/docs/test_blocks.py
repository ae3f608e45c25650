"""No code block without somebody who answers for it: see blocks.toml."""

import ast

import pytest

from support.block_register import Answer, Register, documents
from support.walk import ROOT, Block, blocks

REGISTER = Register()
ANSWERS = list(REGISTER.answers())


@pytest.mark.parametrize("document", documents())
def test_somebody_answers_for_every_block(document: str) -> None:
    """Each block is walked, or counted in the register; nothing is registered that is not there."""
    assert REGISTER.complaint(document, blocks(document)) is None


@pytest.mark.parametrize("document", documents())
def test_a_block_that_nobody_answers_for_is_noticed(document: str) -> None:
    """One more block of any kind, in any document, fails until somebody answers for it."""
    for kind in ("sh", "json", ""):
        new = Block(document, 1, kind, "", "true\n")
        is_walked = document in REGISTER.walks and kind == "sh"
        assert (REGISTER.complaint(document, [*blocks(document), new]) is None) == is_walked


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.document} {answer.test}")
def test_who_answers_is_there_and_reads_the_document(answer: Answer) -> None:
    """The named test exists, opens this document, and looks for blocks of these kinds."""
    path, _, name = answer.test.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    functions = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert name in functions
    reads_all = "REGISTER.settings" in source or "scripts/generate" in source
    assert reads_all or answer.document.rpartition("/")[2] in source, "it never opens the document"
    for kind in answer.kinds:
        spellings = (f"```{kind}", f'"{kind}"', ".blocks(", "Walk(", "scripts/generate")
        assert any(spelling in source for spelling in spellings), f"it never looks for {kind}"


def test_the_register_names_documents_that_are_there() -> None:
    """A document that was renamed takes its answers along."""
    named = {answer.document for answer in ANSWERS} | {*REGISTER.walks, *REGISTER.templates()}
    assert named <= set(documents())


def test_whoever_answers_is_run_by_the_test_command() -> None:
    """Each named test, and these, are in a folder that a tier of scripts/test runs."""
    tiers = (ROOT / "scripts/tiers.py").read_text(encoding="utf-8")
    folders = {answer.test.split("/")[1] for answer in ANSWERS} | {"docs"}
    missing = [folder for folder in sorted(folders) if f"tests/{folder}" not in tiers]
    assert not missing
