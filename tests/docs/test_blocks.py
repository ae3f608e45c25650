"""No code block that nobody runs or checks; support/docs/pages.py says how a page names it."""

import ast
from pathlib import Path

import pytest

from support.docs import walk
from support.docs.pages import (
    GENERATED,
    WALK_TEST,
    Check,
    checked_by,
    checkers,
    checks_of_blocks,
    checks_of_kinds,
    documents,
)
from support.docs.walk import ROOT, RUN

CHECKS = [
    check
    for document in documents()
    for check in (*checks_of_kinds(document), *checks_of_blocks(document))
]


@pytest.mark.parametrize("document", documents())
def test_every_block_is_run_or_checked(document: str) -> None:
    """Or a comment right before it says why not."""
    found = checkers(document)
    left = [block.place for block, check in found if check is None]
    assert not left, (
        f"nobody runs or checks {left}: name the test in the page; "
        "tests/support/docs/pages.py says how"
    )
    if document.startswith(GENERATED):
        assert WALK_TEST not in {check for _, check in found}, "the program writes no commands"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.document} {check.test}")
def test_what_a_page_names_is_there_and_reads_it(check: Check) -> None:
    """The named test exists, opens this page, and looks for blocks of these kinds."""
    path, _, name = check.test.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    functions = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert name in functions
    assert check.document.rpartition("/")[2] in source, "it never opens the page"
    for kind in check.kinds:
        spellings = (f"```{kind}", f'"{kind}"', ".blocks(", "Walk(", "Quickstart(")
        assert any(spelling in source for spelling in spellings), f"it never looks for {kind}"


def test_a_page_is_a_walk_or_is_not() -> None:
    """A walk runs all commands of its page; another test would run them a second time."""
    mixed = {
        check.document
        for check in CHECKS
        if check.document in checked_by(WALK_TEST) and {*RUN, "text"} & {*check.kinds}
    }
    assert not mixed


def test_what_pages_name_is_run_by_the_test_command() -> None:
    """Each named test, and these, are in a folder that a tier of scripts/test runs."""
    tiers = (ROOT / "scripts/tiers.py").read_text(encoding="utf-8")
    folders = {check.test.split("/")[1] for check in CHECKS} | {"docs"}
    assert not [folder for folder in sorted(folders) if f"tests/{folder}" not in tiers]


PAGE = """\
<!-- blocks js: tests/x.py::test_y -->

```sh
true
```

```json
{}
```

<!-- checked by tests/x.py::test_z -->

```json
{}
```

<!-- not run: needs a cluster -->

```sh
false
```

<!-- not run:  -->

```yaml
a: 1
```

```js
1
```
"""


def test_marks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes to the block after it, and a mark without a reason is none."""
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(walk, "ROOT", tmp_path)
    monkeypatch.setattr("support.docs.pages.ROOT", tmp_path)
    assert [check for _, check in checkers("page.md")] == [
        WALK_TEST,
        None,
        "tests/x.py::test_z",
        "needs a cluster",
        None,
        "tests/x.py::test_y",
    ]
